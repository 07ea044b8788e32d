package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// packed returns text in one of Debian's compressions.
func packed(t testing.TB, suffix string, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch suffix {
	case ".xz":
		w, err = xz.NewWriter(&b)
	case ".zst":
		w, err = zstd.NewWriter(&b)
	case ".gz":
		w = gzip.NewWriter(&b)
	default:
		return text
	}
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// member returns one member of an ar archive.
func member(name string, data []byte) []byte {
	out := fmt.Appendf(nil, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, 0, 0, 0, "100644", len(data))
	out = append(out, data...)
	if len(data)%2 == 1 {
		out = append(out, '\n')
	}
	return out
}

func debOf(members ...[]byte) []byte { return append([]byte(arMagic), bytes.Join(members, nil)...) }

func TestUnpackDeb(t *testing.T) {
	files := archive(t, &tar.Header{Name: "./usr/bin/busybox", Typeflag: tar.TypeReg, Size: 5, Mode: 0o755})
	version, control := member("debian-binary", []byte("2.0\n")), member("control.tar.xz", []byte("odd"))
	good := debOf(version, control, member("data.tar.xz", packed(t, ".xz", files)))
	for name, c := range map[string]struct {
		deb  []byte
		says string // of the error; "" for none
	}{
		"size lies: more": {append(debOf(version), []byte(fmt.Sprintf("%-48s%-10d`\n", "data.tar", int64(1)<<40))...),
			"malformed ar header"},
		"size is negative": {append(debOf(version), []byte(fmt.Sprintf("%-48s%-10d`\n", "data.tar", -1))...),
			"malformed ar header"},
		"size is no number": {append(debOf(version), []byte(fmt.Sprintf("%-48s%-10s`\n", "data.tar", "x"))...),
			"malformed ar header"},
		"a member is cut":   {append(debOf(version), member("control.tar", make([]byte, 100))[:90]...), "ends before"},
		"a header is cut":   {debOf(version)[:40], "ends before"},
		"the data is cut":   {good[:len(good)-100], "unexpected EOF"},
		"no data":           {debOf(version, control), "ends before"},
		"no end of members": {debOf(slices.Repeat([][]byte{control}, maxMembers+1)...), "no data.tar"},
		"empty":             {nil, "no ar archive"},
		"no package":        {[]byte("<html>not found</html>"), "no ar archive"},
		"leads out": {debOf(version, member("data.tar",
			archive(t, &tar.Header{Name: "../evil", Typeflag: tar.TypeReg}))), "leads out"},
		"xz":             {good, ""},
		"zst":            {debOf(version, control, member("data.tar.zst", packed(t, ".zst", files))), ""},
		"gz":             {debOf(version, control, member("data.tar.gz", packed(t, ".gz", files))), ""},
		"plain, a slash": {debOf(version, control, member("data.tar/", files)), ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "busybox.deb")
			must(t, os.WriteFile(file, c.deb, 0o644))
			part := filepath.Join(dir, "part")
			must(t, os.Mkdir(part, 0o755))
			err := unpackDeb(file, part, debianFiles("busybox", AMD64))
			if (err == nil) != (c.says == "") || (err != nil && !strings.Contains(err.Error(), c.says)) {
				t.Fatalf("%v, want %q", err, c.says)
			}
			if err == nil && !exists(filepath.Join(part, "root/bin/busybox")) {
				t.Error("no busybox")
			}
		})
	}
}

func FuzzDebData(f *testing.F) {
	f.Add(debOf(member("debian-binary", []byte("2.0\n")),
		member("data.tar", archive(f, &tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1}))))
	f.Add(debOf(member("data.tar.gz", packed(f, ".gz", []byte("x")))))
	f.Fuzz(func(t *testing.T, in []byte) {
		if strings.Contains(string(in), decompressors[0].magic) {
			return // an xz header may ask for gigabytes; packages are checked against their digests first
		}
		data, err := debMember(bytes.NewReader(in), "data.tar")
		if err != nil {
			return
		}
		defer data.Close()
		n, _ := io.Copy(io.Discard, io.LimitReader(data, 1<<20))
		if n > 0 && len(in) <= len(arMagic)+arHeader {
			t.Errorf("%d bytes out of nothing", n)
		}
	})
}

// The path of the same file in Debian's releases.
func TestDebianFiles(t *testing.T) {
	for _, c := range []struct {
		part string
		arch Arch
		name string
		want string // "" for an unwanted file
	}{
		{"libc", AMD64, "lib/x86_64-linux-gnu/libc.so.6", "root/lib/x86_64-linux-gnu/libc.so.6"},
		{"libc", AMD64, "usr/lib/x86_64-linux-gnu/libc.so.6", "root/lib/x86_64-linux-gnu/libc.so.6"},
		{"libc", AMD64, "lib64/ld-linux-x86-64.so.2", "root/lib64/ld-linux-x86-64.so.2"},
		{"libc", AMD64, "usr/lib64/ld-linux-x86-64.so.2", "root/lib64/ld-linux-x86-64.so.2"},
		{"libc", ARM64, "usr/lib/ld-linux-aarch64.so.1", "root/lib/ld-linux-aarch64.so.1"},
		{"libc", ARM64, "lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", "root/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1"},
		{"libc", AMD64, "usr/lib/x86_64-linux-gnu/gconv/UTF-16.so", ""},
		{"libstdc++", AMD64, "usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.33",
			"root/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.33"},
		{"libgcc", AMD64, "usr/lib/x86_64-linux-gnu/libgcc_s.so.1", "root/lib/x86_64-linux-gnu/libgcc_s.so.1"},
		{"busybox", AMD64, "bin/busybox", "root/bin/busybox"},
		{"busybox", AMD64, "usr/bin/busybox", "root/bin/busybox"},
		{"linux", AMD64, "boot/vmlinuz-6.12.107+deb13-cloud-amd64", "vmlinuz"},
		{"linux", AMD64, "usr/lib/modules/7.2.12+deb14-cloud-amd64/vmlinuz", "vmlinuz"},
		{"linux", AMD64, "lib/modules/6.1.0-56-cloud-amd64/kernel/drivers/net/virtio_net.ko", "modules/virtio_net.ko"},
		{"linux", AMD64, "usr/lib/modules/6.12/kernel/drivers/net/virtio_net.ko.xz", "modules/virtio_net.ko.xz"},
		{"linux", AMD64, "usr/lib/modules/6.12/kernel/drivers/net/virtio_net.ko.zst", "modules/virtio_net.ko.zst"},
		{"linux", AMD64, "usr/lib/modules/6.12/kernel/drivers/net/virtio_net.ko.sig", ""},
		{certificatesPart, AMD64, "usr/share/ca-certificates/mozilla/A.crt", "certs/A.crt"},
		{"libc", AMD64, "usr/share/doc/libc6/copyright", "licences/libc6"},
		{certificatesPart, AMD64, "usr/share/doc/ca-certificates/examples/ca-certificates-local/debian/copyright", ""},
		{"bash", AMD64, "usr/share/doc/bash/copyright", "licences/bash"},
		{"bash", AMD64, "usr/share/doc/bash/README.gz", ""},
		{"bash", AMD64, "bin/bash", "root/usr/bin/bash"},
		{"bash", AMD64, "usr/bin/bash", "root/usr/bin/bash"},
		{"bash", AMD64, "etc/bash.bashrc", "root/etc/bash.bashrc"},
		{"bash", AMD64, "usr/share/man/man1/bash.1.gz", ""},
		{"bash", AMD64, "var/lib/x", ""},
		{"zlib1g", AMD64, "lib/x86_64-linux-gnu/libz.so.1", "root/lib/x86_64-linux-gnu/libz.so.1"},
		{"tzdata", AMD64, "usr/share/zoneinfo/right/UTC", ""},
		{"python3-numpy", AMD64, "usr/lib/python3/dist-packages/numpy/_core/tests/test_array.py", ""},
		{"python3-numpy", AMD64, "usr/lib/python3/dist-packages/numpy/_core/tests/_natype.py",
			"root/usr/lib/python3/dist-packages/numpy/_core/tests/_natype.py"},
		{"libpython-stdlib", AMD64, "usr/lib/python3.13/config-3.13-x86_64-linux-gnu/Makefile", ""},
		{"python3-numpy", AMD64, "usr/include/python3.11/numpy", ""},
		{"libpython-dev", AMD64, "usr/include/python3.11/Python.h", "include/python3.11/Python.h"},
		{"libpython-dev", AMD64, "usr/lib/python3.11/config-3.11-x86_64-linux-gnu/libpython3.11-pic.a", ""},
	} {
		if got, ok := debianFiles(c.part, c.arch)(c.name); got != c.want || ok != (c.want != "") {
			t.Errorf("%s %s: %q, want %q", c.part, c.name, got, c.want)
		}
	}
}

func TestDebVersion(t *testing.T) {
	for file, want := range map[string]string{"/x/busybox-static_1%3a1.37.0-6+b9_amd64.deb": "1:1.37.0-6+b9",
		"libc6_2.41-12+deb13u4_amd64.deb": "2.41-12+deb13u4", "odd.deb": ""} {
		if got, err := debVersion(file); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q %v", file, got, err)
		}
	}
}

func TestModules(t *testing.T) {
	for _, suffix := range append([]string{""}, moduleSuffixes...) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "virtio.ko"+suffix), packed(t, suffix, []byte("code")), 0o644))
		if got, err := readModule(dir, "virtio"); err != nil || string(got) != "code" {
			t.Errorf("%q: %q %v", suffix, got, err)
		}
		must(t, os.WriteFile(filepath.Join(dir, "virtio.ko"+suffix), packed(t, suffix, make([]byte, maxModule+1)), 0o644))
		if _, err := readModule(dir, "virtio"); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%q: a huge one: %v", suffix, err)
		}
	}
	if _, err := readModule(t.TempDir(), "virtio"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// A part whose files are missing does not exist: it is fetched again.
func TestPartsAreWhole(t *testing.T) {
	s := fakeStore(t)
	for _, name := range append(s.partsOf(Linux, HostArch()), guestPart) {
		must(t, os.Rename(s.vendorDir(HostArch()), s.vendorDir(HostArch())+".whole"))
		must(t, os.CopyFS(s.vendorDir(HostArch()), os.DirFS(s.vendorDir(HostArch())+".whole")))
		p, err := s.Parts().Get(HostArch(), name)
		must(t, err)
		text, err := os.ReadFile(p.path(partFile))
		must(t, err)
		must(t, os.RemoveAll(p.dir))
		must(t, os.Mkdir(p.dir, 0o755))
		must(t, os.WriteFile(p.path(partFile), bytes.Replace(text, []byte("{"), []byte(`{"behindLock":true,`), 1), 0o644))
		if _, err := s.Parts().Get(HostArch(), name); !errors.Is(err, ErrNotVendored) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Lookup(Linux, HostArch()); name != guestPart && !errors.Is(err, ErrNotVendored) {
			t.Errorf("an image without %s: %v", name, err)
		}
		if s.Offline = "test"; name != guestPart {
			if err := s.Parts().Vendor(t.Context(), HostArch()); !errors.Is(err, ErrOffline) ||
				!strings.Contains(err.Error(), name) {
				t.Errorf("%s would not be fetched: %v", name, err)
			}
		}
		must(t, os.RemoveAll(s.vendorDir(HostArch())))
		must(t, os.Rename(s.vendorDir(HostArch())+".whole", s.vendorDir(HostArch())))
	}
	err := s.Parts().addPart(HostArch(), "busybox", func(dir string) (Part,
		error) {
		return Part{Name: "busybox", Package: "busybox", Version: "2"}, nil
	})
	if err == nil || !strings.Contains(err.Error(), "root/bin/busybox") {
		t.Errorf("an empty part: %v", err)
	}
	if p, err := s.Parts().Get(HostArch(), "busybox"); err != nil || p.Version != "1" {
		t.Errorf("it took the place of the whole one: %+v %v", p, err)
	}
}

func TestOSRelease(t *testing.T) {
	for libc, want := range map[string]string{"2.36-9+deb12u14": "12 (bookworm)", "2.41-12+deb13u4": "13 (trixie)",
		"2.39-0ubuntu8.7": "Ubuntu 24.04 (noble)", "2.41-6ubuntu1": "Ubuntu", "2.43-7": "Debian GNU/Linux",
		"": "Debian GNU/Linux"} {
		if text := osRelease(libc); !strings.Contains(text, want) || strings.Contains(text, "%") {
			t.Errorf("%s: %s", libc, text)
		}
	}
}

// An initramfs ends at a page boundary, whatever its contents: ACPI's tables may follow it.
func TestInitramfsPages(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "modules"), 0o755); err != nil {
		t.Fatal(err)
	}
	init, out := filepath.Join(dir, "init"), filepath.Join(dir, "initrd")
	for _, size := range []int{0, 1, 3000, 3333, 4096, 4097, 1 << 20} {
		if err := os.WriteFile(init, make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
		os.Remove(out)
		if err := writeInitramfs(out, init, filepath.Join(dir, "modules"), nil, modules); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out)
		if err != nil || len(text) == 0 || len(text)%4096 != 0 || len(text) > size+2*4096 {
			t.Errorf("init of %d bytes: %d bytes, %v", size, len(text), err)
		}
		if end := bytes.TrimRight(text, "\x00"); !bytes.HasSuffix(end, []byte("TRAILER!!!")) {
			t.Errorf("init of %d bytes: it ends in %q", size, end[max(0, len(end)-20):])
		}
	}
}
