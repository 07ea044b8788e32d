package unitask_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// isSorted checks that a layer's archive is sorted by name, not by creation. pip and npm create files in a different
// order each time.
func isSorted(t *testing.T, layer string) {
	t.Helper()
	names := strings.Join(layerNames(t, layer, "many/"), " ")
	if names != "many/.c many/B many/a many/b many/m many/y many/z" {
		t.Errorf("in the archive: %q", names)
	}
}

// A custom image over a container image: files, variables and changes by steps.
func TestOwnLayers(t *testing.T) {
	if !long() {
		t.Skip("steps in machines of their own are make long's (UNITASK_TEST_LONG=1)")
	}
	needVM(t)
	home := newHome(t)
	var told []string
	ran := func() bool { return strings.Contains(strings.Join(told, " "), "running 2 steps") }
	onStep := func() {}
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted(), Events: func(e unitask.Event) {
		told = append(told, e.Message)
		if strings.HasPrefix(e.Message, "running ") {
			time.AfterFunc(3*time.Second, onStep)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	config := map[string]any{"User": "app", "WorkingDir": "/srv/x", "Entrypoint": []string{"/bin/entry"},
		"Env": []string{"PATH=/bin", "A=base"}}
	base, err := rt.Catalog().Import(t.Context(), boxImage(t, "test/box:1", config), "", "")
	if err != nil {
		t.Fatal(err)
	}
	file, dir := describeTool(t)
	first, _, err := rt.BuildImage(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	req := unitask.Request{Image: "tool", Language: "shell",
		Code: `cat /srv/x/copy /srv/x/id /srv/x/b; id -u; echo $A $B; ls /secret /home; cat /etc/link /etc/hard; ` +
			`stat -c '%a %u %h' /etc/made; cat /deep/*/*; cat /opt/words/a.txt; ls /tmp /run`}
	want := "one\n0\nof env\n1234\nbase of env\n/home:\nnew\n"
	res, err := rt.Run(t.Context(), req, unitask.IO{})
	if err != nil || !strings.HasPrefix(string(res.Stdout), want) ||
		!strings.Contains(string(res.Stdout), "4750 0 2\nx\n") || res.MemoryMB != 200 {
		t.Errorf("%v %d %q %q", err, res.MemoryMB, res.Stdout, res.Stderr)
	}
	isSorted(t, filepath.Join(home, "layers", strings.TrimPrefix(first.Layers[1], "sha256:")+".tar.zst"))

	// The lock gives the same result, from the existing layer.
	told = nil
	lock, err := os.ReadFile(filepath.Join(dir, "tool.lock.json"))
	if err != nil || !strings.Contains(string(lock), base.Digest) {
		t.Errorf("the lock: %s, %v", lock, err)
	}
	second, _, err := rt.BuildImage(t.Context(), file, "")
	after, _ := os.ReadFile(filepath.Join(dir, "tool.lock.json"))
	if err != nil || second.Digest != first.Digest || string(after) != string(lock) || ran() {
		t.Errorf("%v, %s and %s, told %q", err, first.Digest, second.Digest, told)
	}
	// Another variable needs another build of the steps, which see it.
	told = nil
	describe(t, dir, "tool-base", "from = 'test/box:1'\n[files]\n'/opt/words' = 'words'\n[env]\nB = 'another'\n")
	if first, _, err = rt.BuildImage(t.Context(), file, ""); err != nil || !ran() {
		t.Fatalf("%v, told %q", err, told)
	}
	req.Code = "cat /srv/x/b; echo $B"
	if res, err := rt.Run(t.Context(), req, unitask.IO{}); err != nil || string(res.Stdout) != "another\nanother\n" {
		t.Errorf("%v %q %q", err, res.Stdout, res.Stderr)
	}
	ceiling, err := policy.ParseCeiling("test.toml", []byte(`images = ["node"]`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, req, unitask.IO{}); err == nil ||
		!strings.Contains(err.Error(), "images") {
		t.Errorf("it is not allowed: %v", err)
	}

	// Failed builds leave the earlier image.
	refuseLayerSteps(t, dir, rt, file)
	describe(t, dir, "tool", "from = 'tool-base'\nrun = ['sleep 1000']\n")
	stopped, stop := context.WithCancel(t.Context())
	defer stop()
	onStep = stop
	failsToBuild(stopped, t, rt, file, "cancelled") // a step without an end
	removeLayers(t, rt, home, first)
}

// describeTool describes an image in two layers.
func describeTool(t *testing.T) (string, string) {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "words"), 0o700),
		os.WriteFile(filepath.Join(dir, "words/a.txt"), []byte("one\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("l", 120)
	file := describe(t, dir, "tool", `from = "tool-base"
memoryMb = 200
run = ['''
cat /opt/words/a.txt > copy; id -u > id; echo "$B" > b
rm /secret; rm -rf /home; mkdir /home; echo new > /home/new
echo "it's" > /etc/made; chmod 4750 /etc/made; ln /etc/made /etc/hard; ln -s made /etc/link
mkdir -p /deep/`+long+`; echo x > /deep/`+long+`/`+long+`; touch /etc/hosts /tmp/x /run/x
mkdir /many; for n in z m a y b .c B; do echo > /many/$n; done
''', "! ls /tmp/y 2>/dev/null"]
`)
	describe(t, dir, "tool-base", "from = 'test/box:1'\n[files]\n'/opt/words' = 'words'\n[env]\nB = 'of env'\n")
	return file, dir
}

// removeLayers checks that layers are removed with the images that use them.
func removeLayers(t *testing.T, rt *unitask.Runtime, home string, first *unitask.CustomImage) {
	t.Helper()
	// the earlier target of the name stays until a prune
	if list, err := rt.Images().Containers().List(); err != nil || len(list) != 3 {
		t.Errorf("%d images: %v", len(list), err)
	}
	if kept, _ := os.ReadDir(filepath.Join(home, "layers")); len(kept) != 2 {
		t.Errorf("layers: %v", kept)
	}
	if own := rt.Catalog().Customs(); len(own) != 1 || own[0].Digest != first.Digest {
		t.Errorf("own: %+v", own)
	}
	if _, err := rt.Catalog().RemoveCustom(t.Context(), "tool"); err != nil {
		t.Error(err)
	}
	if list, err := rt.Images().Containers().List(); err != nil || len(list) != 2 {
		t.Errorf("%d images: %v", len(list), err)
	}
	if kept, _ := os.ReadDir(filepath.Join(home, "layers")); len(kept) != 0 {
		t.Errorf("layers: %v", kept)
	}
}

// refuseLayerSteps checks steps that fail.
func refuseLayerSteps(t *testing.T, dir string, rt *unitask.Runtime, file string) {
	t.Helper()
	for _, c := range []struct{ run, says string }{
		{`"echo one", "echo out; echo why >&2; exit 7"`,
			`step 2 of run ("echo out; echo why >&2; exit 7") ended with exit code 7: "why"`},
		{`"busybox fallocate -l 2000000000 /big"`, "No space left on device"},
	} {
		describe(t, dir, "tool", "from = 'tool-base'\nrun = ["+c.run+"]\n")
		if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.run, err)
		}
	}
}

// layerNames returns the names below a folder in a layer's archive, in the archive's order.
func layerNames(t *testing.T, file, below string) (names []string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		if name, under := strings.CutPrefix(h.Name, below); under && name != "" {
			names = append(names, h.Name)
		}
	}
}
