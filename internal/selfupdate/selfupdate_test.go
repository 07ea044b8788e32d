package selfupdate

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"aead.dev/minisign"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/filelock"
)

// program returns a script that says it is of a version, as the program does.
func program(version string) string { return "#!/bin/sh\necho unitask " + version + "\n" }

// pair makes a publisher's keys.
func pair(t *testing.T) (minisign.PublicKey, minisign.PrivateKey) {
	t.Helper()
	public, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

// packed returns an archive with one entry.
func packed(t *testing.T, h tar.Header, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	h.Mode, h.Size = 0o755, int64(len(text))
	if err := w.WriteHeader(&h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func put(t *testing.T, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(name, text, 0o755); err != nil {
		t.Fatal(err)
	}
}

// release writes a release's folder.
func release(t *testing.T, private minisign.PrivateKey, version string, archive []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	name := "unitask_" + strings.TrimPrefix(version, "v") + "_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	sum := sha256.Sum256(archive)
	sums := []byte("00  other\n" + hex.EncodeToString(sum[:]) + "  " + name + "\n")
	put(t, filepath.Join(dir, name), archive)
	put(t, filepath.Join(dir, SumsFile), sums)
	put(t, filepath.Join(dir, SignatureFile), minisign.SignWithComments(private, sums, Comment(version), "x"))
	return dir
}

// update installs the newest release in the place of a program of v1.2.3. It returns what the program is then, the
// files beside it, and the error's text.
func update(t *testing.T, p Publisher) (is string, files []string, fault string) {
	t.Helper()
	dir := t.TempDir()
	at := filepath.Join(dir, "unitask")
	put(t, at, []byte(program("v1.2.3")))
	err := func() error {
		r, err := p.Newest(t.Context())
		if err != nil {
			return err
		}
		if newer, err := r.Newer("v1.2.3"); err != nil || !newer {
			return err
		}
		return r.Install(t.Context(), at, func(int64) {})
	}()
	if err != nil {
		fault = err.Error()
	}
	out, err := exec.Command(at, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		files = append(files, e.Name())
	}
	return strings.TrimSpace(string(out)), files, fault
}

func TestUpdate(t *testing.T) {
	public, private := pair(t)
	next := release(t, private, "v1.3.0", packed(t, tar.Header{Name: inArchive}, program("v1.3.0")))
	server := httptest.NewServer(http.FileServer(http.Dir(next)))
	defer server.Close()
	for _, from := range []string{next, server.URL} {
		is, files, fault := update(t, Publisher{public, from})
		if is != "unitask v1.3.0" || strings.Join(files, " ") != "unitask unitask.previous" || fault != "" {
			t.Errorf("%s: %q %q %s", from, is, files, fault)
		}
	}
	at := filepath.Join(t.TempDir(), "unitask")
	put(t, at, []byte(program("v1.3.0")))
	if _, err := Rollback(t.Context(), at); err == nil || !strings.Contains(err.Error(), "has not replaced") {
		t.Errorf("nothing to return to: %v", err)
	}
	put(t, Previous(at), []byte(program("v1.2.3")))
	for _, want := range []string{"v1.2.3", "v1.3.0", "v1.2.3"} {
		got, err := Rollback(t.Context(), at)
		said, _ := says(t.Context(), at)
		if got != want || said != want || err != nil {
			t.Errorf("a rollback: %s %s %v, want %s", got, said, err, want)
		}
	}
	if same, err := (&Release{Version: "v1.3.0"}).Newer("v1.3.0"); same || err != nil {
		t.Errorf("the same release: %v %v", same, err)
	}
}

// Who offers releases can't replace the program by what its publisher did not sign, and not by an older release.
func TestAttackRelease(t *testing.T) {
	public, private := pair(t)
	_, strange := pair(t)
	good := packed(t, tar.Header{Name: inArchive}, program("v1.3.0"))
	evil := packed(t, tar.Header{Name: inArchive}, program("v9.9.9"))
	older := release(t, private, "v1.1.0", packed(t, tar.Header{Name: inArchive}, program("v1.1.0")))
	with := func(change func(dir string)) string {
		dir := release(t, private, "v1.3.0", good)
		change(dir)
		return dir
	}
	archive := func(dir string) string {
		found, _ := filepath.Glob(dir + "/*.tar.gz")
		return found[0]
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name, row := range map[string]struct{ dir, says string }{
		"another's key":    {release(t, strange, "v1.3.0", evil), "not signed by this program's publisher"},
		"an older release": {older, "older than this program"},
		"no signature":     {with(func(d string) { os.Remove(filepath.Join(d, SignatureFile)) }), "is no release"},
		"other digests": {with(func(d string) { put(t, filepath.Join(d, SumsFile), read(filepath.Join(older, SumsFile))) }),
			"not signed"},
		"an older release that says it is new": {with(func(d string) {
			put(t, filepath.Join(d, SumsFile), read(filepath.Join(older, SumsFile)))
			put(t, filepath.Join(d, SignatureFile), bytes.Replace(read(filepath.Join(older, SignatureFile)),
				[]byte("v1.1.0"), []byte("v1.9.0"), 1))
		}), "not signed"},
		"another archive":              {with(func(d string) { put(t, archive(d), evil) }), "another digest"},
		"half an archive":              {with(func(d string) { put(t, archive(d), good[:len(good)/2]) }), "another digest"},
		"a program of another version": {release(t, private, "v1.3.0", evil), "does not work here"},
		"a program that does not start": {release(t, private, "v1.3.0",
			packed(t, tar.Header{Name: inArchive}, "nothing")), "does not work here"},
		"a link": {release(t, private, "v1.3.0", packed(t, tar.Header{Name: inArchive, Typeflag: tar.TypeSymlink,
			Linkname: "/bin/sh"}, "")), "it has no unitask/unitask"},
		"another name": {release(t, private, "v1.3.0", packed(t, tar.Header{Name: "../unitask"}, program("v1.3.0"))),
			"it has no unitask/unitask"},
		"endless digests": {with(func(d string) { put(t, filepath.Join(d, SumsFile), make([]byte, maxSums+1)) }),
			"more than"},
		"a version that is none": {release(t, private, "latest", good), "not which release"},
	} {
		is, files, fault := update(t, Publisher{public, row.dir})
		if !strings.Contains(fault, row.says) {
			t.Errorf("%s: %s", name, fault)
		}
		attack.Check(t, "a release with "+name, "unitask v1.2.3 and [unitask]", is+" and ["+strings.Join(files, " ")+"]")
	}
}

// An update fails without a trace while another one is under way, on a full disk, and without permission.
func TestUpdateFails(t *testing.T) {
	_, private := pair(t)
	big := packed(t, tar.Header{Name: inArchive}, program("v1.3.0")+strings.Repeat("#", 2<<20))
	dir := release(t, private, "v1.3.0", big)
	sum := sha256.Sum256(big)
	name := "unitask_1.3.0_" + runtime.GOOS + "_" + runtime.GOARCH + ".tar.gz"
	r := &Release{Version: "v1.3.0", from: dir, archive: name, digest: hex.EncodeToString(sum[:])}
	install := func(dir, want string) {
		t.Helper()
		at := filepath.Join(dir, "unitask")
		err := r.Install(t.Context(), at, func(int64) {})
		left, _ := filepath.Glob(filepath.Join(dir, ".unitask*"))
		if said, _ := says(context.Background(), at); err == nil || !strings.Contains(err.Error(), want) ||
			len(left) > 0 || said != "v1.2.3" {
			t.Errorf("want %q: %v %v %s", want, err, left, said)
		}
	}
	at := t.TempDir()
	put(t, filepath.Join(at, "unitask"), []byte(program("v1.2.3")))
	lock, err := filelock.TryAlone(at)
	if err != nil {
		t.Fatal(err)
	}
	install(at, "another update")
	lock.Unlock()
	if err := os.Chmod(filepath.Join(at, "unitask"), 0o777); err != nil {
		t.Fatal(err)
	}
	install(at, "chmod o-w")
	t.Run("full disk", func(t *testing.T) {
		full := t.TempDir()
		mount := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "unitask-test", full)
		if out, err := mount.CombinedOutput(); err != nil {
			t.Skipf("wants root, who mounts a small disk: %s", out)
		}
		defer func() { _ = exec.Command("umount", full).Run() }()
		put(t, filepath.Join(full, "unitask"), []byte(program("v1.2.3")))
		install(full, "no space left")
	})
}

func TestOwner(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"venv/bin/unitask", "venv/lib/python3.13/site-packages/unitask-1.2.3.dist-info/RECORD",
		"own/bin/unitask"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, name), nil)
	}
	for at, want := range map[string]string{
		dir + "/own/bin/unitask": "", dir + "/venv/bin/unitask": "pip",
		"/home/a/.npm/_npx/1/node_modules/@unitask/linux-x64/unitask": "npx",
		"/x/node_modules/@unitask/linux-x64/unitask":                  "npm",
		"/home/a/.cache/uv/archive-v0/x/bin/unitask":                  "uvx",
		"/home/a/.local/share/pipx/venvs/unitask/bin/unitask":         "pipx",
		"/opt/homebrew/Cellar/unitask/1.2.3/bin/unitask":              "Homebrew", "/nix/store/x-unitask/bin/unitask": "Nix",
	} {
		if m, ok := Owner(t.Context(), at); m.Name != want || ok != (want != "") {
			t.Errorf("%s: %q, want %q", at, m.Name, want)
		}
	}
	put(t, filepath.Join(dir, "dpkg"), []byte("#!/bin/sh\nexit 1\n"))
	t.Run("no answer", func(t *testing.T) {
		t.Setenv("PATH", dir)
		late, cancel := context.WithCancel(t.Context())
		cancel()
		if m, _ := Owner(late, dir+"/own/bin/unitask"); m.Name != "apt" {
			t.Errorf("a manager that does not answer owns nothing: %q", m.Name)
		}
		if m, owned := Owner(t.Context(), dir+"/own/bin/unitask"); owned {
			t.Errorf("a manager that denies it: %q", m.Name)
		}
	})
	if _, err := exec.LookPath("dpkg"); err == nil {
		if m, _ := Owner(t.Context(), "/usr/bin/env"); m.Name != "apt" {
			t.Errorf("a file of a Debian package: %q", m.Name)
		}
	}
}
