package unitask_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"testing"

	"github.com/unitask/unitask"
	built "github.com/unitask/unitask/packages"
)

// Packages that a run is sending to its machine stay.
func TestRemovePackagesHeld(t *testing.T) {
	rt := openRuntime(t, unitask.Options{Home: t.TempDir()})
	store, kept := rt.Packages(), &built.Lock{Key: "k"}
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	if err := errors.Join(w.WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg}), w.Close(), store.Add(kept, &files)); err != nil {
		t.Fatal(err)
	}
	held, err := store.Hold(kept)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := rt.RemovePackages(t.Context()); n != 0 || err != nil || store.Verify(kept) != nil {
		t.Errorf("%d removed: %v, %v", n, err, store.Verify(kept))
	}
	held.Unlock()
	if n, err := rt.RemovePackages(t.Context()); n != 1 || err != nil {
		t.Errorf("%d removed: %v", n, err)
	}
}
