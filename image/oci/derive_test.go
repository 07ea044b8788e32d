package oci

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// diskOf returns the disk of an image.
func diskOf(t *testing.T, im *Image) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	stats, err := im.Write(t.Context(), f, DefaultLimits)
	if err == nil {
		err = f.Truncate(stats.Size)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func layerOver(data []byte) Layer {
	return Layer{hashOf(data).String(), func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
}

// manifest returns the entries of a disk, one a line.
func manifest(t *testing.T, disk io.ReaderAt) string {
	t.Helper()
	var out strings.Builder
	err := walkDisk(disk, func(h *tar.Header, r io.Reader) error {
		text := make([]byte, min(h.Size, 20)) // only files have one
		if _, err := io.ReadFull(r, text); err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s %c %o %d:%d %s %d %q\n", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, h.ModTime.Unix(),
			text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A disk that is read back and written again is the same, with every kind of entry.
func TestDiskReadBack(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 40000)
	items := []item{dir("a"), text("a/one", "1"), hardlink("a/two", "a/one"), symlink("l", "a/one"),
		symlink("long", strings.Repeat("x/", 400)+"y"),
		{name: "owned", text: "o", mode: 0o4711, uid: 3_000_000}, text("big", big), text("empty", ""), dir("many")}
	for i := range 300 {
		items = append(items, text(fmt.Sprintf("many/a-name-that-fills-blocks-of-folders-%d", i), "x"))
	}
	first := diskOf(t, imageOf(tarOf(t, items...)))
	im, err := Derive("sha256:00", first, "amd64", Config{})
	if err != nil {
		t.Fatal(err)
	}
	second := diskOf(t, im)
	was, is := manifest(t, first), manifest(t, second)
	// its contents are in another order than the layer's
	if im, err = Derive("sha256:00", second, "amd64", Config{}); err != nil {
		t.Fatal(err)
	}
	third := diskOf(t, im)
	if was != is || strings.Count(is, "\n") != len(items)+1 ||
		!strings.Contains(is, `owned 0 4711 3000000:3000000  1234567890 "o"`) ||
		!strings.Contains(is, "a/two 1 644 0:0 a/one ") {
		t.Errorf("was\n%.1500s\nis\n%.1500s", was, is)
	}
	a, errA := os.ReadFile(second.Name())
	b, errB := os.ReadFile(third.Name())
	if err := errors.Join(errA, errB); err != nil || !bytes.Equal(a, b) {
		t.Errorf("the disks differ: %v", err)
	}
}

func TestDerive(t *testing.T) {
	base := diskOf(t, imageOf(tarOf(t, dir("etc"), text("etc/a", "a"), text("etc/b", "b"), dir("old"), text("old/x", "x"),
		dir("etc/deep"), text("etc/deep/x", "x"))))
	over := layerOver(tarOf(t, text("etc/a", "new"), text("etc/.wh.b", ""), text("etc/.wh.nothing", ""),
		text("nowhere/.wh.x", ""), dir("old"), text("old/.wh..wh..opq", ""), text("old/y", "y")))
	im, err := Derive("sha256:00", base, "amd64", Config{Env: []string{"A=1"}}, over)
	if err != nil {
		t.Fatal(err)
	}
	got := manifest(t, diskOf(t, im))
	for _, want := range []string{`"new"`, "old/y", "etc/deep/x"} {
		if !strings.Contains(got, want) {
			t.Errorf("lacks %s:\n%s", want, got)
		}
	}
	if strings.Contains(got, "etc/b") || strings.Contains(got, "old/x") || strings.Contains(got, "wh.") ||
		strings.Contains(got, "nowhere") {
		t.Errorf("has what was taken away:\n%s", got)
	}
	for _, other := range []func() (*Image, error){
		func() (*Image, error) { return Derive("sha256:01", base, "amd64", im.Config, over) },
		func() (*Image, error) { return Derive("sha256:00", base, "amd64", im.Config) },
		func() (*Image, error) { return Derive("sha256:00", base, "amd64", Config{}, over) },
	} {
		if o, err := other(); err != nil || o.Digest == im.Digest {
			t.Errorf("another image has the same digest: %v", err)
		}
	}
	over.Open = func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(tarOf(t, text("etc/a", "evil")))), nil
	}
	im, err = Derive("sha256:00", base, "amd64", Config{}, over)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Write(t.Context(), &memoryDisk{}, DefaultLimits); err == nil ||
		!strings.Contains(err.Error(), "and the image says") {
		t.Errorf("a layer that was changed: %v", err)
	}
}

// memoryDisk is a temporary disk.
type memoryDisk struct{ data []byte }

func (m *memoryDisk) WriteAt(p []byte, at int64) (int, error) {
	if need := int(at) + len(p); need > len(m.data) {
		m.data = append(m.data, make([]byte, need-len(m.data))...)
	}
	return copy(m.data[at:], p), nil
}

func (m *memoryDisk) ReadAt(p []byte, at int64) (int, error) {
	return bytes.NewReader(m.data).ReadAt(p, at)
}

// Damaged disks cause errors, never panics, and reading them ends.
func TestDamagedDisk(t *testing.T) {
	disk := diskOf(t, imageOf(tarOf(t, dir("a"), text("a/one", "1"), symlink("l", "a/one"), dir("b"), text("b/c", "x"))))
	whole, err := os.ReadFile(disk.Name())
	if err != nil {
		t.Fatal(err)
	}
	errored := 0
	for at := 0; at < len(whole); at += 13 {
		if at > 3*blockSize && at < tableBlocks*blockSize {
			continue
		}
		bad := bytes.Clone(whole)
		bad[at] ^= 0xff
		n := 0
		if err := walkDisk(bytes.NewReader(bad), func(h *tar.Header, r io.Reader) error {
			if n++; n > 10000 {
				return errors.New("no end")
			}
			_, err := io.Copy(io.Discard, r)
			return err
		}); err != nil {
			errored++
		}
	}
	if errored == 0 {
		t.Error("no damage was found")
	}
	for _, short := range []int{0, 100, 1024, 5000, len(whole) / 2} {
		if err := walkDisk(bytes.NewReader(whole[:short]), func(*tar.Header, io.Reader) error { return nil }); err == nil {
			t.Errorf("%d bytes are taken for a disk", short)
		}
	}
}

// unchanging are the machine's own files, devices, and white-outs of missing files, between others.
var unchanging = []item{
	dir("proc"), text("proc/x", "x"), text("tmp/.wh.a", ""), text(".wh.proc", ""),
	text("etc/.wh.hosts", ""), text("etc/hosts", "x"), text("/absolute", "x"),
	item{name: "dev-sda", kind: tar.TypeBlock}, item{name: "null", kind: tar.TypeChar},
	item{name: "pipe", kind: tar.TypeFifo}, symlink("out", "../../../../etc"), text("out/passwd", "evil"),
	text("gone/.wh.x", ""), text(".wh.gone", ""),
}

// Layers from a machine that ran hostile code.
func TestHostileLayer(t *testing.T) {
	const end = "unitask/end"
	without := []string{"/proc", "/tmp", "/unitask", "/etc/hosts"}
	small := Limits{Bytes: 64 << 10, Entries: 20}
	var many []item
	for i := range 30 {
		many = append(many, text(fmt.Sprintf("f%d", i), ""))
	}
	finish := func(items ...item) []item { return append(items, text(end, "")) }
	for name, c := range map[string]struct {
		items []item
		says  string // of the error
	}{
		"upwards":                 {finish(text("../etc/passwd", "x")), "goes upwards"},
		"upwards within":          {finish(text("a/../../b", "x")), "goes upwards"},
		"a hard link upwards":     {finish(hardlink("a", "../../etc/passwd")), "which is not in the image"},
		"a hard link to the root": {finish(hardlink("a", "/")), "which is not in the image"},
		"a link of no length":     {finish(item{name: "a", kind: tar.TypeSymlink}), "a link to"},
		"a long name":             {finish(text(strings.Repeat("n", 256), "")), "a name of 256 bytes"},
		"a long path":             {finish(text(strings.Repeat("n/", 2100)+"x", "")), "a path of"},
		"deep":                    {finish(text(strings.Repeat("n/", 200)+"x", "")), "folders deep"},
		"entries":                 {finish(many...), "more than 20 entries"},
		"bytes":                   {finish(text("a", strings.Repeat("x", 70<<10))), "more than 65536 bytes"},
		"cut":                     {[]item{text("a", "x")}, "has not sent all"},
		"more behind the end":     {append(finish(text("a", "x")), text("b", "x")), "has not sent all"},
		"another kind":            {finish(item{name: "a", kind: 'Z'}), "layers have not"},
	} {
		var out bytes.Buffer
		if _, _, err := CopyLayer(t.Context(), &out, bytes.NewReader(tarOf(t, c.items...)), small, without,
			end); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// Files without content: one that is larger than the archive, and holes, of which the archive has few bytes.
	var claims bytes.Buffer
	w := tar.NewWriter(&claims)
	if err := w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	last := tarOf(t, finish()...)
	for name, archive := range map[string][]byte{
		"a file that is larger than the archive": claims.Bytes(),
		"a hole":                                 slices.Concat(holes("a", 1<<40), last),
		"a hole without end":                     slices.Concat(holes("a", math.MaxInt64), last),
		"many holes":                             slices.Concat(slices.Repeat(holes("a", 20<<10), 4), last),
		"a hole that makes up for it":            slices.Concat(holes("a", 1<<10), holes("b", math.MaxInt64), last),
		"a hole whose copy has too much":         slices.Concat(holes("a", 64<<10-1024), last),
	} {
		if _, _, err := CopyLayer(t.Context(), io.Discard, bytes.NewReader(archive), small, nil, end); err == nil ||
			!strings.Contains(err.Error(), "EOF") && !strings.Contains(err.Error(), "more than 65536 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for size, copied := range map[int]int{20 << 10: 20<<10 + 3*512, 64<<10 - 3*512: 64 << 10} {
		var out bytes.Buffer
		if _, n, err := CopyLayer(t.Context(), &out, bytes.NewReader(slices.Concat(holes("a", size), last)), small, nil,
			end); err != nil || n != 1 || out.Len() != copied {
			t.Errorf("a hole that may be: %d in %d bytes: %v", n, out.Len(), err)
		}
	}

	// The machine's own files, devices, and white-outs of missing files: they do not change the image.
	data := tarOf(t, finish(unchanging...)...)
	var out bytes.Buffer
	digest, n, err := CopyLayer(t.Context(), &out, bytes.NewReader(data), DefaultLimits, without, end)
	if err != nil || n != 5 || digest != hashOf(out.Bytes()).String() {
		t.Fatal(digest, n, err)
	}
	base := diskOf(t, imageOf(tarOf(t, dir("etc"), text("etc/passwd", "root"), text("etc/hosts", "h"), dir("proc"))))
	im, err := Derive("sha256:00", base, "amd64", Config{}, layerOver(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	// The link leads to the image's own /etc, as it would in the machine, and nowhere else.
	if got := manifest(t, diskOf(t, im)); !strings.Contains(got, `etc/hosts 0 644 0:0  1234567890 "h"`) ||
		!strings.Contains(got, `etc/passwd 0 644 0:0  1234567890 "evil"`) || !strings.Contains(got, "absolute 0") ||
		strings.Contains(got, "null") {
		t.Errorf("got\n%s", got)
	}
}

// Files that are newer than a layer's start get one time, older ones keep theirs.
func TestLayerTimes(t *testing.T) {
	const end = "unitask/end"
	limits := Limits{Bytes: 1 << 20, Entries: 9}
	of := time.Unix(1234567890, 0) // tarOf's
	for since, want := range map[time.Time]time.Time{{}: of, of.Add(-time.Second): LayerTime, of: of,
		of.Add(time.Second): of} {
		var out bytes.Buffer
		limits.Since = since
		if _, n, err := CopyLayer(t.Context(), &out, bytes.NewReader(tarOf(t, text("a", "A"), text(end, ""))), limits,
			[]string{"/unitask"}, end); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		if h, err := tar.NewReader(&out).Next(); err != nil || !h.ModTime.Equal(want) {
			t.Errorf("since %v: %+v, want %v: %v", since, h, want, err)
		}
	}
}

// Files are read back by their paths, links are not followed, and a large file is an error.
func TestReadFiles(t *testing.T) {
	im := made(t, "amd64", "", tarOf(t, text("var/lib/status", "S"), text("etc/other", "O"),
		symlink("etc/link", "/var/lib/status"), text("big", strings.Repeat("x", 100))))
	path := filepath.Join(t.TempDir(), "docker.tar")
	if err := tarball.WriteToFile(path, reference(t, "acme/tool:1"), im); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(t.Context(), path, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	f, _, err := written(t, opened, DefaultLimits)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadFiles(f, 50, "var/lib/status", "etc/link", "none", "etc")
	if err != nil || len(got) != 1 || string(got["var/lib/status"]) != "S" {
		t.Errorf("%q %v", got, err)
	}
	if _, err := ReadFiles(f, 50, "big"); err == nil || !strings.Contains(err.Error(), "big has more than 50 bytes") {
		t.Error(err)
	}
}
