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

// IgnoreFile lists, in gitignore's syntax, what is not copied from a folder. Each folder may have one, for itself
// and its subfolders.
const IgnoreFile = ".unitaskignore"

// Limits of files of patterns.
const (
	maxIgnore = 1 << 20 // bytes of an IgnoreFile
	// A repository contains its own files of patterns. Each pattern is compared with each part of each path below, and
	// a pattern with a star is compared with each byte of it.
	maxPatterns = 10_000        // applying in one folder
	maxPattern  = 4096          // bytes of a pattern: as many as the longest path has
	maxMatching = 1_000_000_000 // bytes of patterns that are compared: some ten seconds
	perEntry    = 1000          // additional cost of an entry: a million of them may be left out
	maxIgnored  = 16 << 20      // bytes of all files of patterns
)

// ignored are the patterns that apply in a folder. own are those of each IgnoreFile. all also contains those of
// the .gitignore files, each before the IgnoreFile beside it, which may revoke patterns (!dist).
type ignored struct{ own, all patterns }

// patterns are compared with a path in turn: the last match applies.
type patterns struct {
	list    []gitignore.Pattern
	bytes   int
	starred int // bytes of patterns with a star
}

// and returns p with more patterns appended.
func (p patterns) and(more patterns) patterns {
	return patterns{append(slices.Clip(p.list), more.list...), p.bytes + more.bytes, p.starred + more.starred}
}

// Names in a project that are treated specially.
const (
	gitFolder  = ".git" // history, and often credentials
	gitIgnore  = ".gitignore"
	modulesDir = "node_modules" // is in most .gitignore files, and needed
)

// leaves reports whether an entry is left out. In node_modules, .gitignore lists what is missing in a package's
// repository, which is often the part that is needed.
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

// applying adds the patterns of the folder here, which is at rel in the host's folder and at parts below the mount.
func (w *walk) applying(here *os.Root, rel string, parts []string, ignore ignored) (ignored, error) {
	if w.m.project && !slices.Contains(parts, modulesDir) {
		git, err := w.patterns(here, rel, gitIgnore, parts, maxPatterns-len(ignore.all.list))
		if err != nil {
			return ignore, err
		}
		ignore.all = ignore.all.and(git)
	}
	own, err := w.patterns(here, rel, IgnoreFile, parts, maxPatterns-len(ignore.all.list))
	ignore.own, ignore.all = ignore.own.and(own), ignore.all.and(own)
	return ignore, err
}

// InProject reports whether the copy of a project has a file: rel is its path in the project's folder, with slashes.
func InProject(project *os.Root, rel string) (bool, error) {
	w, parts, ignore := &walk{set: &Set{}, m: &mount{project: true}}, strings.Split(rel, "/"), ignored{}
	for i, name := range parts {
		dir := path.Join(append([]string{"."}, parts[:i]...)...)
		here, err := project.OpenRoot(dir)
		if err != nil {
			return false, err
		}
		ignore, err = w.applying(here, dir, parts[:i], ignore)
		here.Close()
		if err != nil {
			return false, err
		}
		if out, err := w.leaves(parts[:i], name, i+1 < len(parts), ignore); out || err != nil {
			return false, err
		}
	}
	return true, nil
}

// patterns reads a folder's file of patterns, if it has one; most is the maximum number of patterns.
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
