package project

import (
	"io/fs"
	"testing"
)

// FuzzListing reads what a hostile machine says about its files: no path leads out of the folder.
func FuzzListing(f *testing.F) {
	f.Add(listing("f644 1 1.0 x", "d7 d", "= d/e", "l/etc l"))
	f.Add([]byte("1.5\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := ParseListing(text)
		if err != nil {
			return
		}
		for i, e := range l.Entries {
			if i == 0 != (e.Path == "") || i > 0 && !fs.ValidPath(e.Path) || e.Size < 0 {
				t.Errorf("%q", e.Path)
			}
		}
	})
}
