package unitask_test

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
)

// Runs keep the store within its limit, and report what they removed.
func TestStoreIsBounded(t *testing.T) {
	for bound, grows := range map[int64]bool{300 << 10: false, -1: true} {
		told := ""
		rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), StoreBytes: bound, Events: func(e unitask.Event) {
			if e.Kind == unitask.EventStore {
				told = e.Message
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer rt.Close()
		last := ""
		for range 8 { // it gets as far as its record: the kernel does not exist
			res, err := rt.Run(t.Context(), unitask.Request{Code: "//" + strings.Repeat("x", 100<<10), Kernel: "nanos"},
				unitask.IO{})
			if err == nil || res == nil {
				t.Fatalf("%+v %v", res, err)
			}
			last = res.RunID
		}
		var size int64
		if err := filepath.WalkDir(rt.Runs().Dir(), func(_ string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil && info.Mode().IsRegular() {
				size += info.Size()
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if (size > 300<<10) != grows || strings.Contains(told, "whole runs") == grows {
			t.Errorf("with a bound of %d the store has %d bytes; %q", bound, size, told)
		}
		if _, err := rt.Runs().Get(last); err != nil {
			t.Error(err)
		}
	}
}
