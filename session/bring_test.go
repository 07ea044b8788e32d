package session

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// A guest ends its tar while files are packed for it, for example by a signal. Nobody then reads files that were
// already released.
func TestAttackBringCut(t *testing.T) {
	dir := t.TempDir()
	for n := range 64 {
		mustMake(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(n)), []byte("x"), 0o644))
	}
	for n := range 200 {
		b := &bringing{inlineFiles: []run.InlineFile{{Name: "n", Content: "x"}}}
		_, _, _, err := program.Resolve(
			catalog.Request{Request: run.Request{Dirs: []policy.Mount{{Host: dir, Guest: "/d"}}}},
			nil,
			&b.set,
		)
		mustMake(t, err)
		mustMake(t, b.send(t.Context(), func(from io.Reader) error {
			_, err := io.CopyN(io.Discard, from, int64(n%128*512))
			return err
		}))
		b.set.Close()
	}
	attack.Check(
		t,
		"a guest that ends its tar while files are packed for it",
		"the host goes on",
		"the host goes on",
	) // otherwise it panics
}

func mustMake(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
