// Package testhome gives the tests of every package the vendored parts, the images and the templates, which take long
// to make. It keeps a base home, from which the homes of single tests borrow.
package testhome

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/machine"
)

// Base returns the base home: $UNITASK_TEST_HOME, or the user's own.
func Base() (string, error) {
	if home := os.Getenv("UNITASK_TEST_HOME"); home != "" {
		return home, nil
	}
	return unitask.DefaultHome()
}

// Borrow gives a home the base's parts and images, and no runs.
func Borrow(base, home string) error {
	for _, shared := range []string{"vendor", "images", "locks", "cache", "templates"} {
		if err := os.MkdirAll(filepath.Join(base, shared), 0o700); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join(base, shared), filepath.Join(home, shared)); err != nil {
			return err
		}
	}
	return nil
}

// New returns a home with borrowed parts and images, for one test.
func New(t testing.TB, base string) string {
	t.Helper()
	home := testdir.Private(t)
	if err := Borrow(base, home); err != nil {
		t.Fatal(err)
	}
	return home
}

// Ready makes sure that the base has images and templates of the kernels. It skips the test in -short.
func Ready(t testing.TB, base string, kernels ...image.Kernel) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots real machines; not in -short")
	}
	rt, err := unitask.Open(unitask.Options{Home: base, Events: func(e unitask.Event) { t.Log(e.Kind, e.Message) }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for _, kernel := range kernels {
		if _, err := rt.Images().Ensure(t.Context(), kernel, image.HostArch()); err != nil {
			t.Fatalf("%v\n`make vendor` fetches what is missing", err)
		}
		if _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{Kernel: kernel}); err != nil && machine.CanClone {
			t.Fatal(err)
		}
	}
}
