package hostfiles

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
)

// IgnoreFile names, in gitignore's syntax, what a folder does not bring along. Each
// folder may have one, for itself and what is below.
const IgnoreFile = ".unitaskignore"

// Bounds of files of patterns.
const (
	maxIgnore = 1 << 20 // bytes of an IgnoreFile
	// A repository brings its own files of patterns, and each pattern is held against each
	// part of each path below: a pattern with a star, against each byte of it.
	maxPatterns = 10_000        // in force in one folder
	maxPattern  = 4096          // bytes of one: as many as the longest path has
	maxMatching = 1_000_000_000 // bytes of patterns that are looked at: some ten seconds
	perEntry    = 1000          // what looking at an entry counts beside that: a million of them may be left out
	maxIgnored  = 16 << 20      // bytes of all files of patterns
)

// ignored are the patterns in force in a folder: own are those of each IgnoreFile; all has
// those of the .gitignore files too, each before the IgnoreFile beside it, which may take
// something back (!dist).
type ignored struct{ own, all patterns }

// patterns are held against a path in turn: the last that matches counts.
type patterns struct {
	list    []gitignore.Pattern
	bytes   int
	starred int // bytes of those with a star
}

// and is p with more patterns behind.
func (p patterns) and(more patterns) patterns {
	return patterns{append(slices.Clip(p.list), more.list...), p.bytes + more.bytes, p.starred + more.starred}
}

// What of a project is treated in its own way.
const (
	gitFolder  = ".git" // history, and often credentials
	gitIgnore  = ".gitignore"
	modulesDir = "node_modules" // is in most .gitignore files, and needed
)

// leaves says that an entry stays out. Of a package in node_modules, .gitignore says what
// is not in its repository, which is often what it is used for.
func (w *walk) leaves(parents []string, name string, isDir bool, ignore ignored) (bool, error) {
	in := ignore.all
	if name == modulesDir || slices.Contains(parents, modulesDir) {
		in = ignore.own
	}
	w.matched += perEntry + in.bytes*(len(parents)+1)
	if in.starred > 0 {
		w.matched += in.starred * len(strings.Join(parents, "")+name)
	}
	if w.matched > cmp.Or(w.set.matching, maxMatching) {
		return false, fmt.Errorf("%q: %s holds too many patterns for this many files",
			path.Join(append(slices.Clip(parents), name)...), IgnoreFile)
	}
	if w.m.project && name == gitFolder {
		return true, nil
	}
	return len(in.list) > 0 && gitignore.NewMatcher(in.list).Match(append(slices.Clip(parents), name), isDir), nil
}

// patterns reads a file of patterns of a folder, if it has one: at most most.
func (w *walk) patterns(here *os.Root, rel, name string, domain []string, most int) (found patterns, err error) {
	f, err := openRegular(here, name)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	name = path.Join(rel, name)
	if err != nil {
		return found, fmt.Errorf("%q: %w", name, plain(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIgnore+1))
	if err != nil || len(text) > maxIgnore {
		return found, fmt.Errorf("%q can't be read, or has more than %d bytes", name, maxIgnore)
	}
	if w.read += len(text); w.read > maxIgnored {
		return found, fmt.Errorf("%q: with those before it there are more than %d bytes of patterns", name, maxIgnored)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\r\n")
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
			if len(found.list) == most {
				return found, fmt.Errorf("%q: with those of the folders above there are more than %d patterns", name, maxPatterns)
			}
			if len(line) > maxPattern {
				return found, fmt.Errorf("%q: a pattern has more than %d bytes", name, maxPattern)
			}
			found.list, found.bytes = append(found.list, gitignore.ParsePattern(line, domain)), found.bytes+len(line)
			if strings.Contains(line, "*") {
				found.starred += len(line)
			}
		}
	}
	return found, nil
}
