package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
)

// item is an entry of a new layer.
type item struct {
	name, text, link string
	kind             byte
	mode             int64
	uid              int
}

func tarOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, i := range items {
		h := &tar.Header{Name: i.name, Typeflag: i.kind, Mode: i.mode, Linkname: i.link, Uid: i.uid, Gid: i.uid,
			Size: int64(len(i.text)), ModTime: time.Unix(1234567890, 0), Format: tar.FormatPAX}
		if i.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if i.mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func dir(name string) item        { return item{name: name, kind: tar.TypeDir, mode: 0o755} }
func text(name, text string) item { return item{name: name, text: text} }
func symlink(name, to string) item {
	return item{name: name, link: to, kind: tar.TypeSymlink}
}
func hardlink(name, to string) item { return item{name: name, link: to, kind: tar.TypeLink} }

func hashOf(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

func layerFrom(data []byte) layer {
	return layer{diffID: hashOf(data), open: func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(data)),
			nil
	}}
}

func imageOf(layers ...[]byte) *Image {
	im := &Image{Digest: "sha256:" + strings.Repeat("0", 64)}
	for _, data := range layers {
		im.layers = append(im.layers, layerFrom(data))
	}
	return im
}

// written writes an image to a file and returns it.
func written(t testing.TB, im *Image, limits Limits) (*os.File, Stats, error) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	stats, err := im.Write(context.Background(), f, limits)
	if err == nil {
		err = f.Truncate(stats.Size)
	}
	return f, stats, err
}

// files reads a disk with another implementation. It returns the text of each file, -> and the target of each link, and
// a slash after the name of each folder.
func files(t testing.TB, f *os.File, stats Stats) (list []string) {
	t.Helper()
	disk, err := ext4.Read(file.New(f, true), stats.Size, 0, 512)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(string)
	walk = func(at string) {
		entries, err := disk.ReadDir(at)
		if err != nil {
			t.Fatalf("%s: %v", at, err)
		}
		for _, e := range entries {
			name := path.Join(at, e.Name())
			info, err := e.Info()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			switch {
			case e.Name() == "." || e.Name() == "..":
			case info.IsDir():
				list = append(list, name+"/")
				walk(name)
			case info.Mode().Type() == fs.ModeSymlink:
				target, err := disk.ReadLink(name)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				list = append(list, name+" -> "+target)
			default:
				r, err := disk.OpenFile(name, os.O_RDONLY)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				text, err := io.ReadAll(r)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				list = append(list, name+" "+string(text))
			}
		}
	}
	walk(".")
	slices.Sort(list)
	return list
}

// tarHeader returns a header with arbitrary fields.
func tarHeader(name string, kind byte, size string) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x000000000\x000000000\x00"+size+"\x0000000000000\x00        "+string(kind))
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

// holes is a file that consists of a hole.
func holes(name string, size int) []byte {
	var records string
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=" + name,
		fmt.Sprint("GNU.sparse.realsize=", size)} {
		records += fmt.Sprintf("%d %s\n", len(r)+4, r) // two digits, a space and a line end
	}
	block := func(text string) []byte { return append([]byte(text), make([]byte, 512-len(text))...) }
	return slices.Concat(tarHeader("x", 'x', fmt.Sprintf("%011o", len(records))), block(records),
		tarHeader(name, '0', "00000001000"), block("0\n"))
}

// wide is a folder whose files are searched for each of many white-outs.
func wide(t *testing.T) []byte {
	var items []item
	for i := range 800 {
		items = append(items, text(fmt.Sprint(i), ""))
	}
	return tarOf(t, append(items, slices.Repeat([]item{text(opaque, "")}, 800)...)...)
}

type hostileLayersRow struct {
	name, want string
	im         *Image
}

// hostileLayersRows are the cases of TestHostileLayers.
func hostileLayersRows(
	of func(items ...item) *Image, hops []item, good []byte, packed func(data []byte) []byte, t *testing.T,
	many func(n int) []byte, lying func(diff v1.Hash, digest v1.Hash, data []byte) *Image,
	zpacked func(data []byte) []byte,
) []hostileLayersRow {
	return []hostileLayersRow{
		{"dots", "a path that goes upwards", of(text("a/../../etc/passwd", "x"))},
		{"dots first", "a path that goes upwards", of(text("../x", "x"))},
		{"a link to dots", "a path that goes upwards", of(hardlink("a", "../../etc/shadow"))},
		{"a link to what is not there", "no file of the image", of(hardlink("a", "/etc/shadow"))},
		{"a link to a folder", "no file of the image", of(dir("d"), hardlink("a", "d"))},
		{"a link to the root", "a link to the root", of(hardlink("a", "/"))},
		{
			name: "a link through a link out",
			want: "no file of the image",
			im:   of(symlink("up", "../../../.."), hardlink("a", "up/etc/passwd")),
		},
		{"links in a circle", "lead to each other", of(symlink("a", "b"), symlink("b", "a"), text("a/x", ""))},
		{"a long chain of links", "lead to each other", of(append(hops, text("l0/x", ""))...)},
		{"links that grow", "lead to each other", of(symlink("a", strings.Repeat("a/", 1500)), text("a/x", ""))},
		{"a deep path", "folders deep", of(text(strings.Repeat("a/", maxDepth)+"b", ""))},
		{"a deep link", "more than 100 entries", of(symlink("l", strings.Repeat("a/", maxDepth+2)), text("l/x", ""))},
		{"a long name", "a name of 256 bytes", of(text(strings.Repeat("a", 256), ""))},
		{"a long path", "a path of", of(text(strings.Repeat("aaaaaaa/", 600)+"a", ""))},
		{"a long link", "a link to", of(symlink("a", strings.Repeat("a", maxPath)))},
		{"an empty link", "a link to", imageOf(append(tarHeader("a", '2', "00000000000"), make([]byte, 1024)...))},
		{"a white-out of dots", "no name", of(text(".wh...", ""))},
		{"a white-out of no name", "no name", of(text(".wh.", ""))},
		{"an owner that is none", "owner", of(item{name: "a", uid: 1 << 32})},
		{"10 GiB claimed", "bytes; the image may have", imageOf(tarHeader("a", '0', "77777777777"))},
		{"more than is there", "EOF", imageOf(append(tarHeader("a", '0', "00000100000"), 'x'))},
		{"no archive", "layer 1 of 1", imageOf(bytes.Repeat([]byte("nonsense"), 200))},
		{"an unknown type", "unknown type", imageOf(append(tarHeader("a", 'Q', "00000000000"), make([]byte, 1024)...))},
		{"cut off", "EOF", imageOf(good[:512])},
		{
			name: "a bomb",
			want: "bytes; the image may have",
			im:   &Image{layers: []layer{layerFrom(packed(tarOf(t, text("a", strings.Repeat("\x00", 8<<20)))))}},
		},
		{
			name: "a bomb behind the end",
			want: "unpacks to more than",
			im:   &Image{layers: []layer{layerFrom(packed(append(slices.Clone(good), make([]byte, 2<<20)...)))}},
		},
		{"a bomb in a header", "layer 1", imageOf(append(tarHeader("a", 'x', "00007777777"), make([]byte, 3<<20)...))},
		{
			name: "bombs together",
			want: "bytes; the image may have",
			im:   imageOf(tarOf(t, text("a", strings.Repeat("a", 600<<10))), tarOf(t, text("a", strings.Repeat("a", 600<<10)))),
		},
		{
			name: "holes",
			want: "bytes; the image may have",
			im:   imageOf(slices.Concat(holes("a", 700<<10), holes("b", 700<<10), make([]byte, 1024))),
		},
		{"entries", "more than 100 entries", imageOf(many(101))},
		{"entries together", "more than 100 entries", imageOf(many(60), many(60))},
		{
			name: "entries by links",
			want: "more than 100 entries",
			im: of(symlink("l", strings.Repeat("1/", 60)), text("l/x", ""), symlink("m", strings.Repeat("2/", 60)),
				text("m/x", "")),
		},
		{
			name: "links that are long to follow",
			want: "take too long",
			im: of(append([]item{symlink("a", strings.Repeat("./", 1900)+"b"), dir("b")},
				slices.Repeat([]item{text("a/x", "")}, 50)...)...),
		},
		{"white-outs again and again", "take too long", &Image{layers: []layer{layerFrom(wide(t))}}},
		{"layers", "4 layers", imageOf(good, good, good, good)},
		{"gzip that is none", "layer 1", &Image{layers: []layer{layerFrom([]byte("\x1f\x8bnot gzip at all"))}}},
		{"gzip that ends", "layer 1", lying(hashOf(good), v1.Hash{}, packed(good)[:40])},
		{"gzip that is damaged", "layer 1", lying(hashOf(good), v1.Hash{}, append(packed(good)[:30], make([]byte, 40)...))},
		{"zstd that ends", "layer 1", lying(hashOf(good), v1.Hash{}, zpacked(good)[:40])},
		{"another content", "and the image says", lying(hashOf([]byte("x")), v1.Hash{}, good)},
		{"another packing", "and the manifest says", lying(hashOf(good), hashOf([]byte("x")), packed(good))},
		{"more behind the packing", "layer 1", lying(hashOf(good), hashOf(packed(good)), append(packed(good), "more"...))},
	}
}

func TestHostileLayers(t *testing.T) {
	many := func(n int) []byte {
		var items []item
		for i := range n {
			items = append(items, text(fmt.Sprint(i), ""))
		}
		return tarOf(t, items...)
	}
	packed := func(data []byte) []byte {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	zpacked := func(data []byte) []byte {
		w, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		return w.EncodeAll(data, nil)
	}
	small := Limits{Bytes: 1 << 20, Entries: 100, Layers: 3}
	good := tarOf(t, text("a", "A"))
	of := func(items ...item) *Image { return imageOf(tarOf(t, items...)) }
	lying := func(diff, digest v1.Hash, data []byte) *Image {
		l := layerFrom(data)
		l.diffID, l.digest = diff, digest
		return &Image{layers: []layer{l}}
	}
	var hops []item
	for i := range maxHops + 1 {
		hops = append(hops, symlink(fmt.Sprint("l", i), fmt.Sprint("l", i+1)))
	}
	for _, tt := range hostileLayersRows(of, hops, good, packed, t, many, lying, zpacked) {
		t.Run(tt.name, func(t *testing.T) {
			limits := small
			if strings.Contains(tt.name, "again and again") {
				limits.Entries, limits.Bytes = 1600, 8<<20
			}
			_, _, err := written(t, tt.im, limits)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	for name, data := range map[string][]byte{"gzip": packed(good), "zstd": zpacked(good)} {
		f, stats, err := written(t, lying(hashOf(good), hashOf(data), data), small)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := files(t, f, stats); !slices.Equal(got, []string{"a A"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// A cancelled read ends at once, and returns the cause.
func TestWriteCancelled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	why := fmt.Errorf("enough")
	cancel(why)
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := imageOf(tarOf(t, text("a", "A"))).Write(ctx, f, DefaultLimits); err == nil ||
		!strings.Contains(err.Error(), "enough") {
		t.Errorf("got %v", err)
	}
}

func TestOwner(t *testing.T) {
	passwd := "root:x:0:0:root:/root:/bin/sh\nbroken\nbig:x:99999999999:1:::\napp:x:1000:1001:App:/srv/app:/bin/sh\n"
	group := "root:x:0:\nstaff:x:50:bin,app\napp:x:1001:\ndocker:x:999:app\n"
	for _, tt := range []struct {
		user string
		want string
	}{
		{"", "{0 0 [] /root}"}, {"root", "{0 0 [] /root}"}, {"0", "{0 0 [] /root}"}, {"app", "{1000 1001 [50 999] /srv/app}"},
		{"1000", "{1000 1001 [50 999] /srv/app}"},
		{"app:staff", "{1000 50 [] /srv/app}"}, {"1000:7", "{1000 7 [] /srv/app}"}, {"4242", "{4242 0 [] /}"},
		{"4242:staff", "{4242 50 [] /}"}, {"app:", "{1000 1001 [50 999] /srv/app}"}, {":staff", "{0 50 [] /root}"},
		{"nobody", "whom its /etc/passwd does not have"}, {"big", "whom its"},
		{"app:nogroup", "its /etc/group does not have"}, {"-1", "whom its"}, {"4294967295", "whom its"},
	} {
		im := imageOf(tarOf(t, dir("etc"), text("etc/passwd", passwd), text("etc/group", group)))
		im.Config.User = tt.user
		if _, _, err := written(t, im, DefaultLimits); err != nil {
			t.Fatal(err)
		}
		owner, err := im.Owner()
		got := fmt.Sprint(owner)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("%q: got %s, want %s", tt.user, got, tt.want)
		}
	}
	im := imageOf(tarOf(t, dir("etc"), text("etc/passwd", passwd)), tarOf(t, text("etc/.wh.passwd", "")))
	im.Config.User = "app"
	if _, _, err := written(t, im, DefaultLimits); err != nil {
		t.Fatal(err)
	}
	if _, err := im.Owner(); err == nil {
		t.Error("a user of a file that was taken away")
	}
}

// The files that define users may be links, to each other or out of the image.
func TestOwnerByLinks(t *testing.T) {
	passwd := "app:x:1000:1001:App:/srv/app:/bin/sh\n"
	for _, c := range []struct {
		why, says string // "" is the user from the file
		layers    [][]byte
	}{
		{"an absolute link", "", [][]byte{tarOf(t, text("store/users", passwd), symlink("etc/passwd", "/store/users"))}},
		{
			why: "a relative link in a folder that is one",
			layers: [][]byte{tarOf(t, text("store/etc/users", passwd), symlink("store/etc/passwd", "../etc/./users"),
				symlink("etc", "store/etc"))},
		},
		{
			why:    "links one after the other",
			layers: [][]byte{tarOf(t, text("c", passwd), symlink("b", "c"), symlink("etc/passwd", "../b"))},
		},
		{
			why:    "a link out of the image stays in it",
			layers: [][]byte{tarOf(t, text("users", passwd), symlink("etc/passwd", "../../../users"))},
		},
		{"a hard link", "", [][]byte{tarOf(t, text("users", passwd), hardlink("etc/passwd", "users"))}},
		{
			why: "what a layer above has",
			layers: [][]byte{tarOf(t, text("users", "app:x:7:7:::\n"), symlink("etc/passwd", "/users")),
				tarOf(t, text("users", passwd))},
		},
		{"to each other", "whom its", [][]byte{tarOf(t, symlink("etc/passwd", "group"), symlink("etc/group", "passwd"))}},
		{"to nothing", "whom its", [][]byte{tarOf(t, symlink("etc/passwd", "/none/users"))}},
		{"to a folder", "whom its", [][]byte{tarOf(t, dir("etc"), symlink("etc/passwd", "."))}},
		{"to the root", "whom its", [][]byte{tarOf(t, dir("etc"), symlink("etc/passwd", "/"))}},
		{"an empty file", "whom its", [][]byte{tarOf(t, text("etc/passwd", ""))}},
		{"beyond what is read", "whom its", [][]byte{tarOf(t, text("etc/passwd", strings.Repeat("#\n", maxKept/2)+passwd))}},
	} {
		im := imageOf(c.layers...)
		im.Config.User = "app"
		if _, _, err := written(t, im, DefaultLimits); err != nil {
			t.Errorf("%s: %v", c.why, err)
			continue
		}
		owner, err := im.Owner()
		if c.says == "" && (err != nil || fmt.Sprint(owner) != "{1000 1001 [] /srv/app}") || c.says != "" &&
			(err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v %v", c.why, owner, err)
		}
	}
}

// A working directory is a folder, or is created; no file of the image is replaced by it.
func TestWorkingDirectory(t *testing.T) {
	layer := tarOf(t, text("bin/sh", "S"), symlink("run", "bin/sh"), symlink("w", "srv/w"), dir("srv/w"),
		symlink("gone", "none"))
	for where, says := range map[string]string{
		"/bin/sh": "/bin/sh is no folder", "/bin/sh/x": "/bin/sh is no folder", "/run": "/bin/sh is no folder",
		"/run/deep": "/bin/sh is no folder", "/gone": "", "/gone/deep": "",
		"": "", "/": "", "/bin": "", "/w": "", "/w/new/deep": "", "/new": "",
	} {
		im := imageOf(layer)
		im.Config.Dir = where
		f, stats, err := written(t, im, DefaultLimits)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", where, err)
		}
		if err == nil && !slices.Contains(files(t, f, stats), "bin/sh S") {
			t.Errorf("%s: /bin/sh is gone", where)
		}
	}
}

// fetched counts the read bytes of a layer, and reports when it was closed.
type fetched struct {
	io.Reader
	read   int64
	closed bool
}

func (c *fetched) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read += int64(n)
	return n, err
}

func (c *fetched) Close() error {
	c.closed = true
	return nil
}

type nothing struct{}

func (nothing) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// A useless layer is not fetched to its end.
func TestFailedLayer(t *testing.T) {
	bad := &fetched{Reader: io.MultiReader(bytes.NewReader(tarOf(t, text("../x", "x"))),
		io.LimitReader(nothing{}, 32<<20))}
	im := &Image{layers: []layer{{diffID: hashOf(nil), digest: hashOf(nil),
		open: func() (io.ReadCloser, error) { return bad, nil }}}}
	if _, _, err := written(t, im, Limits{Bytes: 64 << 20, Entries: 100, Layers: 3}); err == nil ||
		!strings.Contains(err.Error(), "upwards") {
		t.Error(err)
	}
	if bad.read > 1<<20 || !bad.closed {
		t.Errorf("%d bytes were read, closed: %v", bad.read, bad.closed)
	}
}
