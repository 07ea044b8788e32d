package install

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/packages"
	"github.com/unitask/unitask/policy"
)

// Packages of a run stay in the store until the run has ended, however much room others need.
func TestPackagesHeld(t *testing.T) {
	var b bytes.Buffer
	to := tar.NewWriter(&b)
	if err := to.WriteHeader(&tar.Header{Name: "a.py", Mode: 0o644, Size: 3}); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Write([]byte("x=1")); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	store := &packages.Store{Dir: t.TempDir(), MaxMany: 1}
	add := func(key string) (*packages.Lock, error) {
		l := &packages.Lock{Key: key}
		return l, store.Add(l, bytes.NewReader(b.Bytes()))
	}
	lock, err := add("one")
	if err != nil {
		t.Fatal(err)
	}
	place := image.At(language.OfSystem(policy.Pip).Packages.Place, "3.11")
	var inputs, more hostfiles.Set
	defer inputs.Close()
	defer more.Close()
	held, err := Mount(store, lock, place, &inputs)
	if err != nil || inputs.Count() == 0 {
		t.Fatal(err)
	}
	if _, err := add("two"); err == nil || !strings.Contains(err.Error(), "wait until some have ended") {
		t.Errorf("what a run has made room: %v", err)
	}
	held.Unlock()
	if _, err := add("two"); err != nil {
		t.Error(err)
	}
	if held, err := Mount(store, lock, place, &more); err == nil || held != nil {
		t.Error("what has gone is brought")
	}
}
