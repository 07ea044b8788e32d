package unitask_test

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/disuse"
)

// Images without a name are removed, including the old version of a custom image that now has another base. Images of
// current runs stay.
func TestPruneImages(t *testing.T) {
	needVM(t)
	home := newHome(t)
	images := filepath.Join(home, "images") // other tests' homes share it
	if err := errors.Join(os.Remove(images), os.Mkdir(images, 0o700)); err != nil {
		t.Fatal(err)
	}
	onBuild := func() {}
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted(), Events: func(e unitask.Event) {
		if strings.HasPrefix(e.Message, "building the container image") {
			onBuild()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	load := func(by string) string {
		t.Helper()
		c, err := rt.Catalog().Import(t.Context(), boxImage(t, "test/box:1",
			map[string]any{"Env": []string{"PATH=/bin", "BY=" + by}}), "", "")
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest
	}
	left := func(want ...string) {
		t.Helper()
		if _, err := rt.Catalog().Prune(t.Context(), disuse.Rule{}); err != nil {
			t.Fatal(err)
		}
		list, err := rt.Images().Containers().List()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range list {
			got = append(got, c.Digest)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("left are %q, not %q", got, want)
		}
	}
	before := load("first")
	dir := t.TempDir()
	file := describe(t, dir, "tool", "from = 'test/box:1'\nenv = { A = 'b' }\n")
	own, _, err := rt.BuildImage(t.Context(), file, "")
	if err != nil {
		t.Fatal(err)
	}
	left(before, own.Digest)
	// If only the lock file of a build can't be written, the earlier image stays.
	describe(t, dir, "tool", "from = 'test/box:1'\nenv = { A = 'c' }\n")
	lock, failed := filepath.Join(dir, "tool.lock.json"), false
	onBuild = func() {
		if err := errors.Join(os.RemoveAll(lock), os.MkdirAll(filepath.Join(lock, "x"), 0o700)); err != nil {
			t.Error(err)
		}
		failed = true
	}
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err == nil || !failed {
		t.Errorf("a lock that can't be written: %v, %v", err, failed)
	}
	onBuild = func() {}
	if err := os.RemoveAll(lock); err != nil {
		t.Fatal(err)
	}
	left(before, own.Digest)
	if c, err := rt.Images().Containers().Get(own.Arch, "tool"); err != nil || c.Digest != own.Digest {
		t.Errorf("the name leads to %+v: %v", c, err)
	}
	// The custom image now has a bundled base, so its old version has no name.
	renameImage(t, dir, rt, file, left, before)

	// The reference now points to another image, while a run has the earlier one.
	slot(t)
	now := pruneUnderRun(t, rt, load, left, before)
	left(now)
}

// pruneUnderRun checks that a prune spares the image of a current run.
func pruneUnderRun(
	t *testing.T, rt *unitask.Runtime, load func(by string) string, left func(want ...string), before string,
) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop() })
	started, says := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		req := unitask.Request{Image: "test/box:1", Exec: true, Args: []string{"sh", "-c", "echo up; sleep 1000"}, Cold: true}
		_, err := rt.Run(ctx, req, unitask.IO{Stdout: says})
		says.CloseWithError(err)
		ended <- err
	}()
	up := make([]byte, 3)
	if _, err := io.ReadFull(started, up); err != nil || string(up) != "up\n" {
		t.Fatalf("%q, %v", up, err)
	}
	now := load("second")
	left(before, now)
	if list, err := rt.Images().List(); err != nil ||
		!slices.ContainsFunc(list, func(im *image.Image) bool { return im.Container == before }) {
		t.Errorf("the image of the run is gone: %v", err)
	}
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "cancel") {
		t.Errorf("the run: %v", err)
	}
	return now
}

// renameImage checks that a prune removes images without a name.
func renameImage(t *testing.T, dir string, rt *unitask.Runtime, file string, left func(want ...string), before string) {
	t.Helper()
	var own *unitask.CustomImage
	var err error
	describe(t, dir, "tool", "from = 'node'\nenv = { A = 'b' }\n")
	if _, _, err := rt.BuildImage(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
	left(before)
	describe(t, dir, "tool", "from = 'test/box:1'\n")
	if own, _, err = rt.BuildImage(t.Context(), file, ""); err != nil {
		t.Fatal(err)
	}
	left(before, own.Digest)
	if _, err := rt.Catalog().RemoveCustom(t.Context(), "tool"); err != nil {
		t.Fatal(err)
	}
}

// A paused session keeps its image, even if another image replaced it and no process holds the session.
func TestPrunePaused(t *testing.T) {
	needClones(t)
	home := newHome(t)
	images := filepath.Join(home, "images") // other tests' homes share it
	if err := errors.Join(os.Remove(images), os.Mkdir(images, 0o700)); err != nil {
		t.Fatal(err)
	}
	rt := openRuntime(t, unitask.Options{Home: home, Machines: unitask.Booted()})
	dir := t.TempDir()
	build := func(text string) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "words"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, im, err := rt.BuildImage(t.Context(), describe(t, dir, "mine",
			"from = 'shell'\n[files]\n'/opt/words' = 'words'\n"), "")
		if err != nil {
			t.Fatal(err)
		}
		return im.Digest
	}
	then := build("then")
	slot(t)
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Image: "mine", Cold: true}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Pause(t.Context()), s.Leave()); err != nil {
		t.Fatal(err)
	}
	now := build("now")
	if _, err := rt.Catalog().Prune(t.Context(), disuse.Rule{}); err != nil {
		t.Fatal(err)
	}
	for _, digest := range []string{then, now} {
		if _, err := rt.Images().ByDigest(digest); err != nil {
			t.Errorf("%v (the session has %.12s, runs have %.12s)", err, then, now)
		}
	}
	again, err := rt.Revive(t.Context(), unitask.Caller{}, s.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if res, err := again.Run(t.Context(), unitask.Step{Code: "cat /opt/words"}); err != nil ||
		string(res.Stdout) != "then" {
		t.Errorf("%+v %v", res, err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := rt.Catalog().Prune(t.Context(), disuse.Rule{}); err != nil {
		t.Error(err)
	}
	if _, err := rt.Images().ByDigest(then); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nobody has it: %v", err)
	}
}
