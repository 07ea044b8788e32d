package erofs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"
)

// disk is a disk in memory.
type disk struct{ data []byte }

func (d *disk) WriteAt(p []byte, at int64) (int, error) {
	if more := int(at) + len(p) - len(d.data); more > 0 {
		d.data = append(d.data, make([]byte, more)...)
	}
	return copy(d.data[at:], p), nil
}

func folder(name string) Entry { return Entry{Path: name, Mode: fs.ModeDir | 0o755} }

func file(name string, mode fs.FileMode, content []byte, compress bool) Entry {
	return Entry{Path: name, Mode: mode, Compress: compress, Open: func() (io.ReadCloser, int64, error) {
		return io.NopCloser(bytes.NewReader(content)), int64(len(content)), nil
	}}
}

func symlink(name, target string) Entry {
	return Entry{Path: name, Mode: 0o777 | fs.ModeSymlink, Target: target}
}

// contents are files with sizes around all limits, by their names.
func contents() map[string][]byte {
	random := rand.NewChaCha8([32]byte{19})
	noise := make([]byte, 300_000)
	_, _ = random.Read(noise)
	text := bytes.Repeat([]byte("def f(x):\n    return x + 1\n\n"), 20_000)
	mixed := slices.Concat(text[:100_000], noise[:100_000], make([]byte, 200_000), text[:50_001])
	all := map[string][]byte{"mixed": mixed, "noise": noise, "zeros": make([]byte, 1<<20)}
	for _, size := range []int{0, 1, maxTail, maxTail + 1, blockSize - 1, blockSize, blockSize + 1, 2*blockSize + maxTail,
		extentSize - 1, extentSize, extentSize + 1, extentSize + blockSize, extentSize + blockSize + 1, 5*extentSize + 17} {
		all[fmt.Sprintf("text%d", size)] = text[:size]
	}
	return all
}

// everything is a tree with all features of the writer.
func everything() []Entry {
	all := contents()
	list := []Entry{folder("/plain"), folder("/packed"), folder("/empty"), folder("/many"), folder("/+odd"),
		symlink("/link", "plain/noise"), symlink("/long", strings.Repeat("x/", maxTail/2)),
		symlink("/many/up", ".."), file("/+odd/"+strings.Repeat("é", maxName/2), 0o600, []byte("x"), false),
		file("/!", 0o400, nil, true)}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		list = append(list, file("/plain/"+name, 0o644, all[name], false), file("/packed/"+name, 0o755, all[name], true))
	}
	for i := range 3000 {
		list = append(list, file(fmt.Sprintf("/many/name of file %d", i*7919%3000), 0o444, []byte{byte(i)}, i%2 == 0))
	}
	return list
}

// unpack returns the content of an inode, read as the kernel reads it.
func unpack(t *testing.T, disk []byte, number uint64) []byte {
	t.Helper()
	d := readerOf(disk)
	in, at, err := d.inode(number)
	if err != nil {
		t.Fatal(err)
	}
	if le.Uint16(in[0:])>>1 != layoutCompressed {
		data, err := d.content(in, at, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	header := disk[at+inodeSize:]
	if advise, algorithm, bits := le.Uint16(header[4:]), header[6], header[7]; advise != adviseBigCluster ||
		algorithm != 0 || bits != 0 {
		t.Fatalf("inode %d: %d %d %d", number, advise, algorithm, bits)
	}
	out, size, index := []byte{}, int(le.Uint32(in[8:])), header[16:]
	kind := func(i int) uint16 { return le.Uint16(index[8*i:]) }
	for i := 0; i*blockSize < size; {
		from := disk[int(le.Uint32(index[8*i+4:]))*blockSize:]
		left := min(size-i*blockSize, extentSize)
		switch kind(i) {
		case clusterPlain:
			out = append(out, from[:min(left, blockSize)]...)
			i++
			continue
		case clusterHead:
		default:
			t.Fatalf("inode %d: cluster %d is %d", number, i, kind(i))
		}
		count, clusters := int(le.Uint16(index[8*i+12:])), int(blocks(left))
		if count&blockCount == 0 || kind(i+1) != clusterNonHead {
			t.Fatalf("inode %d: cluster %d does not say how many blocks it has", number, i)
		}
		for j := 1; j < clusters; j++ {
			back, forth := int(le.Uint16(index[8*(i+j)+4:])), int(le.Uint16(index[8*(i+j)+6:]))
			if kind(i+j) != clusterNonHead || j > 1 && back != j || forth != clusters-j {
				t.Fatalf("inode %d: cluster %d of %d: %d %d %d", number, j, clusters, kind(i+j), back, forth)
			}
		}
		packed := from[:(count&^blockCount)*blockSize]
		start := slices.IndexFunc(packed, func(b byte) bool { return b != 0 })
		if start < 0 || start >= blockSize {
			t.Fatalf("inode %d: cluster %d begins after %d zeros", number, i, start)
		}
		part := make([]byte, left)
		if got, err := lz4.UncompressBlock(packed[start:], part); err != nil || got != left {
			t.Fatalf("inode %d: cluster %d: %d bytes of %d: %v", number, i, got, left, err)
		}
		out = append(out, part...)
		i += clusters
	}
	if kind(int(blocks(size))) != clusterPlain {
		t.Fatalf("inode %d: what follows its clusters is none", number)
	}
	return out
}

func readerOf(disk []byte) *reader {
	return &reader{r: bytes.NewReader(disk), size: int64(len(disk)),
		base: int64(le.Uint32(disk[superOffset+40:])) * blockSize}
}

// check compares a disk with the entries that it was written from.
func check(t *testing.T, written []byte, entries []Entry) {
	t.Helper()
	infos, err := Read(bytes.NewReader(written), int64(len(written)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Info{}
	for _, i := range infos {
		got[i.Path] = i
	}
	if len(got) != len(entries) || len(infos) != len(entries) {
		t.Errorf("%d entries of %d", len(infos), len(entries))
	}
	for _, e := range entries {
		i := got[e.Path]
		if i.Mode != e.Mode || i.Target != e.Target {
			t.Errorf("%s: %v %q, not %v %q", e.Path, i.Mode, i.Target, e.Mode, e.Target)
		}
		if !e.Mode.IsRegular() {
			continue
		}
		r, size, err := e.Open()
		if err != nil {
			t.Fatal(err)
		}
		want, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if i.Size != size {
			t.Errorf("%s: %d bytes, not %d", e.Path, i.Size, size)
		}
		if data := unpack(t, written, i.number); !bytes.Equal(data, want) {
			t.Errorf("%s: other content, of %d bytes", e.Path, len(data))
		}
	}
}

func TestWrite(t *testing.T) {
	entries := everything()
	var first, second disk
	size, err := Write(&first, entries)
	if err != nil || size != int64(len(first.data)) || size%blockSize != 0 {
		t.Fatalf("%d bytes, %d written: %v", size, len(first.data), err)
	}
	check(t, first.data, entries)
	if _, err := Write(&second, entries); err != nil || !bytes.Equal(first.data, second.data) {
		t.Errorf("another disk the second time: %v", err)
	}
	if !Is(bytes.NewReader(first.data)) || Is(bytes.NewReader(first.data[:superOffset])) ||
		Is(bytes.NewReader(make([]byte, blockSize))) {
		t.Error("Is")
	}
}

// The bytes of a disk may change only with Version, because disks of the same version are kept.
func TestVersion(t *testing.T) {
	d := &disk{}
	if _, err := Write(d, everything()); err != nil {
		t.Fatal(err)
	}
	const version, want = 1, "992c02c3ddf14e1d395e7f76a1e11098c9e3d13b31f2b53f527184e5e30dcf70"
	if got := fmt.Sprintf("%x", sha256.Sum256(d.data)); Version != version || got != want {
		t.Errorf("version %d gives %s; it was %s in version %d: raise Version, and note here what it gives", Version, got,
			want, version)
	}
}

func TestCompresses(t *testing.T) {
	text := contents()["text327697"]
	sizes := map[bool]int64{}
	for _, compress := range []bool{false, true} {
		size, err := Write(new(disk), []Entry{file("/text", 0o644, text, compress)})
		if err != nil {
			t.Fatal(err)
		}
		sizes[compress] = size
	}
	if sizes[true] > sizes[false]/4 {
		t.Errorf("%v", sizes)
	}
}

// Entries that can't be written give an error with the path.
func TestWriteRefuses(t *testing.T) {
	broken := errors.New("broken")
	open := func(content string, size int64, err error) Entry {
		return Entry{Path: "/x", Open: func() (io.ReadCloser, int64, error) {
			return io.NopCloser(strings.NewReader(content)),
				size, err
		}}
	}
	for name, c := range map[string]struct {
		entries []Entry
		says    string
	}{
		"no folder":          {[]Entry{symlink("/a/b", "c")}, "/a/b is in no folder"},
		"in a link":          {[]Entry{symlink("/a", "b"), symlink("/a/b", "c")}, "/a/b is in no folder"},
		"twice":              {[]Entry{folder("/a"), symlink("/a", "c")}, "/a is there twice"},
		"a long name":        {[]Entry{folder("/" + strings.Repeat("x", maxName+1))}, "no name"},
		"a name with a zero": {[]Entry{folder("/a\x00b")}, "no name"},
		"itself":             {[]Entry{folder("/.")}, "no name"},
		"a long target":      {[]Entry{symlink("/a", strings.Repeat("x", maxTail+1))}, "/a: a link's target"},
		"no target":          {[]Entry{symlink("/a", "")}, "/a: a link's target"},
		"a device":           {[]Entry{{Path: "/a", Mode: fs.ModeDevice}}, "/a is neither"},
		"does not open":      {[]Entry{open("", 0, broken)}, "/x: broken"},
		"shorter":            {[]Entry{open("short", 10, nil)}, "/x: unexpected EOF"},
		"much shorter":       {[]Entry{open("short", 10_000, nil)}, "/x: unexpected EOF"},
		"shorter, compressed": {[]Entry{{Path: "/x", Compress: true, Open: func() (io.ReadCloser, int64, error) {
			return io.NopCloser(strings.NewReader("short")), 10_000, nil
		}}}, "/x: unexpected EOF"},
		"4 GiB": {[]Entry{open("", 4<<30, nil)}, "less than 4 GiB"},
	} {
		if _, err := Write(new(disk), c.entries); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v does not say %q", name, err, c.says)
		}
	}
}

// A foreign or damaged disk gives an error, and has no other effect.
func FuzzRead(f *testing.F) {
	var small disk
	if _, err := Write(&small, []Entry{folder("/a"), file("/a/b", 0o644, []byte("x"), false), symlink("/c", "a/b"),
		file("/d", 0o755, bytes.Repeat([]byte("text"), 5000), true)}); err != nil {
		f.Fatal(err)
	}
	f.Add(small.data)
	f.Add(small.data[:superOffset+100])
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<20 {
			return
		}
		list, err := Read(bytes.NewReader(data), int64(len(data)))
		if err != nil && !errors.Is(err, errMalformed) {
			t.Errorf("%v", err)
		}
		for _, i := range list {
			if !strings.HasPrefix(i.Path, "/") || path.Clean(i.Path) != i.Path {
				t.Errorf("path %q", i.Path)
			}
		}
	})
}

// The content of a file is preserved, compressed or not.
func FuzzWrite(f *testing.F) {
	f.Add([]byte("x"), uint32(1), true)
	f.Add([]byte("0123456789abcdef"), uint32(5000), true)
	f.Add([]byte{}, uint32(0), false)
	f.Fuzz(func(t *testing.T, seed []byte, repeat uint32, compress bool) {
		if len(seed) > 1<<16 {
			return
		}
		content := slices.Concat(bytes.Repeat(seed, int(repeat%300_000)/max(len(seed), 1)), seed)
		entries := []Entry{folder("/a"), file("/a/b", 0o644, content, compress), file("/c", 0o644, seed, compress)}
		var d disk
		if _, err := Write(&d, entries); err != nil {
			t.Fatal(err)
		}
		check(t, d.data, entries)
	})
}
