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
)

// A name with a digest leads to the image of that digest only if it is one of that name.
func TestContainerNames(t *testing.T) {
	layer := make([]byte, 1024) // an archive of nothing
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
	defer im.Close()
	s := &Store{home: t.TempDir(), log: func(string) {}}
	c, err := s.AddContainer(t.Context(), AMD64, im, Pulled, []string{"docker.io/evil/tool:1", "localhost:5000/tool:1"})
	if err != nil {
		t.Fatal(err)
	}
	for name, there := range map[string]bool{
		"docker.io/evil/tool:1": true, "docker.io/evil/tool:2": false, "docker.io/evil/tool@" + c.Digest: true, "localhost:5000/tool@" + c.Digest: true, c.Digest: true, c.Digest[:19]: true,
		"docker.io/acme/tool@" + c.Digest: false, "localhost/tool@" + c.Digest: false, "docker.io/evil/tool@sha256:" + strings.Repeat("0", 64): false, "docker.io/evil/too@" + c.Digest: false,
	} {
		got, err := s.Container(AMD64, name)
		if there && (err != nil || got.Digest != c.Digest) || !there && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := s.Container(ARM64, "docker.io/evil/tool:1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("for another architecture: %v", err)
	}
}
