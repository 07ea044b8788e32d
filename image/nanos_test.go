package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/md5"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/partition/mbr"

	"github.com/unitask/unitask/image/tfs"
)

// elfFile returns the shortest ELF file for a machine, with one segment of size bytes.
func elfFile(machine elf.Machine, size uint64) []byte {
	var b bytes.Buffer
	h := elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: 2, Machine: uint16(machine), Version: 1,
		Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64}
	_ = binary.Write(&b, binary.LittleEndian, h)
	_ = binary.Write(&b, binary.LittleEndian, elf.Prog64{Type: 1, Off: 120, Filesz: size, Memsz: size})
	return append(b.Bytes(), make([]byte, 100)...)
}

// machineOf returns the ELF machine of the host's architecture and another one.
func machineOf(t *testing.T) (own, other elf.Machine) {
	t.Helper()
	if HostArch() == ARM64 {
		return elf.EM_AARCH64, elf.EM_X86_64
	}
	return elf.EM_X86_64, elf.EM_AARCH64
}

func bootImage() []byte {
	b := make([]byte, 3*sectorSize)
	b[510], b[511] = 0x55, 0xaa
	copy(b, "boot code")
	return b
}

// release returns a folder like a Nanos release.
func release(t *testing.T, kernel []byte) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, nanosKlibs), 0o755))
	for name, text := range map[string][]byte{nanosKernel: kernel, nanosBoot: bootImage(),
		nanosKlibs + "/" + sandboxKlib: []byte("klib"), nanosKlibs + "/" + straceKlib: []byte("klib"),
		nanosKlibs + "/ntp": []byte("not wanted")} {
		must(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	return dir
}

func TestVendorNanosFrom(t *testing.T) {
	own, other := machineOf(t)
	s := fakeStore(t)
	if s.Best(HostArch()) != Linux {
		t.Error("nanos without a kernel")
	}
	good := release(t, elfFile(own, 10))
	taken, err := s.Parts().VendorFrom(t.Context(), HostArch(), good)
	if err != nil || len(taken) != 1 || s.Best(HostArch()) != Nanos {
		t.Fatalf("%v %v", taken, err)
	}
	part, err := s.Parts().Get(HostArch(), nanosPart)
	if err != nil || !part.FirstSeen || !strings.HasPrefix(part.Digest, "sha256-") ||
		exists(part.path(nanosKlibs, "ntp")) {
		t.Errorf("%+v %v", part, err)
	}
	for name, c := range map[string]struct {
		damage func(dir string) error
		says   string
	}{
		"another architecture": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, nanosKernel), elfFile(other, 10), 0o644)
		}, "not for " + string(HostArch())},
		"no ELF": {func(dir string) error { return os.WriteFile(filepath.Join(dir, nanosKernel), []byte("kernel"), 0o644) },
			"is no kernel"},
		"empty": {func(dir string) error { return os.WriteFile(filepath.Join(dir, nanosKernel), nil, 0o644) },
			"is no kernel"},
		"cut": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, nanosKernel), elfFile(own, 1000), 0o644)
		}, "is cut"},
		"huge": {func(dir string) error { return os.Truncate(filepath.Join(dir, nanosKernel), maxNanosFile+1) }, "at most"},
	} {
		dir := release(t, elfFile(own, 10))
		must(t, c.damage(dir))
		if _, err := s.Parts().VendorFrom(t.Context(), HostArch(), dir); err == nil ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if again, err := s.Parts().Get(HostArch(), nanosPart); err != nil || again.Digest != part.Digest {
		t.Errorf("a refused release changed the store: %v", err)
	}
}

func TestBootLoader(t *testing.T) {
	if HostArch() != AMD64 {
		t.Skip("arm64 has no boot.img")
	}
	own, _ := machineOf(t)
	for name, boot := range map[string][]byte{"missing": nil, "no signature": make([]byte, 2048),
		"short": bootImage()[:600]} {
		dir := release(t, elfFile(own, 10))
		must(t, os.Remove(filepath.Join(dir, nanosBoot)))
		if boot != nil {
			must(t, os.WriteFile(filepath.Join(dir, nanosBoot), boot, 0o644))
		}
		if _, err := fakeStore(t).Parts().VendorFrom(t.Context(), HostArch(), dir); err == nil ||
			!strings.Contains(err.Error(), nanosBoot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// releaseArchive packs a release as the project does.
func releaseArchive(t *testing.T, kernel []byte, more ...*tar.Header) []byte {
	t.Helper()
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(z)
	for name, text := range map[string][]byte{nanosKernel: kernel, nanosBoot: bootImage(),
		nanosKlibs + "/" + sandboxKlib: []byte("klib")} {
		must(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(text)), Mode: 0o644}))
		_, err := w.Write(text)
		must(t, err)
	}
	for _, h := range more {
		must(t, w.WriteHeader(h))
	}
	must(t, w.Close())
	must(t, z.Close())
	return packed.Bytes()
}

func TestVendorNanosRelease(t *testing.T) {
	own, other := machineOf(t)
	good := releaseArchive(t, elfFile(own, 10))
	evil := releaseArchive(t, elfFile(own, 10), &tar.Header{Name: "../evil", Typeflag: tar.TypeReg})
	foreign := releaseArchive(t, elfFile(other, 10))
	sum := func(b []byte) string { s := md5.Sum(b); return hex.EncodeToString(s[:]) }
	for name, c := range map[string]struct {
		archive []byte
		md5     string
		digest  string // in vendor.lock
		says    string // of the error; "" for none
	}{
		"good":                 {good, sum(good) + "\n", "", ""},
		"wrong MD5":            {good, sum([]byte("x")), "", "MD5"},
		"no MD5":               {good, "", "", "MD5"},
		"an MD5 that is HTML":  {good, "<html>\x1b[2J", "", "MD5"},
		"wrong pinned digest":  {good, sum(good), "sha256-00", "vendor.lock says sha256-00"},
		"cut":                  {good[:len(good)/2], sum(good[:len(good)/2]), "", "unexpected EOF"},
		"no archive":           {[]byte("hello"), sum([]byte("hello")), "", "unpack"},
		"leads out":            {evil, sum(evil), "", "leads out"},
		"another architecture": {foreign, sum(foreign), "", "not for"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/1.2/nanos-1.2.tar.gz":
					_, _ = w.Write(c.archive)
				case "/1.2/nanos-1.2.md5":
					_, _ = w.Write([]byte(c.md5))
				default:
					http.NotFound(w, r)
				}
			}))
			defer server.Close()
			s := fakeStore(t)
			locked := LockedPart{Name: nanosPart, Arch: HostArch(), From: "release", Version: "1.0", Digest: c.digest,
				License: "Apache-2.0",
				URL:     server.URL + "/VERSION/nanos-VERSION.tar.gz", MD5URL: server.URL + "/VERSION/nanos-VERSION.md5"}
			if c.digest != "" {
				locked.Version = "1.2" // a pinned digest is for its version only
			}
			err := s.Parts().vendorRelease(t.Context(), locked, "1.2")
			if (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
				t.Fatalf("%v, want %q", err, c.says)
			}
			if err != nil {
				if strings.Contains(err.Error(), "\x1b") || s.Best(HostArch()) != Linux {
					t.Errorf("%q", err)
				}
				return
			}
			if p, err := s.Parts().Get(HostArch(), nanosPart); err != nil || p.Version != "1.2" || !p.FirstSeen ||
				exists(p.path(".archive")) {
				t.Errorf("%+v %v", p, err)
			}
			// The same version with other content than first seen is an error.
			c.archive = releaseArchive(t, elfFile(own, 11))
			c.md5 = sum(c.archive)
			if err := s.Parts().vendorRelease(t.Context(), locked, "1.2"); err == nil ||
				!strings.Contains(err.Error(), "first seen") {
				t.Errorf("%v", err)
			}
			for _, version := range []string{"9.9", "../etc", "1.2\n"} {
				if err := s.Parts().vendorRelease(t.Context(), locked, version); err == nil {
					t.Errorf("%q: no error", version)
				}
			}
		})
	}
}

// The disk as a whole: its content is read back, and the same input gives the same bytes.
func TestNanosDisk(t *testing.T) {
	own, _ := machineOf(t)
	build := func() (*Store, *Image) {
		s := fakeStore(t)
		_, err := s.Parts().VendorFrom(t.Context(), HostArch(), release(t, elfFile(own, 10)))
		must(t, err)
		im, err := s.Ensure(t.Context(), Nanos, HostArch())
		must(t, err)
		return s, im
	}
	_, im := build()
	_, again := build()
	if im.Digest != again.Digest || im.Files[0].SHA256 != again.Files[0].SHA256 ||
		im.Files[1].SHA256 != again.Files[1].SHA256 {
		t.Errorf("two builds differ: %+v %+v", im.Files, again.Files)
	}
	if im.Size() > 4<<20 {
		t.Errorf("%d bytes on disk: it should be sparse", im.Size())
	}
	f, err := os.Open(im.Path(DiskFile))
	must(t, err)
	defer f.Close()
	st, err := f.Stat()
	must(t, err)
	storage := file.New(f, true)
	table, err := mbr.Read(storage, sectorSize, sectorSize)
	must(t, err)
	boot, root := table.Partitions[0], table.Partitions[1]
	if boot.GetStart()-klogDump < int64(len(bootImage())) && HostArch() == AMD64 || boot.Start < 8 ||
		root.GetStart() != boot.GetStart()+boot.GetSize() {
		t.Errorf("boot at %d, root at %d", boot.Start, root.Start)
	}
	bootFS, err := tfs.Read(storage, boot.GetSize(), boot.GetStart())
	must(t, err)
	if kernel, err := bootFS.ReadFile("kernel"); err != nil || !bytes.Equal(kernel, elfFile(own, 10)) {
		t.Errorf("kernel: %v", err)
	}
	if klibs, err := bootFS.ReadDir("klib"); err != nil || len(klibs) != 1 || klibs[0].Name() != sandboxKlib {
		t.Errorf("klibs: %v %v", klibs, err)
	}
	rootFS, err := tfs.Read(storage, st.Size()-root.GetStart(), root.GetStart())
	must(t, err)
	var keys []string
	for _, p := range rootFS.Attributes() {
		keys = append(keys, p.Name)
	}
	if got := strings.Join(keys, " "); got != "program arguments environment cwd en1 debug_exit klibs sandbox" {
		t.Errorf("the root tuple has %s", got)
	}
	if text, err := rootFS.ReadFile("usr/bin/node"); err != nil || string(text) != "node" {
		t.Errorf("%q %v", text, err)
	}
	entries, err := im.Entries()
	must(t, err)
	seen := map[string]fs.FileMode{}
	for _, e := range entries {
		seen[e.Path] = e.Mode
	}
	for _, want := range []string{"/tmp", "/proc/self/stat", "/unitask/lib/preload.js", "/etc/hosts"} {
		if _, ok := seen[want]; !ok {
			t.Errorf("no %s in %v", want, seen)
		}
	}
	out := filepath.Join(t.TempDir(), "disk")
	must(t, im.Export(out))
	if a, err := sha256File(out); err != nil || a != fileDigest(im, DiskFile) {
		t.Errorf("the exported disk differs: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(out), ".unitask*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if err := im.Export("/nowhere/disk"); err == nil {
		t.Error("exported to nowhere")
	}
}

// An image that reports system calls is a separate one, with the klib for this. If the release lacks that klib, there
// is no such image, and ordinary ones are built.
func TestNanosTracing(t *testing.T) {
	own, _ := machineOf(t)
	s, from := fakeStore(t), release(t, elfFile(own, 10))
	_, err := s.Parts().VendorFrom(t.Context(), HostArch(), from)
	must(t, err)
	plain, err := s.Ensure(t.Context(), Nanos, HostArch())
	must(t, err)
	traced, err := s.Tracing().Ensure(t.Context(), Nanos, HostArch())
	must(t, err)
	if traced.Digest == plain.Digest || fileDigest(traced, DiskFile) == fileDigest(plain, DiskFile) ||
		!strings.HasSuffix(traced.Version, straceKlib) {
		t.Errorf("%+v", traced)
	}
	for _, kernel := range []Kernel{Linux, Nanos} {
		a, err := s.Digest(kernel, HostArch())
		must(t, err)
		b, err := s.Tracing().Digest(kernel, HostArch())
		must(t, err)
		if (a == b) != (kernel == Linux) {
			t.Errorf("%s: %s %s", kernel, a, b)
		}
	}
	for _, c := range []struct {
		im          *Image
		klibs, last string
	}{{plain, "sandbox", "sandbox"}, {traced, "sandbox strace", "debugsyscalls"}} {
		f, err := os.Open(c.im.Path(DiskFile))
		must(t, err)
		defer f.Close()
		storage := file.New(f, true)
		table, err := mbr.Read(storage, sectorSize, sectorSize)
		must(t, err)
		bootFS, err := tfs.Read(storage, table.Partitions[0].GetSize(), table.Partitions[0].GetStart())
		must(t, err)
		entries, err := bootFS.ReadDir("klib")
		must(t, err)
		var klibs []string
		for _, e := range entries {
			klibs = append(klibs, e.Name())
		}
		rootFS, err := tfs.Read(storage, table.Partitions[1].GetSize(), table.Partitions[1].GetStart())
		must(t, err)
		root := rootFS.Attributes()
		if got := strings.Join(klibs, " "); got != c.klibs || root[len(root)-1].Name != c.last {
			t.Errorf("klibs %s, and at the root's end %s", got, root[len(root)-1].Name)
		}
	}

	must(t, os.Remove(filepath.Join(from, nanosKlibs, straceKlib)))
	_, err = s.Parts().VendorFrom(t.Context(), HostArch(), from)
	must(t, err)
	if _, err := s.Tracing().Ensure(t.Context(), Nanos, HostArch()); !errors.Is(err, errNoStrace) {
		t.Errorf("without the klib: %v", err)
	}
	if _, err := s.Ensure(t.Context(), Nanos, HostArch()); err != nil {
		t.Errorf("an ordinary image without the klib: %v", err)
	}
}

func fileDigest(im *Image, name string) string {
	for _, f := range im.Files {
		if f.Name == name {
			return f.SHA256
		}
	}
	return ""
}

func TestLinuxEntries(t *testing.T) {
	s := fakeStore(t)
	im, err := s.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	entries, err := im.Entries()
	if err != nil || len(entries) < 10 {
		t.Errorf("%v %v", entries, err)
	}
	if err := im.Export(filepath.Join(t.TempDir(), "x")); err == nil ||
		!strings.Contains(err.Error(), "only a nanos image") {
		t.Errorf("%v", err)
	}
	if _, err := s.Find("zz"); err == nil {
		t.Error("found what is not there")
	}
}
