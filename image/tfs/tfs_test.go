package tfs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/diskfs/go-diskfs/backend"
	"github.com/diskfs/go-diskfs/backend/file"
)

func disk(t testing.TB, size int64) backend.Storage {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(size))
	return file.New(f, false)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, f *FileSystem, name string, content []byte) {
	t.Helper()
	h, err := f.OpenFile(name, os.O_CREATE|os.O_RDWR)
	must(t, err)
	_, err = h.Write(content)
	must(t, err)
	must(t, h.Close())
}

var params = Params{Label: "test", UUID: [16]byte{1, 2, 3}, Attributes: Tuple{
	{"program", "/usr/bin/node"}, {"arguments", []Value{"node", "x"}}, {"environment", Tuple{{"PATH", "/bin"}}},
	{"number", int64(-5)}, {"big", int64(1 << 40)},
}}

func noise(n int) []byte {
	b := make([]byte, n)
	rand.New(rand.NewSource(int64(n))).Read(b)
	return b
}

// Written data is read back: names, contents, links, holes, attributes.
func TestRoundTrip(t *testing.T) {
	const start = 1 << 20
	d := disk(t, start+64<<20)
	f, err := Create(d, 64<<20, start, params)
	must(t, err)
	must(t, f.Mkdir("/usr/bin"))
	must(t, f.Mkdir("usr/bin"))
	must(t, f.Mkdir("/tmp"))
	want := map[string][]byte{"usr/bin/node": noise(5_000_001), "empty": nil, "one": []byte("1"), "sector": noise(512),
		"more": noise(513), "ünïcödé": []byte("x"),
		strings.Repeat("n", 255): []byte("long")}
	for name, content := range want {
		put(t, f, name, content)
	}
	must(t, f.Symlink("node", "/usr/bin/link"))
	// Two files written in turns, in odd pieces.
	a, err := f.OpenFile("a", os.O_CREATE|os.O_RDWR)
	must(t, err)
	b, err := f.OpenFile("b", os.O_CREATE|os.O_RDWR)
	must(t, err)
	for i := range 50 {
		piece := noise(1 + i*37)
		for _, h := range []io.Writer{a, b, b} {
			_, err := h.Write(piece)
			must(t, err)
		}
		want["a"] = append(want["a"], piece...)
		want["b"] = append(append(want["b"], piece...), piece...)
	}
	// Holes.
	h, err := f.OpenFile("holes", os.O_CREATE|os.O_RDWR)
	must(t, err)
	for _, at := range []int64{3, 700, 10_000, 1 << 20} {
		_, err := h.Seek(at, io.SeekStart)
		must(t, err)
		_, err = h.Write([]byte("island"))
		must(t, err)
		want["holes"] = append(append(want["holes"], make([]byte, at-int64(len(want["holes"])))...), "island"...)
	}
	must(t, f.Close())
	must(t, f.Close())

	r, err := Read(d, 64<<20, start)
	must(t, err)
	for name, content := range want {
		got, err := r.ReadFile(name)
		if err != nil || !bytes.Equal(got, content) {
			t.Errorf("%.20s: %d bytes, want %d: %v", name, len(got), len(content), err)
		}
	}
	if target, err := r.Readlink("usr/bin/link"); err != nil || target != "node" {
		t.Errorf("%q %v", target, err)
	}
	if r.Label() != "test" || r.UUID() != params.UUID || !reflect.DeepEqual(r.Attributes(), params.Attributes) {
		t.Errorf("%q %v %#v", r.Label(), r.UUID(), r.Attributes())
	}
	entries, err := r.ReadDir("usr/bin")
	if err != nil || len(entries) != 2 || entries[0].Name() != "link" || entries[0].Type() != fs.ModeSymlink ||
		entries[1].Name() != "node" {
		t.Errorf("%v %v", entries, err)
	}
	if err := r.Mkdir("new"); err == nil {
		t.Error("one that was read can be changed")
	}
	if _, err := r.OpenFile("one", os.O_RDWR); err == nil {
		t.Error("a file of one that was read can be changed")
	}
}

// It is an fs.FS that passes the standard library's test.
func TestFS(t *testing.T) {
	d := disk(t, 4<<20)
	f, err := Create(d, 4<<20, 0, Params{})
	must(t, err)
	must(t, f.Mkdir("dir/sub"))
	put(t, f, "dir/file", []byte("content"))
	must(t, f.Close())
	r, err := Read(d, 4<<20, 0)
	must(t, err)
	must(t, fstest.TestFS(r, "dir/file", "dir/sub"))
}

// The same input gives the same bytes, whatever was on the disk before.
func TestDeterministic(t *testing.T) {
	build := func(fill byte) []byte {
		d := disk(t, 8<<20)
		w, err := d.Writable()
		must(t, err)
		if fill != 0 {
			_, err = w.WriteAt(bytes.Repeat([]byte{fill}, 8<<20), 0)
			must(t, err)
		}
		f, err := Create(d, 8<<20, 0, params)
		must(t, err)
		for i := range 100 {
			name := fmt.Sprintf("dir%d", i%7)
			must(t, f.Mkdir(name))
			put(t, f, fmt.Sprintf("%s/file%d", name, i), noise(i*100))
		}
		must(t, f.Close())
		r, err := Read(d, 8<<20, 0)
		must(t, err)
		var all []byte
		for i := range 100 {
			content, err := r.ReadFile(fmt.Sprintf("dir%d/file%d", i%7, i))
			must(t, err)
			if !bytes.Equal(content, noise(i*100)) {
				t.Errorf("file %d differs", i)
			}
			all = append(all, content...)
		}
		if fill != 0 {
			return all
		}
		raw := make([]byte, 8<<20)
		_, err = d.ReadAt(raw, 0)
		must(t, err)
		return raw
	}
	if !bytes.Equal(build(0), build(0)) {
		t.Error("two builds differ")
	}
	build(0xff)
}

// More names than one log extension can hold.
func TestLongLog(t *testing.T) {
	d := disk(t, 64<<20)
	f, err := Create(d, 64<<20, 0, Params{})
	must(t, err)
	const files = 20_000
	for i := range files {
		dir := fmt.Sprintf("d%d", i/1000)
		must(t, f.Mkdir(dir))
		put(t, f, fmt.Sprintf("%s/%s%d", dir, strings.Repeat("x", 60), i), []byte(fmt.Sprint(i)))
	}
	must(t, f.Close())
	r, err := Read(d, 64<<20, 0)
	must(t, err)
	for _, i := range []int{0, 1, 9999, files - 1} {
		got, err := r.ReadFile(fmt.Sprintf("d%d/%s%d", i/1000, strings.Repeat("x", 60), i))
		if err != nil || string(got) != fmt.Sprint(i) {
			t.Errorf("%d: %q %v", i, got, err)
		}
	}
}

// A disk written by Nanos's own mkfs, as NANOS.md shows it. It has a file "a" of two bytes, with extents and length
// merged in by later records.
func TestReadMkfs(t *testing.T) {
	d := disk(t, 2621440)
	w, err := d.Writable()
	must(t, err)
	for at, text := range map[int64]string{
		0: "4e564d544653 05 01 8c9ff0dc0dbfbe2a429856f5d6ae18f4 6c616200 05 01 8800 01",
		0x200: "4e564d544653 05 8800 02 1a 1a 92 8808 6368696c6472656e 91 81 61 90 87 70726f6772616d c2 2f61" +
			"02 0b 0b 11 05 87 657874656e7473 90 02 25 25 11 08 81 30 93 86 6c656e677468 b0 01 8809 616c6c6f6361746564 b0 01 " +
			"86 6f6666736574 b0 9801" +
			"02 10 10 11 05 880a 66696c656c656e677468 b0 02 01",
		0x180200: "6869",
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		must(t, err)
		_, err = w.WriteAt(b, at)
		must(t, err)
	}
	f, err := Read(d, 2621440, 0)
	must(t, err)
	if got, err := f.ReadFile("a"); err != nil || string(got) != "hi" {
		t.Errorf("%q %v", got, err)
	}
	if f.Label() != "lab" || f.Attributes().Get("program") != "/a" {
		t.Errorf("%q %v", f.Label(), f.Attributes())
	}
}

// The encoding against the sample bytes of the same page.
func TestEncode(t *testing.T) {
	e := encoder{symbols: map[string]uint64{}, next: 1}
	must(t, e.value(Tuple{{"children", Tuple{{"a", Tuple{}}}}, {"program", "/a"}, {"children", int64(3073)}}))
	if got := hex.EncodeToString(e.buf); got != "9388086368696c6472656e91816190"+"8770726f6772616dc22f61"+"02b09801" {
		t.Error(got)
	}
	for n, want := range map[uint64]string{0: "00", 1: "01", 127: "7f", 128: "8100", 1024: "8800", 1 << 21: "81808000"} {
		if got := hex.EncodeToString(appendVarint(nil, n)); got != want {
			t.Errorf("varint %d is %s", n, got)
		}
		c := cursor(appendVarint(nil, n))
		if back, err := c.varint(); err != nil || back != n {
			t.Errorf("varint %d is read as %d %v", n, back, err)
		}
	}
	if err := e.value(3.5); err == nil {
		t.Error("a float was written")
	}
}

func TestMistakes(t *testing.T) {
	d := disk(t, 4<<20)
	for name, c := range map[string]func() error{
		"odd size":    func() error { _, err := Create(d, 4<<20-1, 0, Params{}); return err },
		"odd start":   func() error { _, err := Create(d, 3<<20, 5, Params{}); return err },
		"too small":   func() error { _, err := Create(d, 1025*512, 0, Params{}); return err },
		"long label":  func() error { _, err := Create(d, 4<<20, 0, Params{Label: strings.Repeat("x", 32)}); return err },
		"not at all":  func() error { _, err := Read(d, 4<<20, 0); return err },
		"beyond disk": func() error { _, err := Read(d, 4<<20, 1<<30); return err },
	} {
		if c() == nil {
			t.Errorf("%s: no error", name)
		}
	}
	f, err := Create(d, 4<<20, 0, Params{})
	must(t, err)
	put(t, f, "file", []byte("x"))
	for name, err := range map[string]error{
		"folder over a file": f.Mkdir("file"), "file in a file": f.Symlink("x", "file/y"),
		"no folder": f.Symlink("x", "no/y"), "twice": f.Symlink("x", "file"),
		"long name": f.Symlink("x", strings.Repeat("n", 256)), "NUL": f.Symlink("x", "a\x00"),
		"empty link": f.Symlink("", "y"), "root": f.Symlink("x", "/"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	h, err := f.OpenFile("file", os.O_RDWR)
	must(t, err)
	if _, err := h.Write([]byte("y")); err == nil {
		t.Error("wrote over what was written")
	}
	if _, err := f.OpenFile("nowhere", os.O_RDONLY); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	big, err := f.OpenFile("big", os.O_CREATE|os.O_RDWR)
	must(t, err)
	if _, err := big.Write(make([]byte, 4<<20)); err == nil || !strings.Contains(err.Error(), "full") {
		t.Errorf("%v", err)
	}
}

// memory is a disk in memory.
type memory struct {
	backend.Storage
	*bytes.Reader
}

func (m memory) ReadAt(p []byte, off int64) (int, error)      { return m.Reader.ReadAt(p, off) }
func (m memory) Read(p []byte) (int, error)                   { return m.Reader.Read(p) }
func (m memory) Seek(offset int64, whence int) (int64, error) { return m.Reader.Seek(offset, whence) }

// Reading any disk ends, uses limited memory, and gives entries that can be walked.
func FuzzRead(f *testing.F) {
	d := disk(f, 1<<20)
	w, err := Create(d, 1<<20, 0, params)
	must(f, err)
	must(f, w.Mkdir("a/b"))
	put(f, w, "a/b/c", noise(1000))
	must(f, w.Symlink("x", "a/l"))
	must(f, w.Close())
	seed := make([]byte, 3<<10)
	_, err = d.ReadAt(seed, 0)
	must(f, err)
	f.Add(seed[:512], seed[512:])
	f.Fuzz(func(t *testing.T, head, log []byte) {
		if len(head) > 512 || len(log) > 1<<16 {
			return
		}
		image := make([]byte, 1<<20)
		copy(image, head)
		copy(image[512:], log)
		r, err := Read(memory{nil, bytes.NewReader(image)}, int64(len(image)), 0)
		if err != nil {
			return
		}
		_ = fs.WalkDir(r, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || strings.Count(name, "/") > maxDepth {
				t.Fatalf("%q %v", name, err)
			}
			if d.Type() == 0 {
				if h, err := r.OpenFile(name, os.O_RDONLY); err == nil {
					_, _ = io.CopyN(io.Discard, h, 1<<20)
				}
			}
			return nil
		})
	})
}

// A tuple that is in two places at each of a hundred levels describes more files than there are atoms.
func TestTreeBomb(t *testing.T) {
	d := disk(t, 4<<20)
	f, err := Create(d, 4<<20, 0, Params{})
	must(t, err)
	e := encoder{symbols: map[string]uint64{}, next: 1}
	e.id()
	e.buf = appendHeader(e.buf, true, typeTuple, 1)
	e.symbol("children")
	e.id()
	e.buf = appendHeader(e.buf, true, typeTuple, 0)
	records := [][]byte{e.buf}
	parent := uint64(3)
	for range 60 {
		e.buf = nil
		e.buf = appendVarint(appendHeader(e.buf, false, typeTuple, 2), parent)
		e.symbol("a")
		e.id()
		e.buf = appendHeader(e.buf, true, typeTuple, 1)
		child := e.next - 1
		e.symbol("children")
		inner := e.id()
		e.buf = appendHeader(e.buf, true, typeTuple, 0)
		e.symbol("b")
		e.buf = appendVarint(appendHeader(e.buf, false, typeTuple, 0), child)
		records = append(records, e.buf)
		parent = inner
	}
	must(t, f.writeExtension(0, 1, appendLink(append(append(appendVarint(appendVarint([]byte(magic), version), 1),
		make([]byte, 16)...), 0), 1)))
	ext := appendVarint(appendVarint([]byte(magic), version), logSectors)
	for _, r := range records {
		ext = append(ext, recordTuple)
		ext = append(appendVarint(appendVarint(ext, uint64(len(r))), uint64(len(r))), r...)
	}
	must(t, f.writeExtension(1, logSectors, append(ext, recordEnd)))
	if _, err := Read(d, 4<<20, 0); !errors.Is(err, errFormat) || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%v", err)
	}
}

// Another writer of the format: Nanos's own mkfs, if this machine has it.
func TestMkfs(t *testing.T) {
	mkfs := os.Getenv("NANOS_MKFS")
	if mkfs == "" {
		t.Skip("NANOS_MKFS names no mkfs of Nanos: it is in no package")
	}
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	must(t, os.WriteFile(source, noise(300_000), 0o600))
	manifest := "(children:(usr:(children:(big:(contents:(host:" + source +
		")) empty:(children:())))) program:/usr/big arguments:[a b] environment:(X:1))"
	image := filepath.Join(dir, "image")
	cmd := exec.Command(mkfs, "-l", "label", image)
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f, err := os.Open(image)
	must(t, err)
	defer f.Close()
	st, err := f.Stat()
	must(t, err)
	r, err := Read(file.New(f, true), st.Size(), 0)
	must(t, err)
	got, err := r.ReadFile("usr/big")
	if err != nil || !bytes.Equal(got, noise(300_000)) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
	if r.Label() != "label" || r.Attributes().Get("program") != "/usr/big" ||
		!reflect.DeepEqual(r.Attributes().Get("arguments"), []Value{"a", "b"}) {
		t.Errorf("%q %v", r.Label(), r.Attributes())
	}
}
