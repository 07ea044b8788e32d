package image

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/image/oci"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/disuse"
)

// A name with a digest leads only to the image with that digest, and only if the image has that name.
func TestContainerNames(t *testing.T) {
	s, im := emptyContainer(t)
	c, err := s.Containers().Add(t.Context(), AMD64, im, Pulled,
		[]string{"docker.io/evil/tool:1", "localhost:5000/tool:1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{
		"docker.io/evil/tool:1": true, "docker.io/evil/tool:2": false, "docker.io/evil/tool@" + c.Digest: true,
		"localhost:5000/tool@" + c.Digest: true, c.Digest: true, c.Digest[:19]: true,
		"docker.io/acme/tool@" + c.Digest: false, "localhost/tool@" + c.Digest: false,
		"docker.io/evil/tool@sha256:" + strings.Repeat("0", 64): false, "docker.io/evil/too@" + c.Digest: false,
	} {
		got, err := s.Containers().Get(AMD64, name)
		if there && (err != nil || got.Digest != c.Digest) || !there && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := s.Containers().Get(ARM64, "docker.io/evil/tool:1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("for another architecture: %v", err)
	}
}

// emptyContainer returns a store without images, and an empty container image for it.
func emptyContainer(t *testing.T) (*Store, *oci.Image) {
	t.Helper()
	layer := make([]byte, 1024) // an empty archive
	dir := t.TempDir()
	for name, text := range map[string]string{
		"manifest.json": `[{"Config":"c","Layers":["l"]}]`, "l": string(layer),
		"c": fmt.Sprintf(`{"os":"linux","rootfs":{"diff_ids":["sha256:%x"]}}`, sha256.Sum256(layer)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	im, err := oci.Open(t.Context(), dir, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.Close() })
	return &Store{home: t.TempDir(), log: func(string) {}}, im
}

// The origin of an image's names is known as long as the names exist, whatever is pruned meanwhile, and no longer.
func TestAttackImportedNamePruned(t *testing.T) {
	s, im := emptyContainer(t)
	const imported, pulled, forgotten = "ghcr.io/acme/tool:1", "docker.io/acme/tool:1", "tool"
	c, err := s.Containers().Add(t.Context(), AMD64, im, Imported, []string{imported, forgotten})
	must(t, err)
	must(t, s.Containers().Name(t.Context(), c, Pulled, pulled))
	leads := func(_ Arch, name, _ string) bool { return name != forgotten }
	for range 2 {
		_, _, err := s.Containers().Prune(t.Context(), leads, nil, disuse.Rule{})
		must(t, err)
		again := &Store{home: s.home, log: s.log}
		for _, name := range []string{imported, pulled} {
			c, err := again.Containers().Get(AMD64, name)
			must(t, err)
			attack.Check(t, "an image is imported as "+name+", behind image prune", fmt.Sprint(name == imported),
				fmt.Sprint(c.ImportedAs(name)))
		}
	}
	left := func() string {
		text, err := os.ReadFile(filepath.Join(s.Containers().dir(), namesFile))
		must(t, err)
		return string(text)
	}
	if text := left(); strings.Contains(text, " "+forgotten+`"`) {
		t.Errorf("what is known of a name that is gone: %s", text)
	}
	must(t, s.Containers().Remove(t.Context(), c))
	if text := left(); strings.TrimSpace(text) != "{}" {
		t.Errorf("what is known of names that are gone: %s", text)
	}
}
