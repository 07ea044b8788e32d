package fleet

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// endless is an archive without an end: entry repeats forever with a new name and size.
type endless struct {
	entry func(n int) *tar.Header
	n     int
	have  bytes.Buffer
	after func(n int)
}

func (e *endless) Read(p []byte) (int, error) {
	for e.have.Len() < len(p) {
		h := e.entry(e.n)
		e.n++
		if e.after != nil {
			e.after(e.n)
		}
		var one bytes.Buffer
		w := tar.NewWriter(&one)
		if err := w.WriteHeader(h); err != nil {
			return 0, err
		}
		_, _ = w.Write(make([]byte, h.Size))
		_ = w.Flush()
		e.have.Write(one.Bytes())
	}
	return e.have.Read(p)
}

// inodes returns the number of files, folders and links below a folder, and the blocks that they take.
func inodes(t *testing.T, folder string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(folder, func(_ string, _ fs.DirEntry, err error) error {
		n++
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return n - 1
}

// An archive can't create more on a worker's disk than allowed, whatever its entries' names are. Folders without an
// entry count, and a file counts by its blocks.
func TestAttackArchives(t *testing.T) {
	t.Parallel()
	const names, blocks = 400, 300
	deep := strings.Repeat("d/", maxNesting-2)
	for _, row := range []struct {
		name  string
		left  room
		entry func(n int) *tar.Header
		most  int64
	}{
		{"folders without an entry", room{names, maxRoom}, func(n int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("%d/%sx", n, deep), Typeflag: tar.TypeReg}
		}, names},
		{"folders above folders", room{names, maxRoom}, func(n int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("%d/%sx", n, deep), Typeflag: tar.TypeDir}
		}, names},
		{"folders above links", room{names, maxRoom}, func(n int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("%d/%sx", n, deep), Linkname: "x", Typeflag: tar.TypeSymlink}
		}, names},
		{"folders in other places", room{names, maxRoom}, func(n int) *tar.Header {
			return &tar.Header{Name: fmt.Sprintf("a/%d/../%d/%d", n, n*7%5, n), Typeflag: tar.TypeDir}
		}, names},
		{"the same folder again", room{names, maxRoom}, func(int) *tar.Header {
			return &tar.Header{Name: "a/b",
				Typeflag: tar.TypeDir}
		}, names},
		{"files of one byte", room{maxNames, blocks * diskBlock},
			func(n int) *tar.Header { return &tar.Header{Name: fmt.Sprint(n), Size: 1, Typeflag: tar.TypeReg} }, blocks / 2},
		{"empty files", room{maxNames, blocks * diskBlock},
			func(n int) *tar.Header { return &tar.Header{Name: fmt.Sprint(n), Typeflag: tar.TypeReg} }, blocks},
		{"empty folders", room{maxNames, blocks * diskBlock},
			func(n int) *tar.Header { return &tar.Header{Name: fmt.Sprint(n), Typeflag: tar.TypeDir} }, blocks},
	} {
		dir := t.TempDir()
		_, err := unpack(t.Context(), &endless{entry: row.entry}, dir, row.left)
		got := "bounded"
		if n := inodes(t, filepath.Join(dir, "files")); !errors.Is(err, errMalformed) || n > row.most {
			got = fmt.Sprintf("%d inodes, %v", n, err)
		}
		attack.Check(t, "an archive makes on a worker's disk "+row.name, "bounded", got)
	}
}

// nowhere is a sink that discards everything.
type nowhere struct{}

func (nowhere) Console(r io.Reader) error { _, err := io.Copy(io.Discard, r); return err }
func (nowhere) Decided([]byte) bool       { return true }
func (nowhere) Artifact(_ string, _ fs.FileMode, r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// Unpacking and packing stop when the run ends: at its time limit, and with the worker.
func TestAttackArchivesWithoutEnd(t *testing.T) {
	t.Parallel()
	file := func(n int) *tar.Header {
		return &tar.Header{Name: fmt.Sprint("out/", n), Size: 1, Typeflag: tar.TypeReg}
	}
	for name, do := range map[string]func(context.Context, io.Reader) error{
		"what a run brings": func(ctx context.Context, from io.Reader) error {
			_, err := unpack(ctx, from, t.TempDir(), room{1 << 40, 1 << 60})
			return err
		},
		"what a run leaves": func(ctx context.Context, from io.Reader) error {
			return unpackLeft(ctx, from, nowhere{}, nil, nil)
		},
		"a long file of it": func(ctx context.Context, from io.Reader) error {
			_, _, err := pack(ctx, io.Discard, func(add func(string, fs.FileMode, int64, io.Reader) error) error {
				return add("out/x", 0o600, 1<<60, from)
			})
			return err
		},
	} {
		ctx, over := context.WithCancelCause(t.Context())
		err := do(ctx, &endless{entry: file, after: func(n int) {
			if n == 100 {
				over(errDrained)
			}
		}})
		got := "ended"
		if !errors.Is(err, errDrained) {
			got = fmt.Sprint(err)
		}
		attack.Check(t, "the end of a worker that is busy with "+name, "ended", got)
	}
}
