package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/guest/contract"
)

// severalStore is fakeStore with the payload of another language. Its parts exist, too, except for its package of
// headers.
func severalStore(t testing.TB) (first, second *Store) {
	t.Helper()
	s := fakeStore(t)
	other := Payload{
		Name: "other", Sources: s.payload.Sources, Parts: []string{"otherlang", "libc"}, Program: "/usr/bin/other",
		Args:  []string{"other"},
		Links: map[string]string{"/usr/bin/awk": "gawk"}, Folders: []string{"/usr/share/many", "/usr/lib/more"},
	}
	s.payloads = append(s.payloads, other)
	second, err := s.Of("other")
	must(t, err)
	must(t, s.Parts().addPart(HostArch(), "otherlang", func(dir string) (Part, error) {
		for _, name := range []string{"root/usr/bin/other", "root/usr/bin/sed", "root/usr/share/many/a"} {
			must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o755))
		}
		return Part{Name: "otherlang", Version: "7", Digest: "o", From: "test", License: "MIT"}, nil
	}))
	digest, err := second.Parts().guestDigest(HostArch())
	must(t, err)
	must(t, s.Parts().addPart(HostArch(), "guest-other", func(dir string) (Part, error) {
		return Part{Name: "guest-other", Version: "1", Digest: digest, From: "test", License: "MIT"},
			os.WriteFile(filepath.Join(dir, "init"), []byte("init"), 0o755)
	}))
	return s, second
}

func TestSeveralImages(t *testing.T) {
	first, second := severalStore(t)
	if got := first.Names(); !slices.Equal(got, []string{"node", "other"}) {
		t.Errorf("%q", got)
	}
	if _, err := first.Of("pyton"); err == nil || !strings.Contains(err.Error(),
		`unknown image "pyton": there are node, other`) {
		t.Errorf("%v", err)
	}
	a, err := first.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	b, err := second.Ensure(t.Context(), Linux, HostArch())
	must(t, err)
	if a.Name != "node" || b.Name != "other" || b.Runtime != "7" || a.Digest == b.Digest {
		t.Errorf("%+v %+v", a, b)
	}
	entries, err := b.Entries()
	must(t, err)
	at := map[string]Entry{}
	for _, e := range entries {
		at[e.Path] = e
	}
	for path, target := range map[string]string{"/usr/bin/awk": "gawk", "/usr/bin/head": "busybox"} {
		if e := at[path]; e.Mode.Type() != fs.ModeSymlink || e.Size != int64(len(target)) {
			t.Errorf("%s is no link to %s: %+v", path, target, e)
		}
	}
	if !at["/usr/bin/sed"].Mode.IsRegular() || at["/usr/bin/sed"].Size == 0 {
		t.Errorf("busybox took the place of a part's program: %+v", at["/usr/bin/sed"])
	}
	if e := at[contract.FoldersFile]; e.Size != int64(len("/usr/share/many\n/usr/lib/more\n")) {
		t.Errorf("%+v", e)
	}
	if _, there := at["/usr/bin/node"]; there {
		t.Error("the other image has Node")
	}
	if _, err := second.Ensure(t.Context(), Nanos, HostArch()); err == nil ||
		errors.Is(err, ErrNotVendored) && second.Runs(Nanos) {
		t.Errorf("on nanos: %v", err)
	}
	if kernel := second.Best(HostArch()); kernel != Linux {
		t.Errorf("the best kernel is %s", kernel)
	}
	// The same parts under another name are another image.
	renamed := *second
	renamed.payload.Name = "third"
	must(t, os.CopyFS(filepath.Join(second.vendorDir(HostArch()), "guest-third"),
		os.DirFS(filepath.Join(second.vendorDir(HostArch()), "guest-other"))))
	if x, err := renamed.Digest(Linux, HostArch()); err != nil || x == b.Digest {
		t.Errorf("%s %v", x, err)
	}
}

// A bundle has the parts of every image whose parts are complete.
func TestBundleOfSeveral(t *testing.T) {
	first, second := severalStore(t)
	dir := t.TempDir()
	write := func(s *Store) []string {
		t.Helper()
		file := filepath.Join(dir, "parts"+bundleSuffix)
		must(t, s.Parts().WriteBundle(HostArch(), file))
		empty, err := Open(t.TempDir(), first.payloads, nil)
		must(t, err)
		taken, err := empty.Parts().VendorFrom(t.Context(), HostArch(), file)
		must(t, err)
		return taken
	}
	if taken := write(first); !slices.Contains(taken, "guest") || !slices.Contains(taken, "otherlang") ||
		!slices.Contains(taken, "guest-other") {
		t.Errorf("%q", taken)
	}
	must(t, os.RemoveAll(filepath.Join(first.vendorDir(HostArch()), "otherlang")))
	if taken := write(first); slices.Contains(taken, "guest-other") {
		t.Errorf("%q", taken)
	}
	if err := second.Parts().WriteBundle(HostArch(), filepath.Join(dir, "x"+bundleSuffix)); !errors.Is(err,
		ErrNotVendored) {
		t.Errorf("of an image whose parts are not there: %v", err)
	}
}

// The output of a payload's program for an image's files is in the image; a failing program is ignored.
func TestCompile(t *testing.T) {
	libc := map[Arch]string{AMD64: "/lib64/ld-linux-x86-64.so.2", ARM64: "/lib/ld-linux-aarch64.so.1"}[HostArch()]
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if _, e := os.Stat(libc); err != nil || e != nil {
		t.Skipf("needs a host with glibc: %v %v", err, e)
	}
	tr := tree{}
	tr.file("/"+HostArch().loader(), 0o755, libc)
	tr.file("/usr/bin/sh", 0o755, sh)
	tr.text("/usr/lib/x/ours", "not there")
	tr.dir("/usr/lib/x/sub", 0o755)
	found, err := filepath.Glob("/lib/" + HostArch().triplet() + "/libc.so.6")
	if err != nil || len(found) == 0 {
		t.Skip("needs a Debian host's libc")
	}
	tr.file(found[0], 0o755, found[0])
	tr.link("/usr/lib/x/out", "/etc/passwd")
	run := func(script string) error {
		return tr.compile(t.Context(), Payload{Program: "/usr/bin/sh",
			Compile: &Compile{Dirs: []string{"/usr/lib/x"}, Args: []string{"-c", script, "sh", "ROOT"},
				Env: []string{"A=ROOT/a"}}}, HostArch(), t.TempDir())
	}
	if err := run(
		`echo "$A" | { read a; [ "$a" = "$1/a" ] && [ ! -e "$1/usr/lib/x/ours" ] && [ ! -e "$1/usr/lib/x/out" ] && echo ` +
			`made > "$1/usr/lib/x/sub/new" && echo no > "$1/elsewhere"; }`); err != nil {
		t.Fatal(err)
	}
	if n := tr["/usr/lib/x/sub/new"]; string(n.data) != "made\n" || n.mode != 0o644 {
		t.Errorf("%+v", n)
	}
	if _, there := tr["/elsewhere"]; there {
		t.Error("it has what lies in another folder")
	}
	if n := tr["/usr/lib/x/out"]; n.target != "/etc/passwd" {
		t.Errorf("%+v", n)
	}
	if err := run("echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "exit status 3: why") {
		t.Errorf("%v", err)
	}
}
