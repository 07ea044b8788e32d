package machine

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unitask/unitask/guest/contract"
)

// The marker is found wherever its pages are, in their order. An incomplete or imitated marker is not accepted.
func TestFindPlace(t *testing.T) {
	const pages = contract.PlaceSize / placePage
	mark := []byte(contract.PlaceMark)
	for i := range mark {
		mark[i]++
	}
	page := func(number uint32) []byte { return binary.LittleEndian.AppendUint32(slices.Clone(mark), number) }
	for name, c := range map[string]struct {
		change func(write func(at int64, text []byte), at []int64)
		found  bool
	}{
		"whole":           {func(func(int64, []byte), []int64) {}, true},
		"imitated inside": {func(write func(int64, []byte), at []int64) { write(100<<20+16, page(1)) }, true},
		"one lacks":       {func(write func(int64, []byte), at []int64) { write(at[7], make([]byte, 32)) }, false},
		"twice":           {func(write func(int64, []byte), at []int64) { write(100<<20, page(3)) }, false},
		"beyond":          {func(write func(int64, []byte), at []int64) { write(at[3], page(pages)) }, false},
		"far beyond":      {func(write func(int64, []byte), at []int64) { write(at[3], page(1<<32-1)) }, false},
		"written to":      {func(write func(int64, []byte), at []int64) { write(at[3]+placePage-1, []byte{1}) }, false},
		"nothing": {func(write func(int64, []byte), at []int64) {
			for _, at := range at {
				write(at, make([]byte, 32))
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := f.Truncate(128 << 20); err != nil {
				t.Fatal(err)
			}
			write := func(at int64, text []byte) {
				if _, err := f.WriteAt(text, at); err != nil {
					t.Fatal(err)
				}
			}
			var at []int64
			for i, p := range rand.Perm(90 << 20 / placePage)[:pages] { // with holes and other memory between
				at = append(at, int64(p+1)*placePage)
				write(at[i], page(uint32(i)))
			}
			write(95<<20, []byte("other memory"))
			c.change(write, at)
			got, err := findPlace(f)
			if err != nil || c.found != slices.Equal(got, at) || !c.found && got != nil {
				t.Errorf("%d pages, %v", len(got), err)
			}
		})
	}
	if f, err := os.Create(filepath.Join(t.TempDir(), "memory")); err != nil {
		t.Fatal(err)
	} else if got, err := findPlace(f); got != nil || err != nil {
		t.Errorf("an empty one: %v %v", got, err)
	}
}
