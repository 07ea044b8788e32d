package unitask_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// What no name leads to any more goes, an image of one's own that now begins with another among it; what a run has stays.
func TestPruneImages(t *testing.T) {
	needVM(t)
	home := newHome(t)
	images := filepath.Join(home, "images") // which other tests' homes share
	if err := errors.Join(os.Remove(images), os.Mkdir(images, 0o700)); err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	load := func(by string) string {
		t.Helper()
		c, err := rt.ImportImage(t.Context(), boxImage(t, "test/box:1", map[string]any{"Env": []string{"PATH=/bin", "BY=" + by}}), "", "")
		if err != nil {
			t.Fatal(err)
		}
		return c.Digest
	}
	left := func(want ...string) {
		t.Helper()
		if _, err := rt.PruneImages(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := rt.Images().Containers()
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
	// The name begins with an image that comes along: what it led to is nobody's.
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
	if _, err := rt.RemoveOwnImage(t.Context(), "tool"); err != nil {
		t.Fatal(err)
	}

	// The reference leads to another one while a run has the one before.
	slot(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
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
	if list, err := rt.Images().List(); err != nil || !slices.ContainsFunc(list, func(im *image.Image) bool { return im.Container == before }) {
		t.Errorf("the image of the run is gone: %v", err)
	}
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "cancel") {
		t.Errorf("the run: %v", err)
	}
	left(now)
}
