package unitask_test

import (
	"os"
	"syscall"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// What an image's disk takes of the host's (issue 19).
func TestImageSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("builds images; not in -short")
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	for name, most := range map[string]int64{"python": 60e6} {
		t.Run(name, func(t *testing.T) {
			store, err := rt.Images().Of(name)
			if err != nil {
				t.Fatal(err)
			}
			im, err := store.Obtain(t.Context(), image.Linux, image.HostArch())
			if err != nil {
				t.Fatal(err)
			}
			st, err := os.Stat(im.Path(image.DiskFile))
			if err != nil {
				t.Fatal(err)
			}
			if size := st.Sys().(*syscall.Stat_t).Blocks * 512; size > most {
				t.Errorf("%d bytes, and %d are the most", size, most)
			}
		})
	}
}
