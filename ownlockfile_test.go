package unitask_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
)

// lockedLayer writes the lock file of an image over a container image.
func lockedLayer(t *testing.T, description string, layer map[string]any) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"schema": 1,
		"builds": []any{map[string]any{"arch": runtime.GOARCH, "layer": layer}}})
	if err == nil {
		err = os.WriteFile(strings.TrimSuffix(description, ".toml")+".lock.json", text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tinyImage is a container image with some files.
func tinyImage(t *testing.T, rt *unitask.Runtime, name string, files ...*tar.Header) (ref, digest string) {
	t.Helper()
	layer := filepath.Join(t.TempDir(), "layer.tar")
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range files {
		text := h.PAXRecords["text"]
		h.PAXRecords, h.Size, h.Mode = nil, int64(len(text)), 0o644
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), os.WriteFile(layer, out.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := rt.Catalog().Import(t.Context(), testhome.Saved(t, name, layer, nil), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return c.Names[0], c.Digest
}

// A lock file makes a build begin with an image of the description's name, or one that has lost that name. It selects
// no other image.
func TestOwnLockBegins(t *testing.T) {
	offline := true
	rt := openRuntime(t, unitask.Options{Home: testdir.Private(t), Offline: &offline})
	_, secret := tinyImage(t, rt, "test/secret:1", debFile("a", "secret"))
	ref, first := tinyImage(t, rt, "test/box:1", debFile("a", "first"))
	_, second := tinyImage(t, rt, "test/box:1", debFile("a", "second"))
	for digest, says := range map[string]string{
		secret: "test/box@" + secret + " would have to be pulled",
		first:  "parts of", // all that is missing: its tag refers to the second
		second: "parts of",
	} {
		file := describe(t, t.TempDir(), "x", "from = 'test/box:1'\nenv = { A = 'b' }\n")
		lockedLayer(t, file, map[string]any{"from": ref, "image": digest})
		if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, and not %q", err, says)
		}
	}
}

// Changed files in a description do not cause a new choice of Debian packages.
func TestOwnLockDebian(t *testing.T) {
	a := newArchive(t)
	a.put(t, "greet", "2.0", "", "", debFile("./usr/share/greet", "2.0"))
	release, err := os.ReadFile("/etc/os-release")
	if _, no := exec.LookPath("dpkg"); no != nil || err != nil {
		t.Skip("this host is not one of Debian's")
	}
	rt := openRuntime(t, unitask.Options{Home: testdir.Private(t)})
	status := "Package: base\nStatus: install ok installed\nVersion: 1\nArchitecture: all\n"
	ref, digest := tinyImage(t, rt, "test/debian:1", debFile("var/lib/dpkg/status", status), debFile("usr/bin/dpkg", ""),
		debFile("usr/lib/os-release", string(release)))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "words"), []byte("now"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := describe(t, dir, "x", "from = 'test/debian:1'\ndebian = ['greet']\n[files]\n'/opt/words' = 'words'\n")
	lockedLayer(t, file, map[string]any{"from": ref, "image": digest, "files": "sha256:" + strings.Repeat("0", 64),
		"debianAsked": []string{"greet"},
		"debian": []any{map[string]any{"name": "greet", "version": "1.0",
			"digest": "sha256-" + strings.Repeat("0", 64)}}})
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil ||
		!strings.Contains(err.Error(), "these versions are the lock file's") {
		t.Error(err)
	}
}
