package fleet

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/record"
)

// Limits of an archive from another party.
const (
	maxNames   = 100_000 // entries, and folders above them that have none
	maxNesting = 128     // nested folders
	maxRoom    = 2 << 30 // bytes on a disk: whole blocks of files, sparse ones too, and a block for each name
	diskBlock  = 4 << 10
)

// room is the number of names and bytes that an archive may still use on a disk.
type room struct{ names, bytes int64 }

// take counts a file, folder or link of the given size.
func (r *room) take(size int64) error {
	if r.names--; r.names < 0 {
		return fmt.Errorf("%w: it makes more than %d files and folders", errMalformed, maxNames)
	}
	if size < 0 || size > maxRoom {
		r.bytes = -1
	} else {
		r.bytes -= diskBlock + (size+diskBlock-1)/diskBlock*diskBlock
	}
	if r.bytes < 0 {
		return fmt.Errorf("%w: its files have more than %d bytes, in whole blocks", errMalformed, maxRoom)
	}
	return nil
}

// Names in the archive of a run's results; artifacts from /out are below outPrefix.
const (
	nameStdout  = "stdout"
	nameStderr  = "stderr"
	nameNetlog  = "netlog"
	nameConsole = "console"
	outPrefix   = "out/"
)

// packInputs writes a run's files into a tar.
func packInputs(ctx context.Context, in *hostfiles.Set, to io.Writer) error {
	w := tar.NewWriter(to)
	if err := in.Put(ctx, tarGuest{w}, hostfiles.All, func(hostfiles.Sent) {}); err != nil {
		return err
	}
	return w.Close()
}

type tarGuest struct{ w *tar.Writer }

func (g tarGuest) Put(f guest.File, content io.Reader) error {
	// Only the files' own times are used, so the same files give the same archive.
	h := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: int64(f.Mode.Perm()), Size: f.Size, ModTime: f.ModTime,
		Format: tar.FormatPAX}
	switch f.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Size = tar.TypeDir, 0
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname, h.Size, h.Mode = tar.TypeSymlink, f.Target, 0, 0o777
	default:
		h.Typeflag = tar.TypeReg
	}
	if err := g.w.WriteHeader(h); err != nil || content == nil {
		return err
	}
	_, err := io.Copy(g.w, content)
	return err
}

// unpack extracts an untrusted tar into a new folder in dir, and returns its path. It writes nothing outside, whatever
// names and links the archive has. Package hostfiles checks links again before a machine gets them.
func unpack(ctx context.Context, from io.Reader, dir string, left room) (string, error) {
	folder := filepath.Join(dir, "files")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return "", err
	}
	defer root.Close()
	from = inTime{ctx, from}
	r := tar.NewReader(from)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = unpackEntry(root, h, r, &left)
		}
		if err != nil {
			return "", fmt.Errorf("archive: %w", err)
		}
	}
	_, err = io.Copy(io.Discard, from) // to the end, where the checksum is verified
	return folder, err
}

func unpackEntry(root *os.Root, h *tar.Header, r io.Reader, left *room) error {
	name := path.Clean(h.Name)
	if !filepath.IsLocal(name) || len(name) > hostfiles.MaxPath || strings.Count(name, "/") > maxNesting {
		return fmt.Errorf("%w: entry %.80q", errMalformed, h.Name)
	}
	if err := left.take(h.Size); err != nil {
		return err
	}
	if err := makeFolder(root, path.Dir(name), left); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		return unpackFile(root, name, h, r)
	}
	return fmt.Errorf("%w: entry %.80q is neither file, folder nor link", errMalformed, h.Name)
}

// makeFolder creates a folder and its parents, and counts the new ones.
func makeFolder(root *os.Root, name string, left *room) error {
	if name == "." {
		return nil
	}
	err := root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeFolder(root, path.Dir(name), left); err == nil {
			err = root.Mkdir(name, 0o700)
		}
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return left.take(0)
}

func unpackFile(root *os.Root, name string, h *tar.Header, r io.Reader) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600|fs.FileMode(h.Mode)&0o100)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err = errors.Join(err, f.Close()); err == nil && !h.ModTime.IsZero() {
		err = root.Chtimes(name, time.Time{}, h.ModTime)
	}
	return err
}

// Left passes a run's results to add: stdout, stderr, netlog, console, and out/… for each artifact.
type Left func(add func(name string, perm fs.FileMode, size int64, content io.Reader) error) error

// pack writes the results into a tar, and returns the sizes of the streams.
func pack(ctx context.Context, to io.Writer, left Left) (stdout, stderr int64, err error) {
	w := tar.NewWriter(to)
	err = left(func(name string, perm fs.FileMode, size int64, content io.Reader) error {
		switch name {
		case nameStdout:
			stdout = size
		case nameStderr:
			stderr = size
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: int64(perm.Perm()), Size: size, Typeflag: tar.TypeReg,
			Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err := io.CopyN(w, inTime{ctx, content}, size)
		return err
	})
	return stdout, stderr, errors.Join(err, w.Close())
}

// sink receives a run's results at the submitter: a *unitask.FleetRun.
type sink interface {
	Console(io.Reader) error
	Decided(line []byte) (more bool)
	Artifact(name string, perm fs.FileMode, content io.Reader) error
}

// unpackLeft passes a run's results from a worker to the sink, without the first skip bytes of each stream, which are
// there already. The worker is not trusted: the sink limits and checks everything.
func unpackLeft(ctx context.Context, from io.Reader, to sink, streams map[string]io.Writer,
	skip map[string]int64) error {
	from = inTime{ctx, from}
	r, left, seen := tar.NewReader(from), room{maxNames, maxRoom}, map[string]bool{}
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = left.take(h.Size)
		}
		if err != nil {
			return fmt.Errorf("what the run left: %w", err)
		}
		out, isOut := strings.CutPrefix(h.Name, outPrefix)
		if h.Typeflag != tar.TypeReg || !isOut && seen[h.Name] {
			return fmt.Errorf("what the run left: %w: entry %.80q", errMalformed, h.Name)
		}
		switch {
		case isOut:
			if err = to.Artifact(out, fs.FileMode(h.Mode).Perm(), r); errors.Is(err, record.ErrEnough) {
				err = nil
			}
		case streams[h.Name] != nil:
			if _, err = io.CopyN(io.Discard, r, min(skip[h.Name], h.Size)); err == nil {
				_, err = io.Copy(streams[h.Name], r)
			}
		case h.Name == nameConsole:
			err = to.Console(r)
		case h.Name == nameNetlog:
			err = eachLine(r, to.Decided)
		default:
			continue
		}
		if err != nil {
			return err
		}
		if !isOut {
			seen[h.Name] = true
		}
	}
	_, err := io.Copy(io.Discard, from)
	return err
}

var _ sink = (*unitask.FleetRun)(nil)
