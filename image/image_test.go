package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/ext4"
	"github.com/pierrec/lz4/v4"
)

func TestLock(t *testing.T) {
	for _, arch := range []Arch{AMD64, ARM64} {
		parts, err := Lock(arch)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for _, p := range parts {
			names[p.Name] = true
			if p.From != "release" && !strings.HasPrefix(p.Digest,
				map[string]string{"npm": "sha512-", "debian": "sha256-", "go": "h1:"}[p.From]) ||
				p.From != "release" && len(p.Digest) < 40 {
				t.Errorf("%s for %s has no digest", p.Name, arch)
			}
		}
		for _, name := range fakeStore(t).partsOf(Linux, HostArch()) {
			if !names[name] {
				t.Errorf("no %s for %s", name, arch)
			}
		}
	}
	for name, text := range map[string]string{
		"unknown key":     "[[part]]\nname='x'\narch='amd64'\nversion='1'\nlicense='MIT'\ncolour='red'",
		"no licence":      "[[part]]\nname='x'\narch='amd64'\nversion='1'",
		"no architecture": "[[part]]\nname='x'\narch='mips'\nversion='1'\nlicense='MIT'",
		"not TOML":        "[[part",
	} {
		if _, err := (LockFile{"test.lock", Release, text}).parse(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestParseArch(t *testing.T) {
	for in, want := range map[string]Arch{"": HostArch(), "amd64": AMD64, "x86_64": AMD64, "arm64": ARM64,
		"aarch64": ARM64} {
		if got, err := ParseArch(in); err != nil || got != want {
			t.Errorf("%q: %q %v", in, got, err)
		}
	}
	if _, err := ParseArch("mips"); err == nil {
		t.Error("mips is known")
	}
}

// bzImage wraps a payload as Linux's boot protocol defines it.
func bzImage(payload []byte, size uint32) []byte {
	bz := make([]byte, 1024)
	bz[bzSetupSects] = 1
	copy(bz[bzMagic:], "HdrS")
	payload = append(payload, byte(size), byte(size>>8), byte(size>>16), byte(size>>24))
	n := len(payload)
	copy(bz[bzPayloadLength:], []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
	return append(bz, payload...)
}

func lz4Of(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := lz4.NewWriter(&b)
	if err := w.Apply(lz4.LegacyOption(true)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestBootableKernel(t *testing.T) {
	elf := append([]byte("\x7fELF"), bytes.Repeat([]byte("code"), 1000)...)
	good := bzImage(lz4Of(t, elf), uint32(len(elf)))
	if got := bootableKernel(good); !bytes.Equal(got, elf) {
		t.Errorf("%d bytes, not the ELF", len(got))
	}
	for _, suffix := range []string{".zst", ".xz", ".gz"} {
		if got := bootableKernel(bzImage(packed(t, suffix, elf), uint32(len(elf)))); !bytes.Equal(got, elf) {
			t.Errorf("%s: %d bytes, not the ELF", suffix, len(got))
		}
	}
	// An unknown format stays unchanged: QEMU can boot a bzImage too.
	for name, bz := range map[string][]byte{
		"empty": nil, "short": make([]byte, 0x240), "not a bzImage": bytes.Repeat([]byte{1}, 4096),
		"no ELF inside":        bzImage(lz4Of(t, []byte("hello")), 5),
		"size lies: more":      bzImage(lz4Of(t, elf), uint32(len(elf)+1)),
		"size lies: gigabytes": bzImage(lz4Of(t, elf), 0xffffffff), "payload cut": good[:len(good)-100],
		"other compression": bzImage([]byte("\x1f\x8b not lz4"), 10),
	} {
		if got := bootableKernel(bz); !bytes.Equal(got, bz) {
			t.Errorf("%s: changed", name)
		}
	}
}

func FuzzBootableKernel(f *testing.F) {
	f.Add(bzImage(lz4Of(f, []byte("\x7fELF....")), 8))
	f.Fuzz(func(t *testing.T, bz []byte) {
		if len(bz) > 1<<20 {
			return
		}
		bootableKernel(bz)
	})
}

func TestExt4(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_000)
	copy(big[len(big)/2:], make([]byte, 3*ext4BlockSize))
	if err := os.WriteFile(source, big, 0o600); err != nil {
		t.Fatal(err)
	}
	tr := tree{}
	tr.file("/usr/bin/big", 0o755, source)
	tr.text("/etc/hosts", "127.0.0.1 localhost\n")
	tr.link("/usr/bin/link", "big")
	name := filepath.Join(dir, "disk.img")
	if err := writeExt4(name, tr); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	// Unused tables take no space, and neither do a file's zeros.
	if allocated(st) > int64(len(big))+64<<10 && runtime.GOOS == "linux" {
		t.Errorf("%d bytes for files of %d", allocated(st), len(big))
	}
	disk, err := ext4.Read(file.New(f, true), st.Size(), 0, 512)
	if err != nil {
		t.Fatal(err)
	}
	got, err := fs.ReadFile(disk, "usr/bin/big")
	if err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d bytes: %v", len(got), err)
	}
	info, err := fs.Stat(disk, "usr/bin/big")
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v %v", info, err)
	}
	for bad, tr := range map[string]tree{
		"no source":        {"/x": {path: "/x", source: filepath.Join(dir, "nowhere")}},
		"source a folder":  {"/x": {path: "/x", source: dir}},
		"no parent folder": {"/a/b": {path: "/a/b", data: []byte("x")}},
	} {
		if err := writeExt4(filepath.Join(dir, bad), tr); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}

// A tree of only folders and links, with almost no blocks, has enough inodes.
func TestExt4Links(t *testing.T) {
	tr := tree{}
	for i := range 6000 {
		tr.link(fmt.Sprintf("/%d/%d/l", i/80, i%80), "to")
	}
	name := filepath.Join(t.TempDir(), "disk.img")
	if err := writeExt4(name, tr); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	disk, err := ext4.Read(file.New(f, true), st.Size(), 0, 512)
	if err != nil {
		t.Fatal(err)
	}
	if to, err := disk.ReadLink("74/79/l"); err != nil || to != "to" {
		t.Errorf("%q %v", to, err)
	}
}

// fakeStore is a store whose parts are small stand-ins. It tests the store, which does not read them.
func fakeStore(t testing.TB) *Store {
	t.Helper()
	payload := Payload{
		Name: "node", Nanos: true,
		Sources: fstest.MapFS{"agent/agent.c": {Data: []byte("//")}}, Parts: []string{"node", "libc", "libstdc++", "libgcc"},
		Program: "/usr/bin/node", Args: []string{"node"}, Library: "/unitask/lib/shim.node",
		Files: map[string]string{"/unitask/lib/preload.js": "//"},
	}
	s, err := Open(t.TempDir(), []Payload{payload}, nil)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := s.Parts().guestDigest(HostArch())
	if err != nil {
		t.Fatal(err)
	}
	put := func(part, digest string, files ...string) {
		err := s.Parts().addPart(HostArch(), part, func(dir string) (Part, error) {
			for _, f := range files {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(f)), 0o755); err != nil {
					return Part{}, err
				}
				if err := os.WriteFile(filepath.Join(dir, f), []byte(f), 0o755); err != nil {
					return Part{}, err
				}
			}
			return Part{Name: part, Version: "1", Digest: digest, From: "test", License: "MIT"}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("node", "n", "node")
	for _, lib := range []string{"libc", "libstdc++", "libgcc"} {
		var files []string
		for _, w := range debianParts(lib, HostArch()) {
			files = append(files, w.dst+strings.ReplaceAll(path.Base(w.pattern), "*", "x"))
		}
		put(lib, lib, files...)
	}
	put("ca-certificates", "c", "certs/a.crt")
	put("busybox", "b", "root/bin/busybox")
	put("linux", "l", "vmlinuz", "modules/virtio.ko")
	put(guestPart, digest, "init", "shim.node")
	return s
}

func TestStore(t *testing.T) {
	s := fakeStore(t)
	if _, err := s.Lookup(Linux, HostArch()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before: %v", err)
	}
	im, err := s.Ensure(t.Context(), Linux, HostArch())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := s.Ensure(t.Context(), Linux, HostArch()); err != nil || again.Digest != im.Digest ||
		!again.Built.Equal(im.Built) {
		t.Errorf("%+v %v", again, err)
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0].Kernel != Linux {
		t.Errorf("%v %v", list, err)
	}
	// A different part gives a different image.
	if err := s.Parts().addPart(HostArch(), "busybox", func(dir string) (Part, error) {
		if err := os.MkdirAll(filepath.Join(dir, "root/bin"), 0o755); err != nil {
			return Part{}, err
		}
		return Part{Name: "busybox", Version: "2", Digest: "b2"},
			os.WriteFile(filepath.Join(dir, "root/bin/busybox"), nil, 0o755)
	}); err != nil {
		t.Fatal(err)
	}
	other, err := s.Ensure(t.Context(), Linux, HostArch())
	if err != nil || other.Digest == im.Digest {
		t.Errorf("%v %v", other, err)
	}
	// A kernel with an added PCI driver, from the same package, also gives a different image.
	must(t, os.WriteFile(filepath.Join(s.vendorDir(HostArch()), "linux", "modules", pciModule+".ko"), []byte("code"),
		0o644))
	if digest, err := s.Digest(Linux, HostArch()); err != nil || digest == other.Digest {
		t.Errorf("with a driver for PCI: %s %v", digest, err)
	}
	if _, err := s.Remove(""); err == nil {
		t.Error("an empty prefix removes something")
	}
	if _, err := s.Remove("zz"); err == nil {
		t.Error("removed what is not there")
	}
	if digest, err := s.Remove(im.Digest[:12]); err != nil || digest != im.Digest {
		t.Errorf("%s %v", digest, err)
	}
	if _, err := s.Lookup(Nanos, HostArch()); !errors.Is(err, ErrNotVendored) {
		t.Errorf("%v", err)
	}
	if _, err := s.Ensure(t.Context(), "bsd", HostArch()); err == nil {
		t.Error("built a bsd")
	}
}

// Two concurrent builds give the same image, and leave nothing incomplete.
func TestBuildAtOnce(t *testing.T) {
	s := fakeStore(t)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			other, err := Open(s.Home(), s.payloads, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := other.Ensure(t.Context(), Linux, HostArch()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	entries, err := os.ReadDir(s.imagesDir())
	if err != nil || len(entries) != 1 {
		t.Errorf("%v %v", entries, err)
	}
}

func TestDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string){
		"truncated": func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, DiskFile), 100)) },
		"longer":    func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, DiskFile), 1<<30)) },
		"missing":   func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, KernelFile))) },
		"a link instead": func(t *testing.T, dir string) {
			p := filepath.Join(dir, InitrdFile)
			must(t, os.Remove(p))
			must(t, os.Symlink("/etc/passwd", p))
		},
		"same size, other bytes": func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, DiskFile), os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteAt([]byte("evil"), 5000)
			must(t, err)
			must(t, f.Close())
		},
		"description": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, imageFile), []byte("{"), 0o600))
		},
		"description of another one": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, imageFile), []byte(`{"digest":"00"}`), 0o600))
		},
		"description without an end?": func(t *testing.T, dir string) {
			must(t, os.WriteFile(filepath.Join(dir, imageFile), bytes.Repeat([]byte("["), 1<<20), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := fakeStore(t)
			im, err := s.Ensure(t.Context(), Linux, HostArch())
			must(t, err)
			for _, f := range im.Files {
				must(t, os.Chmod(im.Path(f.Name), 0o600))
			}
			damage(t, im.dir)
			_, err = s.Lookup(Linux, HostArch())
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "unitask image rm "+im.Digest[:12]) {
				t.Errorf("%v", err)
			}
			if _, err := s.Ensure(t.Context(), Linux, HostArch()); !errors.Is(err, ErrDamaged) {
				t.Errorf("a damaged image is not silently replaced: %v", err)
			}
			_, err = s.Remove(im.Digest[:12])
			must(t, err)
			_, err = s.Ensure(t.Context(), Linux, HostArch())
			must(t, err)
		})
	}
}

// A file with a new time but correct bytes is not damaged.
func TestTouchedIsNotDamaged(t *testing.T) {
	s := fakeStore(t)
	im, err := s.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	must(t, os.Chtimes(im.Path(DiskFile), time.Now(), time.Now()))
	_, err = s.Lookup(Linux, HostArch())
	must(t, err)
}

func TestSweep(t *testing.T) {
	s := fakeStore(t)
	old, young := filepath.Join(s.imagesDir(), ".new-1"), filepath.Join(s.imagesDir(), ".new-2")
	must(t, os.MkdirAll(old, 0o700))
	must(t, os.MkdirAll(young, 0o700))
	long := time.Now().Add(-2 * sweepAge)
	must(t, os.Chtimes(old, long, long))
	_, err := s.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	if _, err := os.Stat(old); err == nil {
		t.Error("what a killed build left is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Error("a build under way was swept")
	}
}

func TestVendorFrom(t *testing.T) {
	s := fakeStore(t)
	// The vendor folder of another machine's store.
	other, err := Open(t.TempDir(), s.payloads, nil)
	must(t, err)
	taken, err := other.Parts().VendorFrom(t.Context(), HostArch(), s.vendorDir(HostArch()))
	if err != nil || len(taken) != 8 {
		t.Fatalf("%v %v", taken, err)
	}
	a, err := s.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	b, err := other.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	if a.Digest != b.Digest {
		t.Error("the same parts give another image")
	}

	dir := t.TempDir()
	tgz := filepath.Join(dir, "x.tgz")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, err = z.Write(archive(t, &tar.Header{Name: "package/bin/node", Typeflag: tar.TypeReg, Size: 3}))
	must(t, err)
	must(t, z.Close())
	must(t, os.WriteFile(tgz, packed.Bytes(), 0o600))
	for name, from := range map[string]string{"a package of another digest": tgz, "an empty folder": t.TempDir(),
		"nowhere": filepath.Join(dir, "nowhere"), "a text": "/etc/passwd"} {
		if taken, err := s.Parts().VendorFrom(t.Context(), HostArch(), from); err == nil {
			t.Errorf("%s: took %v", name, taken)
		}
	}
	evil := filepath.Join(dir, "evil")
	must(t, os.Mkdir(evil, 0o700))
	for _, name := range []string{"../up", "a/b", "..", ""} {
		text, err := json.Marshal(Part{Name: name})
		must(t, err)
		must(t, os.WriteFile(filepath.Join(evil, partFile), text, 0o600))
		if taken, err := s.Parts().VendorFrom(t.Context(), HostArch(), dir); err == nil {
			t.Errorf("%q: took %v", name, taken)
		}
	}
}

func TestLockWaits(t *testing.T) {
	s := fakeStore(t)
	unlock, err := s.lock(t.Context(), "x")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.lock(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	unlock()
	again, err := s.lock(t.Context(), "x")
	must(t, err)
	again()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
