package project

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/unitask/unitask/internal/hostfiles"
)

// Kinds of a State.
const (
	IsFile  = "file"
	IsLink  = "link"
	IsOther = "other" // a pipe, a socket or a device
)

// State is a file before or after a change.
type State struct {
	Kind   string `json:"kind"`
	Exec   bool   `json:"executable,omitempty"`
	Size   int64  `json:"size,omitempty"`
	Digest string `json:"digest,omitempty"` // as sha256:…
	Link   string `json:"link,omitempty"`
}

// Change is what a session changed at a path.
type Change struct {
	Path   string `json:"path"`
	From   string `json:"from,omitempty"`   // the file's path before, if it was renamed
	Before *State `json:"before,omitempty"` // nil for a new file
	After  *State `json:"after,omitempty"`  // nil for one that is gone

	Sent bool `json:"sent,omitempty"` // its text follows in a report
}

// DigestPrefix begins a digest.
const DigestPrefix = "sha256:"

// Changes are found in two steps, since only the machine has the files: Wanted names those whose digests are needed,
// and End takes them.
type Changes struct {
	// Ignored is the number of new files that .gitignore files name, as the session got them.
	Ignored int
	Wanted  []string
	Sizes   []int64 // of Wanted
	// Again means that folders have moved: a listing of everything is needed.
	Again bool

	brought *Manifest
	list    []Change // without digests
}

func before(f *File) *State {
	if f.Link != "" {
		return &State{Kind: IsLink, Link: f.Link}
	}
	return &State{Kind: IsFile, Exec: f.Exec, Size: f.Size, Digest: DigestPrefix + hex.EncodeToString(f.Digest)}
}

// Compare compares a listing with what the session got.
func (b *Manifest) Compare(l *Listing) (*Changes, error) {
	c := &Changes{brought: b}
	rules, moved, there := b.ignoring(), map[string]bool{}, make(map[string]bool, len(l.Entries))
	back := !after(l.seconds(), b.Mark) // the machine's clock was set back, so times say nothing
	for _, e := range l.Entries {
		above := back || e.Path != "" && moved[folderOf(e.Path)]
		if e.Kind == KindFolder {
			inode, known := b.Folders[e.Path]
			moved[e.Path] = above || !known || inode != e.Inode
			continue
		}
		there[e.Path] = true
		was := b.File(e.Path)
		if was == nil {
			out, err := rules.match(e.Path)
			if err != nil {
				return nil, err
			}
			if out || !utf8.ValidString(e.Path) {
				c.Ignored++
				continue
			}
		}
		c.add(was, e, above)
		if len(c.list) > hostfiles.MaxFolderEntries {
			return nil, fmt.Errorf("the session changed more than %d files", hostfiles.MaxFolderEntries)
		}
	}
	for i := range b.Files {
		if f := &b.Files[i]; !there[f.Path] {
			c.list = append(c.list, Change{Path: f.Path, Before: before(f)})
		}
	}
	return c, nil
}

func folderOf(name string) string {
	if dir := path.Dir(name); dir != "." {
		return dir
	}
	return ""
}

// add adds the possible change of one entry. moved means that another folder is now in the place of its folder.
func (c *Changes) add(was *File, e Entry, moved bool) {
	change := Change{Path: e.Path}
	if was != nil {
		change.Before = before(was)
	}
	switch e.Kind {
	case KindSame:
		if was == nil || moved || was.Link != "" {
			c.Again = true
		}
		return
	case KindLink:
		if was != nil && was.Link == e.Link {
			return
		}
		change.After = &State{Kind: IsLink, Link: e.Link}
	case KindOther:
		change.After = &State{Kind: IsOther}
	case KindFile:
		if was != nil && was.Link == "" && !moved && !after(e.ctime, c.brought.Mark) {
			return
		}
		change.After = &State{Kind: IsFile, Exec: e.Exec, Size: e.Size}
		c.Wanted, c.Sizes = append(c.Wanted, e.Path), append(c.Sizes, e.Size)
	}
	c.list = append(c.list, change)
}

// End returns the changes, sorted by path. digests are those of Wanted.
func (c *Changes) End(digests map[string]Digest) []Change {
	var list []Change
	gone := map[string]int{} // by digest
	for _, one := range c.list {
		if one.After != nil && one.After.Kind == IsFile {
			one.After.Digest = DigestPrefix + hex.EncodeToString(digests[one.Path])
			if one.Before != nil && *one.Before == *one.After {
				continue
			}
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	for i, one := range list {
		if one.After == nil && one.Before.Kind == IsFile && one.Before.Size > 0 {
			gone[one.Before.Digest] = i
		}
	}
	for i := range list {
		one := &list[i]
		if one.Before != nil || one.After.Kind != IsFile {
			continue
		}
		if at, ok := gone[one.After.Digest]; ok {
			one.From, one.Before = list[at].Path, list[at].Before
			delete(gone, one.After.Digest)
			list[at].Path = "" // it has its place in the other one
		}
	}
	return slices.DeleteFunc(list, func(one Change) bool { return one.Path == "" })
}

// Select returns the changes at or below paths; all without paths.
func Select(list []Change, paths []string) []Change {
	if len(paths) == 0 {
		return list
	}
	return slices.DeleteFunc(slices.Clone(list), func(one Change) bool { return !Named(one, paths) && !below(one, paths) })
}

// Named reports whether one of the paths is that of the change itself.
func Named(one Change, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return path.Clean(p) == one.Path })
}

func below(one Change, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool {
		p = path.Clean(p)
		return p == "." || one.From == p || strings.HasPrefix(one.Path, p+"/") || strings.HasPrefix(one.From, p+"/")
	})
}

// rules are the patterns of the session's .gitignore files.
type rules struct {
	matcher gitignore.Matcher
	bytes   int // of all patterns
	left    int
	folders map[string]bool
}

// Limits of patterns. A clone's commit may have any; those beyond the limits name nothing.
const (
	maxPatterns = 10_000
	maxPattern  = 4096           // bytes
	maxIgnored  = 16 << 20       // bytes of all files of patterns
	maxMatches  = 20_000_000_000 // bytes of patterns, times those of the names that they meet: half a minute
)

// ignoring reads the patterns as the session got them: it can't hide files by others.
func (b *Manifest) ignoring() *rules {
	var list []gitignore.Pattern
	size, read := 0, int64(0)
	for _, name := range []string{".gitignore", hostfiles.IgnoreFile} { // the last match applies
		for i := range b.Files {
			f := &b.Files[i]
			if path.Base(f.Path) != name {
				continue
			}
			if read += f.Size; read > maxIgnored {
				continue
			}
			text, _, err := b.Text(f)
			if err != nil {
				continue
			}
			var domain []string
			if dir := folderOf(f.Path); dir != "" {
				domain = strings.Split(dir, "/")
			}
			for line := range strings.Lines(string(text)) {
				line = strings.TrimRight(line, "\r\n")
				if strings.TrimSpace(line) == "" || line[0] == '#' || len(line) > maxPattern || len(list) == maxPatterns {
					continue
				}
				list = append(list, gitignore.ParsePattern(line, domain))
				size += len(line)
			}
		}
	}
	return &rules{matcher: gitignore.NewMatcher(list), bytes: size, left: maxMatches, folders: map[string]bool{}}
}

// match reports whether a new file is left out.
func (r *rules) match(name string) (bool, error) {
	if r.bytes == 0 {
		return false, nil
	}
	if out, err := r.folder(folderOf(name)); out || err != nil {
		return out, err
	}
	return r.one(name, false)
}

// folder reports whether a folder or one above it is left out.
func (r *rules) folder(name string) (out bool, err error) {
	out, known := r.folders[name]
	if known || name == "" {
		return out, nil
	}
	if out, err = r.folder(folderOf(name)); err == nil && !out {
		out, err = r.one(name, true)
	}
	r.folders[name] = out
	return out, err
}

func (r *rules) one(name string, folder bool) (bool, error) {
	if r.left -= r.bytes * len(name); r.left < 0 {
		return false, errors.New("the session made too many files for the patterns of .gitignore")
	}
	return r.matcher.Match(strings.Split(name, "/"), folder), nil
}

// ParseDigests reads what sha256sum -z prints of files, whose names have ./ before them.
func ParseDigests(text []byte, names []string) (map[string]Digest, error) {
	list := map[string]Digest{}
	for _, name := range names {
		line, rest, ok := bytes.Cut(text, []byte{0})
		sum, err := hex.DecodeString(string(line[:min(len(line), 64)]))
		if !ok || err != nil || len(sum) != 32 || string(line[64:]) != "  ./"+name {
			return nil, fmt.Errorf("%w: %.100q", errLies, line)
		}
		list[name], text = sum, rest
	}
	if len(text) > 0 {
		return nil, errLies
	}
	return list, nil
}
