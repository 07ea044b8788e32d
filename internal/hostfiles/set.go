package hostfiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/unitask/unitask/guest"
)

// Limits of a run's files and folders.
const (
	DefaultDirMax = 256 << 20 // bytes of one folder
	maxInputs     = 100_000   // files, folders and links
	maxDepth      = 128       // nested folders: the walk is recursive
)

// Set is the files and folders of a run's request. Each is opened once, and everything below a folder is opened
// relative to that folder: exchanging a folder or a link afterwards has no effect. The zero value is empty. Close
// it.
type Set struct {
	mounts   []*mount
	entries  []entry
	bytes    int64
	matching int // replaces maxMatching in tests
}

// mount is an opened file or folder.
type mount struct {
	host, real, guest string
	file              *os.File // of a file
	root              *os.Root // of a folder
	project           bool
}

// entry is a file, folder or link to create in the guest.
type entry struct {
	guest.File
	from   *mount // of a regular file: the mount that is the file, or contains it
	stamp  stamp  // of a regular file below a folder
	steady bool   // Steady found it unchanged long enough
}

// open opens a regular file, if it still is one. The caller closes it, unless it is kept.
func (e *entry) open() (*os.File, error) {
	if e.kept() {
		return e.from.file, nil
	}
	return openRegular(e.from.root, e.from.rel(e.Path))
}

// kept reports whether open's result stays open for the whole run.
func (e *entry) kept() bool { return e.from.file != nil }

// Add opens what was found and lists it, for a path inside; most is the maximum size of a folder, in bytes.
func (s *Set) Add(f *Found, to string, most int64) error {
	if f.err != nil {
		return f.err
	}
	to = path.Clean(to) // paths below are made by appending names
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

// TooMuchError means that a folder has more bytes than allowed. It is listed anyway, so that its size is known.
type TooMuchError struct{ Bytes, Most int64 }

func (e *TooMuchError) Error() string {
	return fmt.Sprintf("has %d bytes, and may bring %d: %s names what is not needed", e.Bytes, e.Most, IgnoreFile)
}

// add lists a regular file, which is a mount or inside one.
func (s *Set) add(m *mount, to string, st fs.FileInfo) {
	mode := fs.FileMode(0o644)
	if st.Mode()&0o100 != 0 {
		mode = 0o755
	}
	s.entries = append(s.entries, entry{File: guest.File{Path: to, Mode: mode, Size: st.Size(), ModTime: st.ModTime()},
		from: m, stamp: stampOf(st)})
	s.bytes = sum(s.bytes, st.Size())
}

// Bytes returns the total size.
func (s *Set) Bytes() int64 { return s.bytes }

// Memory returns the memory that the set needs in a guest whose kernel stores files in whole pages, plus perFile
// bytes for each file.
func (s *Set) Memory(perFile int64) int64 {
	const page = 4096
	total := int64(len(s.entries)) * perFile
	for _, e := range s.entries {
		total = sum(total, sum(e.Size, page-1)&^(page-1))
	}
	return total
}

// Count returns the number of files, folders and links.
func (s *Set) Count() int { return len(s.entries) }

// NotText returns the first path inside that is not UTF-8 text, or "".
func (s *Set) NotText() string {
	for _, e := range s.entries {
		if !utf8.ValidString(e.Path) {
			return e.Path
		}
	}
	return ""
}

// Guest receives files; a *guest.Conn implements it.
type Guest interface {
	// Put creates a file, folder or link. It reads the content, which is nil except for a regular file, before it
	// returns.
	Put(f guest.File, content io.Reader) error
}

// Sent is the progress of sending.
type Sent struct {
	Files, AllFiles int // folders and links among them
	Bytes, AllBytes int64
}

// Part selects the part of a set to send.
type Part int

const (
	All        Part = iota
	OnlySteady      // files that Steady found
	AllButSteady
)

func (p Part) has(e entry) bool { return p == All || e.steady == (p == OnlySteady) }

// Put sends a part of the set into the guest. sent is called before each file.
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

// At reports whether the set has an entry at a path.
func (s *Set) At(p string) bool {
	return slices.ContainsFunc(s.entries, func(e entry) bool { return e.Path == p })
}

// Under reports whether a path is in a mounted folder.
func (s *Set) Under(p string) bool {
	return slices.ContainsFunc(s.mounts, func(m *mount) bool { return m.root != nil && within(m.guest, p) })
}

// Paths returns the guest paths of the mounts.
func (s *Set) Paths() (list []string) {
	for _, m := range s.mounts {
		list = append(list, m.guest)
	}
	return list
}

// Patience bounds the time to send the whole set.
func (s *Set) Patience() time.Duration { return Patience(s.bytes, len(s.entries)) }

// Patience returns the time limit for sending files into a guest: a second for each MiB, and 10 ms for each file.
func Patience(bytes int64, count int) time.Duration {
	return time.Duration(bytes>>20)*time.Second + time.Duration(count)*10*time.Millisecond
}

// Close closes all mounts.
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

// within reports whether a path is a folder or below it, both without links and "..".
func within(folder, p string) bool {
	rel, err := filepath.Rel(folder, p)
	return err == nil && filepath.IsLocal(rel)
}
