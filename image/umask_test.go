package image

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// What the guest may read and execute does not depend on the umask of whoever vendored the parts. A service's umask
// excludes others, and the guest's code does not run as the image's owner.
func TestUmask(t *testing.T) { // the umask applies to the whole process, so this test is not parallel
	made := func(mask int) map[string]fs.FileMode {
		t.Helper()
		before := syscall.Umask(mask)
		defer syscall.Umask(before)
		s := fakeStore(t)
		files := archive(t, &tar.Header{Name: "usr/lib/plain", Typeflag: tar.TypeReg, Mode: 0o644},
			&tar.Header{Name: "usr/lib/program", Typeflag: tar.TypeReg, Mode: 0o755},
			&tar.Header{Name: "usr/lib/kept", Typeflag: tar.TypeReg, Mode: 0o600},
			&tar.Header{Name: "usr/lib/shared", Typeflag: tar.TypeReg, Mode: 0o666},
			&tar.Header{Name: "usr/lib/mine", Typeflag: tar.TypeReg, Mode: 0o700})
		must(t, s.Parts().addPart(HostArch(), "busybox", func(dir string) (Part, error) {
			must(t, os.MkdirAll(filepath.Join(dir, "root/bin"), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, "root/bin/busybox"), nil, 0o755))
			return Part{Name: "busybox", Version: "2", Digest: "b2"}, nil
		}))
		libc, err := s.Parts().Get(HostArch(), libcPart)
		must(t, err)
		must(t, unpackTar(bytes.NewReader(files), libc.path("root"), everything))
		disk, _, err := s.linuxTree(HostArch())
		must(t, err)
		modes := map[string]fs.FileMode{}
		for name, n := range disk {
			modes[name] = n.mode
		}
		return modes
	}
	usual := made(0o022)
	for name, want := range map[string]fs.FileMode{"plain": 0o644, "program": 0o755, "kept": 0o644, "shared": 0o644,
		"mine": 0o755} {
		if got := usual["/usr/lib/"+name].Perm(); got != want {
			t.Errorf("%s has mode %o and not %o", name, got, want)
		}
	}
	for _, mask := range []int{0o077, 0o027, 0} {
		if got := made(mask); !maps.Equal(got, usual) {
			for name, mode := range got {
				if mode != usual[name] {
					t.Errorf("under umask %03o %s has %s and not %s", mask, name, mode, usual[name])
				}
			}
			t.Errorf("under umask %03o: %d files, not %d", mask, len(got), len(usual))
		}
	}
}
