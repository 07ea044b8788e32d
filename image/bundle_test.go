package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// bundleOf writes the bundle of a store with complete parts.
func bundleOf(t testing.TB) (file string, text []byte) {
	t.Helper()
	s := fakeStore(t)
	file = filepath.Join(t.TempDir(), "parts"+bundleSuffix)
	must(t, s.Parts().WriteBundle(HostArch(), file))
	text, err := os.ReadFile(file)
	must(t, err)
	return file, text
}

// emptyStore is a store of the same program without parts.
func emptyStore(t testing.TB) *Store {
	t.Helper()
	s, err := Open(t.TempDir(), fakeStore(t).payloads, nil)
	must(t, err)
	return s
}

func digestOf(text []byte) string {
	sum := sha256.Sum256(text)
	return "sha256-" + hex.EncodeToString(sum[:])
}

func TestBundle(t *testing.T) {
	file, text := bundleOf(t)
	if _, again := bundleOf(t); !bytes.Equal(text, again) {
		t.Error("the same parts give other bytes")
	}
	s := emptyStore(t)
	taken, err := s.Parts().VendorFrom(t.Context(), HostArch(), file)
	if err != nil || len(taken) != len(s.partsOf(Linux, HostArch()))+1 {
		t.Fatalf("%v %v", taken, err)
	}
	im, err := s.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	if digest, err := fakeStore(t).Digest(Linux, HostArch()); err != nil || im.Digest != digest {
		t.Errorf("another image: %s %s %v", im.Digest, digest, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.vendorDir(HostArch()), ".*")); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	other := map[Arch]Arch{AMD64: ARM64, ARM64: AMD64}[HostArch()]
	if _, err := s.Parts().VendorFrom(t.Context(), other, file); err == nil ||
		!strings.Contains(err.Error(), "no bundle for "+string(other)) {
		t.Errorf("for another architecture: %v", err)
	}
	must(t, os.Remove(filepath.Join(s.vendorDir(HostArch()), "busybox/root/bin/busybox")))
	if err := s.Parts().WriteBundle(HostArch(), file); !errors.Is(err, ErrNotVendored) {
		t.Errorf("of parts that are not whole: %v", err)
	}
}

// The bundle that was installed with the program comes before any other source. A store may lack an image, and the
// compiler for its programs: that prevents no bundle of the others.
func TestBundleInstalled(t *testing.T) {
	s := fakeStore(t)
	s.payloads = append(s.payloads, Payload{Name: "other", Parts: []string{"other"}, Program: "/usr/bin/other" + version})
	share := t.TempDir()
	must(t, s.Parts().WriteBundle(HostArch(), filepath.Join(share, "parts_"+string(HostArch())+bundleSuffix)))
	s = fakeStore(t)
	s.Installed, s.Offline = share, "test"
	must(t, os.RemoveAll(s.vendorDir(HostArch())))
	// Its parts are not those of the lock, so the rest would be fetched.
	if err := s.Parts().Vendor(t.Context(), HostArch()); !errors.Is(err, ErrOffline) {
		t.Error(err)
	}
	if _, err := s.Parts().Get(HostArch(), "node"); err != nil {
		t.Error(err)
	}
	must(t, os.RemoveAll(s.vendorDir(HostArch())))
	must(t, os.WriteFile(filepath.Join(share, "parts_"+string(HostArch())+bundleSuffix), []byte("half"), 0o600))
	if err := s.Parts().Vendor(t.Context(), HostArch()); err == nil || !strings.Contains(err.Error(), share) {
		t.Errorf("of half a bundle: %v", err)
	}
}

// A link among a package's headers, as in numpy, is not in a bundle: the receiver refuses links that the host would
// follow.
func TestBundleOfHeaders(t *testing.T) {
	s := fakeStore(t)
	include := filepath.Join(s.vendorDir(HostArch()), "libgcc", "include", "sub")
	must(t, os.MkdirAll(include, 0o755))
	must(t, os.Symlink("../../root/lib", filepath.Join(include, "link")))
	must(t, os.WriteFile(filepath.Join(include, "a.h"), []byte("//"), 0o644))
	file := filepath.Join(t.TempDir(), "parts"+bundleSuffix)
	must(t, s.Parts().WriteBundle(HostArch(), file))
	to := emptyStore(t)
	if _, err := to.Parts().VendorFrom(t.Context(), HostArch(), file); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(to.vendorDir(HostArch()), "libgcc", "include", "sub"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "a.h" {
		t.Errorf("%v %v", entries, err)
	}
}

// A host without apt, or with UNITASK_PARTS_URL, gets the parts from a bundle.
func TestVendorByBundle(t *testing.T) {
	_, text := bundleOf(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/"+string(HostArch())+bundleSuffix {
			_, _ = w.Write(text)
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	good := server.URL + "/ARCH" + bundleSuffix + "#" + digestOf(text)
	s := emptyStore(t)
	s.PartsURL = good
	if im, err := s.Obtain(t.Context(), Linux, HostArch()); err != nil || im.Path(DiskFile) == "" {
		t.Fatal(err)
	}
	s = emptyStore(t)
	t.Setenv("PATH", t.TempDir()) // no apt, no npm, no compiler
	if err := s.Parts().Vendor(t.Context(), HostArch()); err == nil ||
		!strings.Contains(err.Error(), "UNITASK_PARTS_URL") {
		t.Errorf("without anything: %v", err)
	}
	if _, err := s.Parts().VendorFrom(t.Context(), HostArch(),
		strings.ReplaceAll(good, "ARCH", string(HostArch()))); err != nil {
		t.Errorf("--from an address: %v", err)
	}
	s = emptyStore(t)
	s.PartsURL, s.Offline = good, "test"
	if err := s.Parts().Vendor(t.Context(), HostArch()); !errors.Is(err, ErrOffline) {
		t.Errorf("offline: %v", err)
	}
}

// Attacks by a bundle, or by its server.
func TestAttackBundle(t *testing.T) {
	_, good := bundleOf(t)
	arch := string(HostArch())
	whole := func(more ...*tar.Header) []byte { // the good bundle's files, and others
		data, err := decompress(bytes.NewReader(good))
		must(t, err)
		var b bytes.Buffer
		r, w := tar.NewReader(data), tar.NewWriter(&b)
		for h, err := r.Next(); err == nil; h, err = r.Next() {
			must(t, w.WriteHeader(h))
			body := make([]byte, h.Size)
			_, _ = r.Read(body)
			_, err := w.Write(body)
			must(t, err)
		}
		for _, h := range more {
			must(t, w.WriteHeader(h))
		}
		must(t, w.Close())
		return packed(t, ".zst", b.Bytes())
	}
	digest := digestOf(good)
	for _, c := range []struct {
		name   string
		serve  []byte
		digest string // "" means the digest of the served bundle, which the attacker knows
		says   string
	}{
		{"a bundle with a digest that lies", good, "sha256-" + strings.Repeat("0", 64), "and not sha256-000"},
		{"a bundle that was exchanged", whole(&tar.Header{Name: arch + "/libc/root/more", Typeflag: tar.TypeReg}), digest,
			"has digest"},
		{"a bundle without a digest", good, "none", "has no digest"},
		{"a bundle that is cut", good[:len(good)/2], "", "unexpected EOF"},
		{"a page in a bundle's place", []byte("<html>"), "", "read archive"},
		{"a path outside", whole(&tar.Header{Name: "../../evil", Typeflag: tar.TypeReg}), "", "leads out"},
		{"an absolute path", whole(&tar.Header{Name: "/tmp/evil", Typeflag: tar.TypeReg}), "", "leads out"},
		{"a link that the build would follow", whole(&tar.Header{Name: arch + "/linux/modules/x.ko",
			Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"}), "", "is a link"},
		{"a link for a folder of the guest's tools", whole(&tar.Header{Name: arch + "/busybox/root/x",
			Typeflag: tar.TypeSymlink, Linkname: "/etc"}), "", "is a link"},
		{"a file behind a link", whole(&tar.Header{Name: arch + "/libc/root/x", Typeflag: tar.TypeSymlink, Linkname: "/tmp"},
			&tar.Header{Name: arch + "/libc/root/x/evil", Typeflag: tar.TypeReg}), "", "unpack"},
		{"a device", whole(&tar.Header{Name: arch + "/libc/dev", Typeflag: tar.TypeBlock}), "", "neither a file"},
		{"a part of another name", whole(&tar.Header{Name: arch + "/nanos/kernel.img", Typeflag: tar.TypeReg}), "",
			"not a part of the linux guest"},
		{"a bundle of nothing", packed(t, ".zst", archive(t)), "", "no bundle for"},
		{"a bundle that is a bomb", bomb(t), "", "more than"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_,
				_ = w.Write(c.serve)
		}))
		s := emptyStore(t)
		switch c.digest {
		case "":
			c.digest = "#" + digestOf(c.serve)
		case "none":
			c.digest = ""
		default:
			c.digest = "#" + c.digest
		}
		_, err := s.Parts().VendorFrom(t.Context(), HostArch(), server.URL+"/x"+bundleSuffix+c.digest)
		server.Close()
		got := "taken"
		if err != nil {
			if got = "refused"; !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if left, _ := os.ReadDir(s.vendorDir(HostArch())); len(left) > 0 {
			got = "left files"
		}
		if exists("/tmp/evil") || exists(filepath.Join(s.home, "evil")) {
			got = "wrote outside"
		}
		attack.Check(t, c.name, "refused", got)
	}
}

// bomb is a short file that unpacks to more than any bundle may.
func bomb(t testing.TB) []byte {
	var b bytes.Buffer
	must(t, tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Size: maxArchiveBytes + 1}))
	return packed(t, ".zst", b.Bytes())
}

func FuzzTakeBundle(f *testing.F) {
	arch := string(HostArch())
	f.Add(archive(f, &tar.Header{Name: arch + "/busybox/part.json", Typeflag: tar.TypeReg, Size: 2}))
	f.Add(archive(f, &tar.Header{Name: "../x", Typeflag: tar.TypeReg}))
	s := emptyStore(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		file := filepath.Join(t.TempDir(), "x"+bundleSuffix)
		must(t, os.WriteFile(file, in, 0o600))
		if taken, err := s.Parts().takeBundle(HostArch(), file); err == nil {
			t.Errorf("took %v of what no bundle is", taken)
		}
		if left, _ := os.ReadDir(s.vendorDir(HostArch())); len(left) > 0 {
			t.Errorf("left %v", left)
		}
	})
}
