package hostfiles

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-git/go-git/v5/plumbing/format/gitignore"

	"github.com/unitask/unitask/guest"
)

// IgnoreFile names, in gitignore's syntax, what a folder does not bring along. Each
// folder may have one, for itself and what is below.
const IgnoreFile = ".unitaskignore"

// Bounds of what a run brings along.
const (
	DefaultDirMax = 256 << 20 // bytes of one folder
	maxInputs     = 100_000   // files, folders and links
	maxIgnore     = 1 << 20   // bytes of an IgnoreFile
	maxDepth      = 128       // folders in each other: the walk is recursive

	// A repository brings its own files of patterns, and each pattern is held against each
	// part of each path below: a pattern with a star, against each byte of it.
	maxPatterns = 10_000        // in force in one folder
	maxPattern  = 4096          // bytes of one: as many as the longest path has
	maxMatching = 1_000_000_000 // bytes of patterns that are looked at: some ten seconds
	perEntry    = 1000          // what looking at an entry counts beside that: a million of them may be left out
	maxIgnored  = 16 << 20      // bytes of all files of patterns
)

// Set is the files and folders that a run brings along. Each is opened once, and what
// is below a folder is reached from there: exchanging a folder or a link afterwards
// leads nowhere. The zero value is empty. Close it.
type Set struct {
	mounts   []*mount
	entries  []entry
	bytes    int64
	matching int // a test's own maxMatching
}

// mount is an opened file or folder.
type mount struct {
	host, real, guest string
	file              *os.File // of a file
	root              *os.Root // of a folder
	project           bool
}

// entry is one thing to be put into the guest.
type entry struct {
	guest.File
	from   *mount // of a regular file: what it is, or lies in
	stamp  stamp  // of a regular file below a folder
	steady bool   // Steady found it so
}

// open opens a regular file, if it is one still. The caller closes it, unless it is kept.
func (e *entry) open() (*os.File, error) {
	if e.kept() {
		return e.from.file, nil
	}
	return openRegular(e.from.root, e.from.rel(e.Path))
}

// kept: what open returns is open for as long as the run is.
func (e *entry) kept() bool { return e.from.file != nil }

// Add opens what was found and lists it, to be at a path inside: of a folder, at most
// most bytes.
func (s *Set) Add(f *Found, to string, most int64) error {
	if f.err != nil {
		return f.err
	}
	m := &mount{host: f.Host, real: f.Real, guest: to, project: f.Project}
	var err error
	if f.dir {
		if m.root, err = f.place.openRoot(); err != nil {
			return err
		}
		s.mounts = append(s.mounts, m)
		w := walk{set: s, m: m}
		top := list(m.root, ".")
		if top.root == nil {
			return plain(top.err)
		}
		if err := w.folder(top, to, nil, ignored{}); err != nil {
			return err
		}
		if w.used > most {
			return &TooMuchError{Bytes: w.used, Most: most}
		}
		return nil
	}
	if m.file, err = f.place.open(); err != nil {
		return err
	}
	s.mounts = append(s.mounts, m)
	st, err := m.file.Stat()
	if err != nil {
		return plain(err)
	}
	s.add(m, to, st)
	return nil
}

// TooMuchError says that a folder has more bytes than it may bring. It is listed all the
// same: what it would take is known.
type TooMuchError struct{ Bytes, Most int64 }

func (e *TooMuchError) Error() string {
	return fmt.Sprintf("has %d bytes, and may bring %d: %s names what is not needed", e.Bytes, e.Most, IgnoreFile)
}

// add lists a regular file, which a mount is or holds.
func (s *Set) add(m *mount, to string, st fs.FileInfo) {
	mode := fs.FileMode(0o644)
	if st.Mode()&0o100 != 0 {
		mode = 0o755
	}
	s.entries = append(s.entries, entry{File: guest.File{Path: to, Mode: mode, Size: st.Size(), ModTime: st.ModTime()}, from: m, stamp: stampOf(st)})
	s.bytes = sum(s.bytes, st.Size())
}

// walk lists a folder.
type walk struct {
	set     *Set
	m       *mount
	used    int64
	matched int // bytes of patterns that were looked at
	read    int // bytes of files of patterns
}

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
		return false, fmt.Errorf("%q: %s holds too many patterns for this many files", path.Join(append(slices.Clip(parents), name)...), IgnoreFile)
	}
	if w.m.project && name == gitFolder {
		return true, nil
	}
	return len(in.list) > 0 && gitignore.NewMatcher(in.list).Match(append(slices.Clip(parents), name), isDir), nil
}

// folder lists a folder, which is at a path inside, whose path's parts below the
// mount are given. A name in it is looked up from there: in one step.
func (w *walk) folder(from listing, at string, parts []string, ignore ignored) error {
	defer from.close()
	rel, here := w.m.rel(at), from.root
	if len(parts) > maxDepth {
		return fmt.Errorf("%q lies more than %d folders deep", rel, maxDepth)
	}
	w.set.entries = append(w.set.entries, entry{File: guest.File{Path: at, Mode: fs.ModeDir | 0o755}})
	if w.m.project && !slices.Contains(parts, modulesDir) {
		git, err := w.patterns(here, rel, gitIgnore, parts, maxPatterns-len(ignore.all.list))
		if err != nil {
			return err
		}
		ignore.all = ignore.all.and(git)
	}
	own, err := w.patterns(here, rel, IgnoreFile, parts, maxPatterns-len(ignore.all.list))
	if err != nil {
		return err
	}
	ignore.own, ignore.all = ignore.own.and(own), ignore.all.and(own)
	for list, err := from.list, from.err; ; list, err = from.dir.ReadDir(listAtOnce) {
		if e := w.entries(here, list, at, parts, ignore); e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%q: %w", rel, plain(err))
		}
	}
}

// entries lists some of what is in the folder here, at a path inside; parts are the folder's.
func (w *walk) entries(here *os.Root, list []fs.DirEntry, at string, parts []string, ignore ignored) error {
	var folders []string
	kept := list[:0]
	for _, e := range list {
		out, err := w.leaves(parts, e.Name(), e.IsDir(), ignore)
		if err != nil {
			return err
		}
		if out {
			continue
		}
		if kept = append(kept, e); e.IsDir() {
			folders = append(folders, e.Name())
		}
	}
	ahead := listAhead(here, folders)
	defer ahead.close()
	for _, e := range kept {
		if err := w.entry(here, e, under(at, e.Name()), parts, ignore, ahead); err != nil {
			return err
		}
	}
	return nil
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

// entry lists what is in a folder, to be at a path inside; parts are the folder's. A folder is
// the next that was opened ahead.
func (w *walk) entry(here *os.Root, e fs.DirEntry, to string, parts []string, ignore ignored, ahead *ahead) error {
	rel := w.m.rel(to)
	if len(w.set.entries) >= maxInputs {
		return fmt.Errorf("has more than %d files: %s names what is not needed", maxInputs, IgnoreFile)
	}
	st, err := e.Info() // as it was when it was listed: of a folder that a Root opened, nothing is looked up
	if err != nil {
		return fmt.Errorf("%q: %w", rel, plain(err))
	}
	if len(to) > MaxPath {
		return fmt.Errorf("%.80q…: its path inside has more than %d bytes", rel, MaxPath)
	}
	switch st.Mode().Type() {
	case 0:
		w.used = sum(w.used, st.Size())
		w.set.add(w.m, to, st)
	case fs.ModeDir:
		below := ahead.next(e.Name())
		if below.root == nil {
			return fmt.Errorf("%q: %w", rel, plain(below.err))
		}
		return w.folder(below, to, append(slices.Clip(parts), e.Name()), ignore)
	case fs.ModeSymlink:
		target, err := w.link(rel)
		if err != nil {
			return fmt.Errorf("%q is a link that %w: %s can leave it out", rel, err, IgnoreFile)
		}
		w.set.entries = append(w.set.entries, entry{File: guest.File{Path: to, Mode: fs.ModeSymlink, Target: target}})
	default:
		return fmt.Errorf("%q is a %s, which can't be given: %s can leave it out", rel, kindOf(st.Mode()), IgnoreFile)
	}
	return nil
}

// under is path.Join of a clean absolute path and a name.
func under(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

// rel is where a path inside lies below the mount.
func (m *mount) rel(at string) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(at, m.guest), "/")
	return cmp.Or(rest, ".")
}

// link returns a link's target for the guest, if the link stays inside of the mount.
func (w *walk) link(rel string) (string, error) {
	target, err := w.m.root.Readlink(rel)
	if err != nil {
		return "", plain(err)
	}
	if len(target) > MaxPath {
		return "", errors.New("is too long")
	}
	inside, where := target, path.Join(path.Dir(rel), target)
	if filepath.IsAbs(target) { // the same place inside, where the folder may have another path
		where = ".."
		for _, base := range []string{w.m.host, w.m.real} {
			if within(base, path.Clean(target)) {
				where, _ = filepath.Rel(base, path.Clean(target))
				inside = path.Join(w.m.guest, where)
			}
		}
	}
	if !filepath.IsLocal(where) {
		return "", fmt.Errorf("leads out of the folder, to %.200q", target)
	}
	if _, err := w.m.root.Stat(where); err != nil && !errors.Is(err, fs.ErrNotExist) { // by way of another link
		return "", fmt.Errorf("leads to %.200q: %w", target, plain(err))
	}
	return inside, nil
}

// Bytes is how much it is in all.
func (s *Set) Bytes() int64 { return s.bytes }

// Memory is what it takes in a guest's memory when a kernel keeps files in whole pages,
// and beside them so many bytes for each file.
func (s *Set) Memory(perFile int64) int64 {
	const page = 4096
	total := int64(len(s.entries)) * perFile
	for _, e := range s.entries {
		total = sum(total, sum(e.Size, page-1)&^(page-1))
	}
	return total
}

// Count is how many files, folders and links it is.
func (s *Set) Count() int { return len(s.entries) }

// NotText is the first path inside that is not UTF-8 text, or "".
func (s *Set) NotText() string {
	for _, e := range s.entries {
		if !utf8.ValidString(e.Path) {
			return e.Path
		}
	}
	return ""
}

// Guest takes files; a *guest.Conn does.
type Guest interface {
	// Put makes a file, folder or link. It reads the content, which is nil but for a
	// regular file, before it returns.
	Put(f guest.File, content io.Reader) error
}

// Sent is how much has been sent, of how much.
type Sent struct {
	Files, AllFiles int // folders and links among them
	Bytes, AllBytes int64
}

// Part is what of a set is sent.
type Part int

const (
	All        Part = iota
	OnlySteady      // what Steady found
	AllButSteady
)

func (p Part) has(e entry) bool { return p == All || e.steady == (p == OnlySteady) }

// Put sends a part of it into the guest. sent is called before each file.
func (s *Set) Put(ctx context.Context, to Guest, part Part, sent func(Sent)) error {
	var so Sent
	for _, e := range s.entries {
		if part.has(e) {
			so.AllFiles++
			so.AllBytes += e.Size
		}
	}
	for _, e := range s.entries {
		if !part.has(e) {
			continue
		}
		sent(so)
		so.Files++
		so.Bytes += e.Size
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := e.put(to); err != nil {
			return err
		}
	}
	return nil
}

func (e *entry) put(to Guest) error {
	if e.from == nil {
		return to.Put(e.File, nil)
	}
	f, err := e.open()
	if err != nil {
		return &guest.ContentError{Path: e.Path, Err: err}
	}
	st, err := f.Stat()
	if err == nil && (!st.Mode().IsRegular() || st.Size() != e.Size) {
		err = errors.New("it was changed meanwhile")
	}
	if err == nil {
		err = to.Put(e.File, io.NewSectionReader(f, 0, e.Size))
	} else {
		err = &guest.ContentError{Path: e.Path, Err: err}
	}
	if !e.kept() {
		f.Close()
	}
	return err
}

// At says that a mount brings something to a path.
func (s *Set) At(p string) bool {
	return slices.ContainsFunc(s.entries, func(e entry) bool { return e.Path == p })
}

// Under says that a path lies in a folder that is mounted.
func (s *Set) Under(p string) bool {
	return slices.ContainsFunc(s.mounts, func(m *mount) bool { return m.root != nil && within(m.guest, p) })
}

// Paths are where the mounts are.
func (s *Set) Paths() (list []string) {
	for _, m := range s.mounts {
		list = append(list, m.guest)
	}
	return list
}

// Patience is how long it may take to send it all.
func (s *Set) Patience() time.Duration { return patience(s.bytes, len(s.entries)) }

func patience(bytes int64, count int) time.Duration {
	return time.Duration(bytes>>20)*time.Second + time.Duration(count)*10*time.Millisecond
}

// Close lets go of everything.
func (s *Set) Close() {
	for _, m := range s.mounts {
		m.close()
	}
}

func (m *mount) close() {
	if m.file != nil {
		m.file.Close()
	}
	if m.root != nil {
		m.root.Close()
	}
	m.file, m.root = nil, nil
}

// within says that a path is a folder or lies below it, both free of links and "..".
func within(folder, p string) bool {
	rel, err := filepath.Rel(folder, p)
	return err == nil && filepath.IsLocal(rel)
}
