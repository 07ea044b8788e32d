package imagebuild

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"testing"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/testdir"
)

// A kept layer is used if it is the expected one. Another layer stays until it is built again, because other images may
// read it.
func TestHasLayer(t *testing.T) {
	b := &Builder{Catalog: &catalog.Catalog{Home: testdir.Private(t)}}
	text := bytes.Repeat([]byte("layer "), 10_000)
	size := int64(len(text))
	sum := sha256.Sum256(text)
	digest, err := b.storeLayer(func(to io.Writer) (string, error) {
		_, err := to.Write(text)
		return "sha256:" + hex.EncodeToString(sum[:]), err
	})
	if err != nil || !b.hasLayer(digest) {
		t.Fatal("a layer that was kept is not there:", err)
	}
	file := b.Catalog.LayerFile(digest)
	for most, want := range map[int64]bool{size: true, size + 1: true, size - 1: false, 0: false} {
		if isLayer(file, digest, most) != want {
			t.Errorf("of at most %d bytes, and it has %d: %v", most, size, !want)
		}
	}
	packed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for what, damaged := range map[string][]byte{
		"garbage": []byte("garbage"), "nothing": nil, "cut": packed[:len(packed)-5],
		"twice": append(bytes.Clone(packed), packed...), "more behind it": append(bytes.Clone(packed), "more"...),
	} {
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if b.hasLayer(digest) {
			t.Errorf("%s is taken for a layer", what)
		}
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, damaged) {
			t.Errorf("%s: %d bytes are left: %v", what, len(got), err)
		}
	}
	for _, bad := range []string{"", "sha256:", "sha256:../../x", digest[:20]} {
		if b.hasLayer(bad) {
			t.Errorf("%q is taken for a digest", bad)
		}
	}
}

// A layer of steps is reused by another build if all inputs of the steps are the same.
func TestSameLayer(t *testing.T) {
	was := lockedLayer{From: "a", Image: "b", Steps: []string{"c"}, Env: []string{"A=1"}, Digest: "d"}
	for name, c := range map[string]struct {
		change func(*lockedLayer)
		same   bool
	}{
		"nothing":      {func(l *lockedLayer) { l.Digest = "" }, true},
		"a step":       {func(l *lockedLayer) { l.Steps = []string{"c", "d"} }, false},
		"a variable":   {func(l *lockedLayer) { l.Env = []string{"A=2"} }, false},
		"no variables": {func(l *lockedLayer) { l.Env = []string{} }, false},
		"files":        {func(l *lockedLayer) { l.Files = "f" }, false},
	} {
		now := was
		c.change(&now)
		if now.same(was) != c.same {
			t.Errorf("%s is changed: the same: %v", name, !c.same)
		}
	}
	var old, none lockedLayer // an old lock without variables, and one that has none
	none.Env = []string{}
	if none.same(old) || !none.same(none) {
		t.Error("what an older lock does not say is taken for nothing")
	}
}
