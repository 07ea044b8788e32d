package record

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// File is a file of a record's folder as it was when the run ended.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

const (
	// maxFiles bounds the entries of a record's folder; unitask makes some ten.
	maxFiles = 64
	// maxFileBytes bounds these files together: both streams have 1 GiB at most.
	maxFileBytes = 4 << 30
	// maxArtifactBytes bounds the artifacts that are compared, as a policy bounds those of a run.
	maxArtifactBytes = 4 << 30
	// maxDifferences bounds the differences that are named.
	maxDifferences = 100
)

// describeFiles returns the regular files of a record's folder, except those that change: run.json, lock and reserve.
// It returns nil if one can't be read: a record without digests is no failure of its run.
func describeFiles(dir string) (list []File) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil
	}
	defer root.Close()
	entries, err := readDir(root, ".", maxFiles)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || changing(e.Name()) {
			continue
		}
		info, err := root.Lstat(e.Name())
		if err != nil {
			return nil
		}
		sum, err := digestIn(context.Background(), root, e.Name(), info.Size())
		if err != nil {
			return nil
		}
		list = append(list, File{e.Name(), info.Size(), sum})
	}
	return list
}

// changing reports whether describeFiles leaves out a file of a record's folder.
func changing(name string) bool {
	return slices.Contains([]string{recordFile, lockFile, reserveFile}, name)
}

// Digest returns the SHA-256 of the run.json that Finish has written, "" if it can't be read.
func (r *Run) Digest() string {
	root, err := os.OpenRoot(r.dir)
	if err != nil {
		return ""
	}
	defer root.Close()
	sum, err := digestRecord(context.Background(), root)
	if err != nil {
		return ""
	}
	return sum
}

func digestRecord(ctx context.Context, root *os.Root) (string, error) {
	info, err := root.Lstat(recordFile)
	if err == nil && info.Size() > maxRecord {
		err = fmt.Errorf("has more than %d bytes", maxRecord)
	}
	if err != nil {
		return "", err
	}
	return digestIn(ctx, root, recordFile, info.Size())
}

// errKind means that a name is not that of a regular file.
var errKind = errors.New("is not a regular file")

// digestIn returns the SHA-256 of a regular file below a folder, which must have that size. It follows no link.
func digestIn(ctx context.Context, root *os.Root, name string, size int64) (string, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errKind
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return DigestOf(ctx, f, size)
}

// DigestOf returns the SHA-256 of an open regular file, which must have that size. It ends with the context.
func DigestOf(ctx context.Context, f *os.File, size int64) (string, error) {
	switch info, err := f.Stat(); {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", errKind
	case info.Size() != size:
		return "", fmt.Errorf("has %d bytes, not %d", info.Size(), size)
	}
	sum := sha256.New()
	switch n, err := io.Copy(sum, readerUntil{ctx, io.LimitReader(f, size+1)}); {
	case err != nil:
		return "", plainError(err)
	case n != size:
		return "", errors.New("changes while it is read")
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// readerUntil is a reader that ends with a context.
type readerUntil struct {
	ctx context.Context
	io.Reader
}

func (r readerUntil) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// readDir returns the entries of a folder, sorted by their names; it returns an error if they are more than the
// parameter most.
func readDir(root *os.Root, name string, most int) ([]fs.DirEntry, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := f.ReadDir(most + 1)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if len(list) > most {
		return nil, fmt.Errorf("%w: %d", errEntries, most)
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, nil
}

// errEntries means that a folder of a record has more entries than unitask makes.
var errEntries = errors.New("has more entries than a record can have")

// Change is how a file of a record differs from what was recorded.
type Change string

const (
	Differs Change = "differs"
	Missing Change = "missing"
	Extra   Change = "extra" // nothing recorded it
)

// Difference is a file of a record that is not as it was recorded.
type Difference struct {
	Path   string `json:"path"` // in the record's folder
	Change Change `json:"change"`
	Detail string `json:"detail"`
}

// Comparison is what Compare found.
type Comparison struct {
	Files       int          `json:"files"` // that were compared, run.json included if its digest is known
	Differences []Difference `json:"differences"`
	More        int          `json:"more,omitempty"` // differences that are not named

	ctx  context.Context
	root *os.Root
}

// Compare compares a run's folder with its record, and its run.json with a digest that was kept elsewhere; "" is none.
// An error means that not everything was compared: that of the context, or of the folder.
func (s *Store) Compare(ctx context.Context, id string, rec *Record, artifacts []Artifact,
	digest string) (*Comparison, error) {
	if !validID(id) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	root, err := os.OpenRoot(filepath.Join(s.dir, id))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	c := &Comparison{Differences: []Difference{}, ctx: ctx, root: root}
	if digest != "" {
		c.compare(recordFile, func() (string, error) { return digestRecord(ctx, root) }, digest)
	}
	if rec.ID != id {
		c.add(recordFile, Differs, fmt.Sprintf("it is of the run %.100q", rec.ID))
	}
	if rec.Files != nil {
		c.folder(rec.Files)
	}
	c.artifacts(artifacts)
	return c, ctx.Err()
}

func (c *Comparison) add(path string, change Change, detail string) {
	if len(c.Differences) == maxDifferences {
		c.More++
		return
	}
	c.Differences = append(c.Differences, Difference{path, change, detail})
}

// compare compares a file's digest with the recorded one.
func (c *Comparison) compare(path string, digest func() (string, error), want string) {
	c.Files++
	switch got, err := digest(); {
	case c.ctx.Err() != nil:
	case errors.Is(err, fs.ErrNotExist):
		c.add(path, Missing, "there is no such file")
	case err != nil:
		c.add(path, Differs, plainError(err).Error())
	case got != strings.ToLower(want):
		c.add(path, Differs, fmt.Sprintf("its SHA-256 is %s, not %.80s", got, want))
	}
}

// folder compares the files of the record's folder.
func (c *Comparison) folder(files []File) {
	bytes := int64(0)
	for _, f := range files[:min(len(files), maxFiles)] {
		bytes += min(max(f.Size, 0), maxFileBytes+1)
	}
	if len(files) > maxFiles || bytes > maxFileBytes {
		c.add(recordFile, Differs, fmt.Sprintf("it lists %d files of %d bytes: a record has at most %d, of %d bytes",
			len(files), bytes, maxFiles, int64(maxFileBytes)))
		return
	}
	known := map[string]bool{ArtifactsDir: true}
	for _, f := range files {
		switch {
		case BadName(f.Name) != "" || path.Base(f.Name) != f.Name || changing(f.Name) || known[f.Name]:
			c.add(recordFile, Differs, fmt.Sprintf("it lists a file %.100q that can't be", f.Name))
		default:
			known[f.Name] = true
			c.compare(f.Name, func() (string, error) { return digestIn(c.ctx, c.root, f.Name, f.Size) }, f.SHA256)
		}
	}
	entries, err := readDir(c.root, ".", 2*maxFiles)
	if err != nil {
		c.add(".", Extra, plainError(err).Error())
	}
	for _, e := range entries {
		if !known[e.Name()] && !changing(e.Name()) {
			c.add(e.Name(), Extra, "the record does not list it")
		}
	}
}

// artifacts compares the artifacts with those that the result lists.
func (c *Comparison) artifacts(list []Artifact) {
	bytes := int64(0)
	for _, a := range list[:min(len(list), maxArtifacts)] {
		bytes += min(max(a.Size, 0), maxArtifactBytes+1)
	}
	if len(list) > maxArtifacts || bytes > maxArtifactBytes {
		c.add(recordFile, Differs, fmt.Sprintf("it lists %d artifacts of %d bytes: a run has at most %d, of %d bytes",
			len(list), bytes, maxArtifacts, int64(maxArtifactBytes)))
		return
	}
	if info, err := c.root.Lstat(ArtifactsDir); err != nil || !info.IsDir() {
		switch {
		case err == nil:
			c.add(ArtifactsDir, Extra, "it is no folder")
		case len(list) > 0:
			c.Files += len(list)
			c.add(ArtifactsDir, Missing, fmt.Sprintf("with %d artifacts: unitask removes the oldest when the store "+
				"reaches --store-bytes", len(list)))
		}
		return
	}
	known := map[string]bool{}
	for _, a := range list {
		name := path.Join(ArtifactsDir, a.Path)
		if BadName(a.Path) != "" || known[name] {
			c.add(recordFile, Differs, fmt.Sprintf("it lists an artifact %.100q that can't be", a.Path))
			continue
		}
		known[name] = true
		c.compare(name, func() (string, error) { return digestIn(c.ctx, c.root, name, a.Size) }, a.SHA256)
	}
	left := maxArtifacts + 2*maxFolders
	c.extras(ArtifactsDir, known, maxNesting, &left)
}

// extras adds the unknown entries below a folder. Folders do not count: they may be left from refused files.
func (c *Comparison) extras(dir string, known map[string]bool, depth int, left *int) {
	entries, err := readDir(c.root, dir, *left)
	if err != nil || c.ctx.Err() != nil {
		if err != nil {
			c.add(dir, Extra, plainError(err).Error())
		}
		return
	}
	*left -= len(entries)
	for _, e := range entries {
		name := path.Join(dir, e.Name())
		switch {
		case e.IsDir() && depth > 0:
			c.extras(name, known, depth-1, left)
		case e.IsDir():
			c.add(name, Extra, fmt.Sprintf("it is more than %d folders deep", maxNesting))
		case !known[name]:
			c.add(name, Extra, "the record does not list it")
		}
	}
}
