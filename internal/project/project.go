// Package project remembers which folder of the host a session got, and finds what the session changed in it.
//
// Recorder keeps digests of what is sent into a machine, and the texts that a diff or a merge needs. Manifest compares
// them with a listing from the machine, which untrusted code may have made. Every name, count and size in it is
// checked: a wrong one can hide a change, but name no file outside the folder. The package writes only to the session's
// record. Package session calls it in the machine's process, package cli where changes are reviewed.
package project

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/hostfiles"
)

// Files in a session's record.
const (
	indexFile = "project.json.gz"
	TextsFile = "project.texts" // removed when the session ends
)

// Limits of what is kept.
const (
	maxText  = 1 << 20   // bytes of a file whose text is kept: longer ones are not shown as lines
	maxTexts = 256 << 20 // bytes of all kept texts, compressed
	maxIndex = 256 << 20 // bytes of the index, when it is read
)

// GitFolder is what no listing, no diff and no apply has.
const GitFolder = ".git"

// ErrNone means that a session has no project.
var ErrNone = errors.New("the session has no project: unitask session new --project brings one")

// Manifest is what a session got.
type Manifest struct {
	Session string            `json:"session"`
	Host    string            `json:"host"`  // the folder, absolute
	Guest   string            `json:"guest"` // its path in the machine
	Branch  string            `json:"branch,omitempty"`
	Mark    string            `json:"mark"` // the machine's time before which all of it was there: seconds, a dot, digits
	Folders map[string]uint64 `json:"folders"`
	Files   []File            `json:"files"` // sorted by path

	texts string // the file of the texts
}

// File is a file or link that a session got.
type File struct {
	Path   string `json:"p"` // with slashes, below the folder
	Exec   bool   `json:"x,omitempty"`
	Link   string `json:"l,omitempty"` // the target of a link
	Size   int64  `json:"s,omitempty"`
	Digest Digest `json:"d,omitempty"`
	At     int64  `json:"a,omitempty"` // where the kept text begins
	Kept   int64  `json:"k,omitempty"` // its compressed bytes; 0 if it is not kept
}

// Digest is the SHA-256 of a file.
type Digest []byte

// Recorder passes files on to a machine, and records them. It implements hostfiles.Guest.
type Recorder struct {
	to    hostfiles.Guest
	texts *os.File
	at    int64
	made  Manifest
}

// Record returns a Recorder of a folder, which appears at a path in the machine. dir is the session's record.
func Record(to hostfiles.Guest, dir, host, guest string) (*Recorder, error) {
	texts, err := os.OpenFile(filepath.Join(dir, TextsFile), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return &Recorder{to: to, texts: texts, made: Manifest{Host: host, Guest: guest, Folders: map[string]uint64{}}}, nil
}

// Put implements hostfiles.Guest.
func (r *Recorder) Put(f guest.File, content io.Reader) error {
	name, err := filepath.Rel(r.made.Guest, f.Path)
	if err != nil {
		return err
	}
	inGit := name == GitFolder || strings.HasPrefix(name, GitFolder+"/")
	if inGit || f.Mode.IsDir() || !utf8.ValidString(name) { // JSON has no other names
		return r.to.Put(f, content)
	}
	one := File{Path: name, Exec: f.Mode&0o100 != 0 && f.Mode.IsRegular(), Link: f.Target, Size: f.Size}
	if f.Mode&fs.ModeSymlink != 0 {
		r.made.Files = append(r.made.Files, one)
		return r.to.Put(f, content)
	}
	sum, head := sha256.New(), &bytes.Buffer{}
	both := []io.Writer{sum}
	if f.Size <= maxText && !slices.Contains(strings.Split(name, "/"), "node_modules") {
		both = append(both, head)
	}
	if err := r.to.Put(f, io.TeeReader(content, io.MultiWriter(both...))); err != nil {
		return err
	}
	one.Digest = sum.Sum(nil)
	if head.Len() > 0 && IsText(head.Bytes()) {
		if err := r.keep(&one, head.Bytes()); err != nil {
			return err
		}
	}
	r.made.Files = append(r.made.Files, one)
	return nil
}

// keep adds a file's text to the texts, if there is room.
func (r *Recorder) keep(f *File, text []byte) error {
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		return err
	}
	_, err = w.Write(text)
	if err = errors.Join(err, w.Close()); err != nil || r.at+int64(packed.Len()) > maxTexts {
		return err
	}
	f.At, f.Kept = r.at, int64(packed.Len())
	n, err := r.texts.Write(packed.Bytes())
	r.at += int64(n)
	return err
}

// Close closes the texts.
func (r *Recorder) Close() error { return r.texts.Close() }

// Save writes the index. list is a listing that was made behind the last file: it has the folders, and the time.
func (r *Recorder) Save(dir, session, branch string, list *Listing) error {
	b := &r.made
	b.Session, b.Branch, b.Mark = session, branch, list.before()
	for _, e := range list.Entries {
		if e.Kind == KindFolder {
			b.Folders[e.Path] = e.Inode
		}
	}
	slices.SortFunc(b.Files, func(x, y File) int { return strings.Compare(x.Path, y.Path) })
	return b.save(dir)
}

func (b *Manifest) save(dir string) error {
	return atomicfile.Fill(filepath.Join(dir, indexFile), 0o600, func(f *os.File) error {
		w, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
		if err != nil {
			return err
		}
		return errors.Join(json.NewEncoder(w).Encode(b), w.Close())
	})
}

// Open reads what a session got from its record. The error is ErrNone if it got nothing.
func Open(dir string) (*Manifest, error) {
	f, err := os.Open(filepath.Join(dir, indexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNone
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	b := &Manifest{texts: filepath.Join(dir, TextsFile)}
	if err := json.NewDecoder(io.LimitReader(r, maxIndex)).Decode(b); err != nil {
		return nil, fmt.Errorf("read what the session got: %w", err)
	}
	return b, nil
}

// Inherit gives a fork's record what its parent got.
func Inherit(parent, fork, session string) error {
	b, err := Open(parent)
	if errors.Is(err, ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	err = os.Link(b.texts, filepath.Join(fork, TextsFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b.Session = session
	return b.save(fork)
}

// Forget removes the texts from a record. The digests stay.
func Forget(dir string) { _ = os.Remove(filepath.Join(dir, TextsFile)) }

// File returns what the session got at a path, nil for nothing.
func (b *Manifest) File(path string) *File {
	at, found := slices.BinarySearchFunc(b.Files, path, func(f File, p string) int { return strings.Compare(f.Path, p) })
	if !found {
		return nil
	}
	return &b.Files[at]
}

// Text returns the text of a file as the session got it; ok is false if it is not kept.
func (b *Manifest) Text(f *File) (text []byte, ok bool, err error) {
	if f.Kept == 0 {
		return nil, f.Size == 0 && f.Link == "", nil
	}
	texts, err := os.Open(b.texts)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer texts.Close()
	text, err = io.ReadAll(io.LimitReader(flate.NewReader(io.NewSectionReader(texts, f.At, f.Kept)), maxText+1))
	if sum := sha256.Sum256(text); err == nil && !bytes.Equal(sum[:], f.Digest) {
		err = fmt.Errorf("%s: the text that was kept of it is damaged", f.Path)
	}
	return text, err == nil, err
}

// IsText reports whether a file can be shown as lines.
func IsText(text []byte) bool {
	return len(text) <= maxText && utf8.Valid(text) && bytes.IndexByte(text, 0) < 0
}
