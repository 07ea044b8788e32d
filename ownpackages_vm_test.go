package unitask_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
)

// toolsImage writes a container image with Python and pip, and Node and npm, from the vendored parts.
func toolsImage(t *testing.T, rt *unitask.Runtime, name string) string {
	t.Helper()
	layer := filepath.Join(t.TempDir(), "layer.tar")
	f, err := os.Create(layer)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	made := map[string]bool{}
	add := func(h *tar.Header, content io.Reader) {
		h.Name = strings.TrimPrefix(h.Name, "/")
		if made[h.Name] {
			return
		}
		made[h.Name] = true
		err := w.WriteHeader(h)
		if err == nil && content != nil {
			_, err = io.Copy(w, content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	host := func(name, file string, mode int64) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		add(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(text))}, bytes.NewReader(text))
	}
	vendor := filepath.Join(baseHome, "vendor", runtime.GOARCH)
	add(&tar.Header{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"}, nil)
	for _, part := range append(python.Parts, node.Parts[1:]...) {
		root := filepath.Join(vendor, part, "root")
		err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			at := strings.TrimPrefix(file, root+"/")
			if d.Type() == fs.ModeSymlink {
				to, err := os.Readlink(file)
				add(&tar.Header{Name: at, Typeflag: tar.TypeSymlink, Linkname: to}, nil)
				return err
			}
			st, err := d.Info()
			if err == nil {
				host(at, file, int64(st.Mode().Perm()))
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // for another architecture
			t.Fatal(err)
		}
	}
	host("usr/bin/node", nodeBinary(), 0o755)
	host("usr/bin/busybox", filepath.Join(vendor, "busybox/root/bin/busybox"), 0o755)
	for _, tool := range []string{"sh", "env", "ls", "cat", "mkdir", "rm"} {
		add(&tar.Header{Name: "usr/bin/" + tool, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	add(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	addPipAndNpm(t, rt, add)
	add(&tar.Header{Name: "usr/bin/npm", Typeflag: tar.TypeSymlink, Linkname: "../lib/npm/bin/npm-cli.js"}, nil)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return testhome.Saved(t, name, layer, map[string]any{"Env": []string{"PATH=/usr/bin"}})
}

// addPipAndNpm adds both tools to an image.
func addPipAndNpm(t *testing.T, rt *unitask.Runtime, add func(h *tar.Header, content io.Reader)) {
	t.Helper()
	pip, _, err := rt.Images().Parts().Tool(t.Context(), image.HostArch(), image.PipTool)
	if err != nil {
		t.Fatal(err)
	}
	wheel, err := zip.OpenReader(pip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wheel.Close() })
	for _, m := range wheel.File {
		r, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		add(&tar.Header{Name: "usr/lib/python3/dist-packages/" + m.Name, Typeflag: tar.TypeReg, Mode: 0o644,
			Size: int64(m.UncompressedSize64)}, r)
		r.Close()
	}
	npm, _, err := rt.Images().Parts().Tool(t.Context(), image.HostArch(), image.NpmTool)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := os.Open(npm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packed.Close() })
	z, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			add(&tar.Header{Name: "usr/lib/npm/" + strings.TrimPrefix(h.Name, "package/"), Typeflag: tar.TypeReg, Mode: 0o755,
				Size: h.Size}, r)
		}
	}
}

// Packages over a container image: its own pip and npm install them, in machines that reach the host's registries. The
// lock gives the same result again.
func TestOwnPackagesContainer(t *testing.T) {
	if !long() {
		t.Skip("pip and npm take a minute in machines that are emulated: make long")
	}
	needVM(t)
	home := newHome(t)
	var told []string
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted(),
		Events: func(e unitask.Event) { told = append(told, e.Message) }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.Catalog().Import(t.Context(), toolsImage(t, rt, "test/tools:1"), "", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Catalog().Import(t.Context(), boxImage(t, "test/box:1", map[string]any{"Env": []string{"PATH=/bin"}}),
		"", ""); err != nil {
		t.Fatal(err)
	}
	r := newRegistry(t)
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "NAME = 'good'\n"))
	r.put("evil-1.0.tar.gz", evil(t))
	r.put("box-1.0.0.tgz", tgz(t, [2]string{"package/package.json",
		`{"name":"box","version":"1.0.0","scripts":{"postinstall":"echo module.exports=1 > made.js; echo unitask: lock"}}`},
		[2]string{"package/index.js", "exports.name = 'box'; exports.made = require('./made.js')\n"}))
	dir := t.TempDir()
	file := describe(t, dir, "tools",
		"from = 'test/tools:1'\npip = ['Evil']\nnpm = ['box@^1']\n"+
			"run = ['python3 -c \"import good; print(good.NAME)\" > /said']\n")
	slot(t)
	own, _, err := rt.BuildImage(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ language, code, want string }{
		{"python", "import evil; print(evil.RESULT.split()[:2], open('/said').read().strip())",
			"['ConnectionRefusedError', 'gaierror'] good\n"},
		{"js", "const b = require('box'); console.log(b.name, b.made)", "box 1\n"},
	} {
		if res, err := rt.Run(t.Context(), unitask.Request{Image: "tools", Language: c.language, Code: c.code},
			unitask.IO{}); err != nil || string(res.Stdout) != c.want {
			t.Errorf("%s: %v %q %q", c.language, err, res.Stdout, res.Stderr)
		}
	}
	lock, err := os.ReadFile(filepath.Join(dir, "tools.lock.json"))
	if err != nil || !strings.Contains(string(lock), "sha256-"+sha256Hex(r.files["evil-1.0.tar.gz"])) ||
		!strings.Contains(string(lock), `"integrity": "sha512-`) {
		t.Errorf("the lock: %s %v", lock, err)
	}

	// From the lock: the existing layers, or the same packages, although there are newer ones.
	r.put("good-2.0-py3-none-any.whl", wheel(t, "good", "2.0", "NAME = 'newer'\n"))
	told = nil
	if again, _, err := rt.BuildImage(t.Context(), file, ""); err != nil || again.Digest != own.Digest ||
		strings.Contains(strings.Join(told, " "), "installing") {
		t.Errorf("from the lock: %v, told %q", err, told)
	}
	if err := os.RemoveAll(filepath.Join(home, "layers")); err != nil {
		t.Fatal(err)
	}
	// Without the layers, pip installs from a list of all packages, and records the requested ones. This record must
	// match the earlier one, and the files must have the time of the steps.
	if again, _, err := rt.BuildImage(t.Context(), file, ""); err != nil || len(again.Layers) != 3 ||
		!slices.Equal(again.Layers[:2], own.Layers[:2]) || !slices.Equal(again.Packages, own.Packages) ||
		!strings.Contains(strings.Join(told, " "), "installing") ||
		strings.Contains(strings.Join(told, " "), "the packages of") &&
			strings.Contains(strings.Join(told, " "), "are those of the lock file") {
		t.Errorf("from the lock without the layers: %v, %v and %v, told %q", err, again, own, told)
	}
	if err := os.RemoveAll(filepath.Join(home, "layers")); err != nil {
		t.Fatal(err)
	}
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "NAME = 'another'\n"))
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), "HASHES") {
		t.Errorf("a registry that lies: %v", err)
	}
	refuseOwnPackages(t, rt, r, home)
}

// refuseOwnPackages checks invalid packages, and a missing registry.
func refuseOwnPackages(t *testing.T, rt *unitask.Runtime, r *registry, home string) {
	t.Helper()
	for text, says := range map[string]string{
		"from = 'test/box:1'\npip = ['good']\n":      "the image has no python3",
		"from = 'test/box:1'\nnpm = ['box']\n":       "the image has no node",
		"from = 'test/tools:1'\npip = ['nosuch']\n":  "No matching distribution found for nosuch",
		"from = 'test/tools:1'\nnpm = ['nosuch']\n":  "nosuch",
		"from = 'test/tools:1'\npip = ['good==9']\n": "No matching distribution found for good==9",
	} {
		if _, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "bad", text), ""); err == nil ||
			!strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	r.Close()
	if _, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "down", "from = 'test/tools:1'\npip = ['good']\n"),
		""); err == nil || !strings.Contains(err.Error(), "the registry "+r.URL+"/simple (PIP_INDEX_URL) does not answer") {
		t.Errorf("no registry: %v", err)
	}
	if kept, _ := os.ReadDir(filepath.Join(home, "layers")); len(kept) != 0 {
		t.Errorf("layers: %v", kept)
	}
}
