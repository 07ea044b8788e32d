package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"

	"github.com/unitask/unitask/internal/attack"
)

// entry is one of a tar that a test writes.
type entry struct {
	tar.Header
	text string
}

func archived(t *testing.T, list ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range list {
		h := e.Header
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(e.text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func named(name string) entry { return entry{tar.Header{Name: name, Mode: 0o644}, "x"} }

// holed is an archive with one file that has a hole, in the form of GNU tar 1.0. The header claims a tebibyte.
func holed() []byte {
	block := func(name string, flag byte, content string) []byte {
		h := make([]byte, 512)
		copy(h, name)
		copy(h[100:], "0000644\x00")
		copy(h[124:], fmt.Sprintf("%011o\x00", len(content)))
		copy(h[136:], "00000000000\x00        ")
		h[156] = flag
		copy(h[257:], "ustar\x0000")
		sum := 0
		for _, b := range h {
			sum += int(b)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		return append(append(h, content...), make([]byte, (512-len(content)%512)%512)...)
	}
	record := func(key, value string) string {
		for n := len(key) + len(value) + 3; ; n++ {
			if text := fmt.Sprintf("%d %s=%s\n", n, key, value); len(text) == n {
				return text
			}
		}
	}
	pax := record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0") + record("GNU.sparse.name", "opt/hole") +
		record("GNU.sparse.realsize", "1099511627776")
	return append(append(block("pax", 'x', pax), block("hole", '0', "0\n"+strings.Repeat("\x00", 510))...),
		make([]byte, 1024)...)
}

// The disk of an image has the files and links of a shipped archive, over those of the image that it begins
// with.
func TestArchiveOnDisk(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "own.tar")
	long := strings.Repeat("long", 40) + "/" + strings.Repeat("n", maxExt4Name)
	content := archived(t, entry{tar.Header{Name: "opt/words/a.txt", Mode: 0o600}, "one"},
		entry{tar.Header{Name: "opt/tool", Mode: 0o777}, strings.Repeat("tool", 5000)},
		entry{tar.Header{Name: "opt/" + long, Mode: 0o644}, "far"},
		entry{tar.Header{Name: "opt/at", Typeflag: tar.TypeSymlink, Linkname: "words/a.txt"}, ""},
		entry{tar.Header{Name: "opt/far", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("t/", 500)}, ""},
		entry{tar.Header{Name: "etc/base", Mode: 0o644}, ""})
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	all := tree{}
	all.text("/etc/base", "of the base")
	all.text("/etc/other", "other")
	if err := all.add(&Custom{Archive: name}); err != nil {
		t.Fatal(err)
	}
	disk := filepath.Join(t.TempDir(), "disk")
	if err := writeExt4(disk, all); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	on, err := ext4.Read(file.New(f, true), st.Size(), 0, 512)
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{"opt/words/a.txt": "one", "opt/tool": strings.Repeat("tool", 5000),
		"opt/" + long: "far", "etc/base": "", "etc/other": "other"} {
		f, err := on.OpenFile(at, os.O_RDONLY)
		if err != nil {
			t.Errorf("%.40s: %v", at, err)
			continue
		}
		got, err := io.ReadAll(f)
		if err != nil || string(got) != want {
			t.Errorf("%.40s: %.40q %v", at, got, err)
		}
	}
	for at, want := range map[string]fs.FileMode{"/opt/words/a.txt": 0o644, "/opt/tool": 0o755} {
		if got := all[at].mode; got != want {
			t.Errorf("%s has mode %v", at, got)
		}
	}
	if got := all["/opt/at"].target; got != "words/a.txt" {
		t.Errorf("the link leads to %q", got)
	}
}

// An untrusted submitter writes such archives. An archive that is not a tree of files and links is refused before a
// disk is written, and nothing of it stays.
func TestAttackArchives(t *testing.T) {
	t.Parallel()
	many := func(n int, name func(int) string) (list []entry) {
		for i := range n {
			list = append(list, named(name(i)))
		}
		return list
	}
	whole := archived(t, named("opt/a"))
	longer := bytes.Clone(archived(t, entry{tar.Header{Name: "opt/a", Mode: 0o644}, strings.Repeat("x", 4096)}))
	for name, row := range map[string]struct {
		archive []byte
		says    string // "" means that it is accepted
	}{
		"files":                   {whole, ""},
		"none":                    {archived(t), ""},
		"a path that goes up":     {archived(t, named("opt/../../etc/passwd")), "can't be"},
		"an absolute path":        {archived(t, named("/etc/passwd")), "can't be"},
		"the root":                {archived(t, named("./.")), "can't be"},
		"a name with a new line":  {archived(t, named("opt/a\nb")), "can't be"},
		"a name that is no text":  {archived(t, named("opt/\xff\xfe")), "can't be"},
		"a name that is too long": {archived(t, named("opt/"+strings.Repeat("n", maxExt4Name+1))), "can't be"},
		"a folder's name":         {archived(t, named(strings.Repeat("n", maxExt4Name+1)+"/a")), "can't be"},
		"a path that is too long": {archived(t, named(strings.Repeat("name/", 210)+"a")), "can't be"},
		"too deep":                {archived(t, named(strings.Repeat("d/", 101)+"a")), "can't be"},
		"twice":                   {archived(t, named("opt/a"), named("opt/./a")), "twice"},
		"in a file":               {archived(t, named("opt/a"), named("opt/a/b")), "no folder"},
		"in a file, before it":    {archived(t, named("opt/a/b"), named("opt/a")), "no folder"},
		"in a link": {archived(t, entry{tar.Header{Name: "opt/l", Typeflag: tar.TypeSymlink, Linkname: "/etc"},
			""}, named("opt/l/passwd")), "no folder"},
		"a hard link": {archived(t, named("opt/a"),
			entry{tar.Header{Name: "opt/b", Typeflag: tar.TypeLink, Linkname: "opt/a"}, ""}), "neither"},
		"a device": {archived(t, entry{tar.Header{Name: "opt/a", Typeflag: tar.TypeBlock, Devmajor: 8}, ""}),
			"neither"},
		"a pipe":            {archived(t, entry{tar.Header{Name: "opt/a", Typeflag: tar.TypeFifo}, ""}), "neither"},
		"a link to nowhere": {archived(t, entry{tar.Header{Name: "opt/a", Typeflag: tar.TypeSymlink}, ""}), "neither"},
		"a link that is too long": {archived(t, entry{tar.Header{Name: "opt/a", Typeflag: tar.TypeSymlink,
			Linkname: strings.Repeat("t", 1001)}, ""}), "neither"},
		"a hole":     {holed(), "neither"},
		"cut off":    {longer[:1024], "the shipped files"},
		"no archive": {bytes.Repeat([]byte("x"), 1024), "the shipped files"},
		"too many files": {archived(t, many(maxAdded+1,
			func(i int) string { return fmt.Sprintf("%d/%d", i%100, i) })...), "more than 60000"},
		"too many in one folder": {archived(t, many(16_000, func(i int) string { return fmt.Sprintf("opt/%d", i) })...),
			"too many in one folder"},
		"too many on the way": {archived(t, many(50_000, func(i int) string {
			return strings.Repeat("d/", i%100) + fmt.Sprint(i)
		})...), "too many in one folder"},
		"too many folders": {archived(t, many(1000, func(i int) string {
			return fmt.Sprintf("%d", i) + strings.Repeat("/d", 80) + "/a"
		})...), "in more than 60000 folders"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			s := &Store{home: home, log: func(string) {}}
			sum := sha256.Sum256(row.archive)
			b := Shipped{Arch: HostArch(), Disk: hex.EncodeToString(sum[:]), Size: int64(len(row.archive)),
				Custom: &ShippedCustom{Base: "node"}}
			none := func() (map[string]bool, error) { return nil, nil }
			c, err := s.Containers().AddShipped(t.Context(), "mallory", b, none,
				func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(row.archive)), nil })
			if row.says == "" {
				if err != nil || c.Custom == nil || c.Custom.Base != "node" {
					t.Errorf("%+v %v", c, err)
				}
				return
			}
			refused := err != nil && strings.Contains(err.Error(), row.says)
			left, err := os.ReadDir(filepath.Join(home, "containers"))
			got := fmt.Sprintf("refused %t, %d files left, %v", refused, len(left), err)
			attack.Check(t, "files come along with "+name, "refused true, 0 files left, <nil>", got)
		})
	}
}

// A custom image's archive is not a disk. With another description it is another image.
func TestShippedCustom(t *testing.T) {
	t.Parallel()
	b := Shipped{Arch: HostArch(), Disk: strings.Repeat("0", 64), Size: 1024,
		Custom: &ShippedCustom{Base: "node", Env: map[string]string{"A": "b"}}}
	if err := b.Check(); err != nil {
		t.Error(err)
	}
	seen := map[string]bool{b.Digest(): true}
	for name, change := range map[string]func(*Shipped){
		"base": func(b *Shipped) { b.Custom.Base = "python" }, "runtime": func(b *Shipped) { b.Custom.Runtime = "3.11" },
		"folders":   func(b *Shipped) { b.Custom.Folders = []string{"/opt"} },
		"variables": func(b *Shipped) { b.Custom.Env = map[string]string{"A": "c"} },
		"modules":   func(b *Shipped) { b.Custom.Warm = []string{"json"} }, "none": func(b *Shipped) { b.Custom = nil },
	} {
		other, own := b, *b.Custom
		other.Custom = &own
		change(&other)
		if seen[other.Digest()] {
			t.Errorf("another %s is the same image", name)
		}
		seen[other.Digest()] = true
	}
	b.Size = maxShippedCustom + 512
	if err := b.Check(); err == nil {
		t.Error("an archive of any size is taken")
	}
}

// For any bytes, an accepted archive is a tree from which a disk can be written.
func FuzzArchive(f *testing.F) {
	write := func(list ...tar.Header) []byte {
		var out bytes.Buffer
		w := tar.NewWriter(&out)
		for _, h := range list {
			_ = w.WriteHeader(&h)
		}
		_ = w.Close()
		return out.Bytes()
	}
	f.Add(write(tar.Header{Name: "opt/a", Typeflag: tar.TypeReg, Mode: 0o755},
		tar.Header{Name: "opt/l", Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("t", 60)}))
	f.Add(write(tar.Header{Name: strings.Repeat("n", maxExt4Name) + "/" + strings.Repeat("m", maxExt4Name),
		Typeflag: tar.TypeReg}))
	f.Add(write(tar.Header{Name: "usr", Typeflag: tar.TypeReg}, tar.Header{Name: "usr/bin/b", Typeflag: tar.TypeReg}))
	f.Add(holed())
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		name := filepath.Join(dir, "archive")
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		all := tree{}
		all.text("/usr/bin/a", "of the base")
		if err := all.addArchive(name); err != nil || len(all) > 500 {
			return
		}
		disk := filepath.Join(dir, "disk")
		defer os.Remove(disk)
		if err := writeExt4(disk, all); err != nil {
			t.Errorf("taken, and no disk comes of it: %v", err)
		}
	})
}
