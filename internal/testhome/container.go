package testhome

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Debian writes a container image of Debian's packages that the base's bundled images have: bash, coreutils, findutils,
// tar, grep, Python and Node. The last line of its passwd has no end. Debian returns the path of an archive in docker
// save's format.
func Debian(t testing.TB, base, name string, config map[string]any) string {
	t.Helper()
	vendor, root := filepath.Join(base, "vendor", runtime.GOARCH), t.TempDir()
	for link, target := range map[string]string{"bin": "usr/bin", "usr/bin/sh": "bash", "usr/bin/python3": "python3.13"} {
		at := filepath.Join(root, link)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if err = errors.Join(err, os.Symlink(target, at)); err != nil {
			t.Fatal(err)
		}
	}
	err := os.MkdirAll(filepath.Join(root, "etc"), 0o755)
	for file, text := range map[string]string{"passwd": "root:x:0:0::/root:/bin/bash", "group": "root:x:0:\n"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "etc", file), []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	layer := filepath.Join(t.TempDir(), "layer.tar")
	args := []string{"-c", "-f", layer, "--owner=0", "--group=0", "--mode=u+rwX,go+rX", "-C", root, "."}
	for _, part := range []string{"libc", "bash", "coreutils", "tar", "grep", "findutils", "libtinfo6", "libacl1",
		"libattr1", "libselinux1", "libpcre2-8-0", "libcap2", "libgmp10", "libssl3", "libzstd1", "python",
		"libpython-minimal", "libpython-stdlib", "zlib1g", "libexpat1", "libffi8", "libstdc++", "libgcc", "libatomic1"} {
		args = append(args, "-C", filepath.Join(vendor, part, "root"), ".")
	}
	args = append(args, "--transform=s,^node$,usr/bin/node,", "-C", filepath.Join(vendor, "node"), "node")
	if out, err := exec.Command("tar", args...).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return Saved(t, name, layer, config)
}

// Saved writes an image of one layer, an archive, in docker save's format. It returns the path.
func Saved(t testing.TB, name, layer string, config map[string]any) string {
	t.Helper()
	content, err := os.ReadFile(layer)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(content)
	text, err := json.Marshal(map[string]any{"os": "linux", "architecture": runtime.GOARCH, "config": config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(digest[:])}}})
	if err != nil {
		t.Fatal(err)
	}
	list, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{name},
		"Layers": []string{"layer.tar"}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, m := range []struct {
		name string
		data []byte
	}{{"config.json", text}, {"layer.tar", content}, {"manifest.json", list}} {
		err := w.WriteHeader(&tar.Header{Name: m.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(m.data))})
		if err == nil {
			_, err = w.Write(m.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return file
}
