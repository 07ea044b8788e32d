package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archive returns a tar of the given headers, each with its content.
func archive(t testing.TB, entries ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := make([]byte, h.Size)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func everything(name string) (string, bool) { return name, true }

func TestUnpackTar(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		says string // of the error
	}{
		"leads up":        {archive(t, &tar.Header{Name: "../evil", Typeflag: tar.TypeReg}), "leads out"},
		"leads up inside": {archive(t, &tar.Header{Name: "a/../../evil", Typeflag: tar.TypeReg}), "leads out"},
		"absolute":        {archive(t, &tar.Header{Name: "/etc/evil", Typeflag: tar.TypeReg}), "leads out"},
		"a device":        {archive(t, &tar.Header{Name: "x", Typeflag: tar.TypeChar}), "neither a file"},
		"a hard link": {archive(t, &tar.Header{Name: "x", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}),
			"not unpacked"},
		"a hard link up": {archive(t, &tar.Header{Name: "x", Linkname: "../part.json", Typeflag: tar.TypeLink}),
			"not unpacked"},
		"a hard link early": {archive(t, &tar.Header{Name: "x", Linkname: "y", Typeflag: tar.TypeLink}), "no file"},
		"a hard link around": {archive(t, &tar.Header{Name: "y", Linkname: "/etc/passwd", Typeflag: tar.TypeSymlink},
			&tar.Header{Name: "x", Linkname: "y", Typeflag: tar.TypeLink}), "no file"},
		"a hard link inside": {archive(t, &tar.Header{Name: "a/y", Typeflag: tar.TypeReg, Size: 5},
			&tar.Header{Name: "x", Linkname: "./a/y", Typeflag: tar.TypeLink}), ""},
		"the same twice": {archive(t, &tar.Header{Name: "x", Typeflag: tar.TypeReg},
			&tar.Header{Name: "x", Typeflag: tar.TypeReg}), "exists"},
		"through a link": {archive(t, &tar.Header{Name: "x", Linkname: "/tmp", Typeflag: tar.TypeSymlink},
			&tar.Header{Name: "x/evil", Typeflag: tar.TypeReg}), ""},
		"cut": {archive(t, &tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 5000})[:2000],
			"unexpected EOF"},
		"not an archive":     {bytes.Repeat([]byte("x"), 2000), "read archive"},
		"a plain file":       {archive(t, &tar.Header{Name: "./a/b", Typeflag: tar.TypeReg, Size: 5, Mode: 0o755}), ""},
		"a folder":           {archive(t, &tar.Header{Name: "a/", Typeflag: tar.TypeDir}), ""},
		"an empty archive":   {archive(t), ""},
		"nothing whatsoever": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			dir := filepath.Join(outside, "part")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			err := unpackTar(bytes.NewReader(c.in), dir, everything)
			if (err == nil) != (c.says == "") && name != "through a link" {
				t.Fatalf("%v", err)
			}
			if err != nil && c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say %q", err, c.says)
			}
			if _, err := os.Lstat("/tmp/evil"); err == nil {
				os.Remove("/tmp/evil")
				t.Error("wrote through a link")
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Errorf("wrote outside: %v", entries)
			}
		})
	}
}

func TestUnpackTarBounds(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range maxArchiveFiles + 1 {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeDir}); err != nil {
			t.Fatal(err)
		}
	}
	if err := unpackTar(&b, t.TempDir(), func(string) (string, bool) { return "", false }); err == nil ||
		!strings.Contains(err.Error(), "more than") {
		t.Errorf("%v", err)
	}
	big := archive(t, &tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: 1})
	// A header that claims four gigabytes is refused before anything is read.
	h, err := tar.NewReader(bytes.NewReader(big)).Next()
	if err != nil {
		t.Fatal(err)
	}
	h.Size = 4 << 30
	for what, want := range map[string]selector{"wanted": everything,
		"not wanted": func(string) (string, bool) { return "", false }} {
		b.Reset()
		if err := tar.NewWriter(&b).WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if err := unpackTar(&b, t.TempDir(), want); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzUnpackTar(f *testing.F) {
	f.Add(archive(f, &tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Size: 5},
		&tar.Header{Name: "l", Linkname: "a", Typeflag: tar.TypeSymlink}))
	f.Add(archive(f, &tar.Header{Name: "../x", Typeflag: tar.TypeReg}))
	f.Fuzz(func(t *testing.T, in []byte) {
		outside := t.TempDir()
		dir := filepath.Join(outside, "part")
		if os.Mkdir(dir, 0o755) != nil {
			return
		}
		_ = unpackTar(bytes.NewReader(in), dir, everything)
		if entries, _ := os.ReadDir(outside); len(entries) != 1 {
			t.Errorf("wrote outside: %v", entries)
		}
	})
}
