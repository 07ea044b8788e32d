package unitask_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
)

// debootstrapped is a container image of this host's release, made by mmdebstrap.
func debootstrapped(t *testing.T, rt *unitask.Runtime, name string) *image.Container {
	t.Helper()
	release, err := os.ReadFile("/etc/os-release")
	if err != nil {
		t.Fatal(err)
	}
	code := ""
	for line := range strings.Lines(string(release)) {
		if value, ok := strings.CutPrefix(line, "VERSION_CODENAME="); ok {
			code = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	if _, err := exec.LookPath("mmdebstrap"); err != nil || code == "" || os.Getuid() != 0 {
		t.Skip("mmdebstrap as root, and a release with a name, are what a Debian to install over is made with")
	}
	layer := filepath.Join(t.TempDir(), "layer.tar")
	cmd := exec.Command("mmdebstrap", "--mode=root", "--variant=apt", code, layer)
	cmd.Env = append(os.Environ(), "APT_CONFIG=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, out)
	}
	file := testhome.Saved(t, name, layer, map[string]any{"Cmd": []string{"bash"}})
	c, err := rt.Catalog().Import(t.Context(), file, "", "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Debian packages over a container image: its own dpkg installs them, with their scripts, in a machine without a
// network.
func TestOwnDebianContainer(t *testing.T) {
	if !long() {
		t.Skip("makes a Debian and installs in it: make long")
	}
	needVM(t)
	home := newHome(t)
	var told []string
	open := func(home string) *unitask.Runtime {
		rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted(),
			Events: func(e unitask.Event) { told = append(told, e.Message) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { rt.Close() })
		return rt
	}
	rt := open(home)
	base := debootstrapped(t, rt, "test/debian:1")
	a := newArchive(t)
	greets(t, a, "1.0")
	a.put(t, "libgreet", "1.5", "", "", debFile("./usr/lib/greet/words", "words"),
		debLink("./usr/lib/greet/link", "words"))
	a.put(t, "adduser", "999", "", "", debFile("./usr/share/adduser-test", ""))
	a.put(t, "debconf", "999", "Provides: debconf-2.0\n", "", debFile("./usr/share/debconf-test", ""))
	a.put(t, "broken", "1", "", "#!/bin/sh\necho the reason >&2\nexit 3\n", debFile("./usr/share/broken", ""))
	a.put(t, "calls", "1", "", "#!/bin/sh\nexec 3<>/dev/tcp/127.0.0.1/"+a.URL[strings.LastIndexByte(a.URL, ':')+1:]+"\n",
		debFile("./usr/share/calls", ""))
	dir := t.TempDir()
	file := describe(t, dir, "greeter", "from = 'test/debian:1'\ndebian = ['greet']\nrun = ['greet > /said']\n")
	slot(t)
	own, _, err := rt.BuildImage(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.Run(t.Context(), unitask.Request{Image: "greeter", Language: "shell",
		Code: "hello; hi; cat /said /etc/greeted; dpkg -s greet | grep ^Status; ls /tmp /var/log/apt 2>&1"}, unitask.IO{})
	want := "greet 1.0 words data\ngreet 1.0 words data\ngreet 1.0 words data\n1.0 configured\n" +
		"Status: install ok installed\n"
	if err != nil || !strings.HasPrefix(string(res.Stdout), want) {
		t.Errorf("%v %q %q", err, res.Stdout, res.Stderr)
	}
	lock, err := os.ReadFile(filepath.Join(dir, "greeter.lock.json"))
	if err != nil || !strings.Contains(string(lock), sha256Hex(a.debs["greet_1.0"])) {
		t.Errorf("%s %v", lock, err)
	}

	// The lock gives the same result: from the layer, or without it from the same packages.
	greets(t, a, "2.0")
	for _, gone := range []bool{false, true} {
		if told = nil; gone {
			if err := os.RemoveAll(filepath.Join(home, "layers")); err != nil {
				t.Fatal(err)
			}
		}
		again, _, err := rt.BuildImage(t.Context(), file, "")
		if err != nil || again.Debian[0].Version != own.Debian[0].Version || again.Layers[0] != own.Layers[0] ||
			strings.Contains(strings.Join(told, " "), "installing") != gone {
			t.Errorf("from the lock: %v, %+v and %+v, told %q", err, again, own, told)
		}
	}
	for spec, says := range map[string]string{"broken": "the reason", "calls": "the image's own dpkg ended",
		"nosuch": "Unable to locate package nosuch"} {
		_, _, err := rt.BuildImage(t.Context(), describe(t, t.TempDir(), "bad",
			"from = 'test/debian:1'\ndebian = ['"+spec+"']\n"), "")
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	// The base, the image, and the image before its steps ran again.
	if list, err := rt.Images().Containers().List(); err != nil || len(list) != 3 || base.Digest == own.Digest {
		t.Errorf("%d images: %v", len(list), err)
	}
	if kept, _ := os.ReadDir(filepath.Join(home, "layers")); len(kept) != 2 {
		t.Errorf("layers: %v", kept)
	}
}

// For an image without dpkg, the error comes before anything is fetched.
func TestOwnDebianWithout(t *testing.T) {
	if testing.Short() {
		t.Skip("wants the vendored parts; not in -short")
	}
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	if _, err := rt.Catalog().Import(t.Context(), boxImage(t, "test/box:1", nil), "", ""); err != nil {
		t.Fatal(err)
	}
	_, _, err = rt.BuildImage(t.Context(), describe(t, t.TempDir(), "x", "from = 'test/box:1'\ndebian = ['jq']\n"), "")
	if err == nil || !strings.Contains(err.Error(), "test/box:1 has no dpkg") {
		t.Error(err)
	}
}
