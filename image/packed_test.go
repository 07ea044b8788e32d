package image

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unitask/unitask/image/erofs"
)

// driver returns an ELF file like a kernel module, whose .modinfo is a text.
func driver(info string) []byte {
	const header, section = 64, 64
	names := "\x00.shstrtab\x00.modinfo\x00"
	b := make([]byte, header)
	copy(b, "\x7fELF\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[16:], 1)  // relocatable
	le.PutUint16(b[18:], 62) // x86-64
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[40:], uint64(header+len(names)+len(info)))
	le.PutUint16(b[52:], header)
	le.PutUint16(b[58:], section)
	le.PutUint16(b[60:], 3)
	le.PutUint16(b[62:], 1)
	b = append(append(b, names...), info...)
	add := func(name, kind uint32, at, size int) {
		s := make([]byte, section)
		le.PutUint32(s[0:], name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(at))
		le.PutUint64(s[32:], uint64(size))
		b = append(b, s...)
	}
	add(0, 0, 0, 0)
	add(1, 3, header, len(names))
	add(11, 1, header+len(names), len(info))
	return b
}

func TestModuleNeeds(t *testing.T) {
	for info, want := range map[string][]string{
		"": nil, "license=GPL\x00depends=\x00name=erofs\x00": nil, "depends=libcrc32c\x00": {"libcrc32c"},
		"name=x\x00depends=a,b\x00intree=Y\x00": {"a", "b"},
	} {
		if got, err := moduleNeeds(driver(info)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q %v", info, got, err)
		}
	}
	for _, bad := range [][]byte{nil, []byte("\x7fELF"), bytes.Repeat([]byte("x"), 1000), driver("depends=")[:100]} {
		if got, err := moduleNeeds(bad); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}

func TestPackedAt(t *testing.T) {
	p := Payload{Packed: []string{"/usr/lib/python3/", "/usr/lib/TRIPLET/libicu", "*.py"}}
	for name, want := range map[string]bool{
		"/usr/lib/python3/dist-packages/x.so": true, "/usr/lib/python3.11/os.pyc": false, "/usr/lib/python3.11/os.py": true,
		"/usr/lib/x86_64-linux-gnu/libicudata.so.72": true, "/usr/lib/aarch64-linux-gnu/libicudata.so.72": false,
		"/usr/lib/x86_64-linux-gnu/libz.so": false,
	} {
		if got := p.packedAt(AMD64, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A disk is packed if the kernel's part contains all that reads a packed one. Otherwise the image is an ordinary one.
func TestPackedImage(t *testing.T) {
	_, s := severalStore(t)
	s.payload.Packed = []string{"/usr/share/many/"}
	kernel, err := s.Parts().Get(HostArch(), kernelPart)
	must(t, err)
	modules := kernel.path("modules")
	must(t, os.MkdirAll(modules, 0o755))
	put := func(name string, text []byte) { must(t, os.WriteFile(filepath.Join(modules, name+".ko"), text, 0o644)) }
	digests := map[string]bool{}
	for _, step := range []struct {
		what   string
		change func()
		packed bool
	}{
		{"no driver", func() {}, false},
		{"a driver that is none", func() { put(erofsModule, []byte("x")) }, false},
		{"a driver that needs another one", func() { put(erofsModule, driver("depends=libcrc32c\x00")) }, false},
		{"both", func() { put("libcrc32c", driver("")) }, true},
		{"a driver that needs one that is not known",
			func() { put("netfs", driver("")); put(erofsModule, driver("depends=netfs\x00")) }, false},
	} {
		step.change()
		im, err := s.Ensure(t.Context(), Linux, HostArch())
		must(t, err)
		f, err := os.Open(im.Path(DiskFile))
		must(t, err)
		defer f.Close()
		if erofs.Is(f) != step.packed {
			t.Errorf("%s: packed is %v", step.what, !step.packed)
		}
		initrd, err := os.ReadFile(im.Path(InitrdFile))
		must(t, err)
		if bytes.Contains(initrd, []byte("/modules/libcrc32c.ko\n/modules/erofs.ko\n")) != step.packed {
			t.Errorf("%s: other modules in the initramfs", step.what)
		}
		entries, err := im.Entries()
		must(t, err)
		i := slices.IndexFunc(entries, func(e Entry) bool { return e.Path == "/usr/share/many/a" })
		if i < 0 || entries[i].Size != int64(len("root/usr/share/many/a")) || step.packed && entries[i].Mode != 0o755 {
			t.Errorf("%s: %d of %d entries: %v", step.what, i, len(entries), entries[max(i, 0)])
		}
		if step.packed {
			again := filepath.Join(t.TempDir(), "again")
			tr, _, err := s.linuxTree(HostArch())
			must(t, err)
			must(t, s.writePacked(again, tr, HostArch()))
			if a, err := sha256File(again); err != nil || a != fileDigest(im, DiskFile) {
				t.Errorf("%s: another disk the second time: %v", step.what, err)
			}
		}
		digests[im.Digest] = true
	}
	if len(digests) != 2 {
		t.Errorf("%d digests", len(digests))
	}
	put(erofsModule, driver("depends=libcrc32c\x00"))
	// a folder can't be read, like any file when too many are open
	for _, name := range []string{"libcrc32c", erofsModule, pciModule} {
		file := filepath.Join(modules, name+".ko")
		had, err := os.ReadFile(file)
		if err == nil {
			must(t, os.Remove(file))
		}
		must(t, os.Mkdir(file, 0o755))
		if got, err := s.Digest(Linux, HostArch()); err == nil {
			t.Errorf("%s can't be read, and the digest is %s", name, got)
		}
		if im, err := s.Ensure(t.Context(), Linux, HostArch()); err == nil {
			t.Errorf("%s can't be read, and the image is %s", name, im.Digest)
		}
		must(t, os.Remove(file))
		if had != nil {
			put(name, had)
		}
	}
	s.payload.Packed = nil
	if packed, err := s.packs(kernel); packed || err != nil {
		t.Errorf("an image packs that has nothing for it: %v", err)
	}
}
