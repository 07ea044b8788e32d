package unitask_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// imageOf returns the linux image with a name, from a home that has borrowed.
func imageOf(t *testing.T, name string) (*unitask.Runtime, *image.Image) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds images; not in -short")
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	store, err := rt.Images().Of(name)
	if err != nil {
		t.Fatal(err)
	}
	im, err := store.Obtain(t.Context(), image.Linux, image.HostArch())
	if err != nil {
		t.Fatal(err)
	}
	return rt, im
}

// needErofs skips the test if the parts lack the kernel's driver.
func needErofs(t *testing.T) {
	t.Helper()
	if found, _ := filepath.Glob(filepath.Join(baseHome, "vendor", string(image.HostArch()), "linux", "modules",
		"erofs.ko*")); len(found) == 0 {
		t.Skip("the linux part was fetched before its erofs driver was wanted, or its package has none: " +
			"remove vendor/*/linux of the home, and `unitask image vendor` fetches it again")
	}
}

// The size of an image on the host's disk, including a usual system (guest/system) of 29 MB.
func TestImageSizes(t *testing.T) {
	for name, most := range map[string]int64{"python": 91e6, "python@3.11": 91e6, "data": 229e6} {
		t.Run(name, func(t *testing.T) {
			if name == "data" {
				needErofs(t)
			}
			_, im := imageOf(t, name)
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

const walkImage = `
import json, os, stat, zlib
for folder, folders, files in os.walk('/image'):
    for name in folders + files:
        path = os.path.join(folder, name)
        st = os.lstat(path)
        one = {'path': path[6:], 'mode': st.st_mode, 'size': st.st_size, 'links': st.st_nlink}
        if stat.S_ISLNK(st.st_mode):
            one['target'] = os.readlink(path)
        elif stat.S_ISREG(st.st_mode):
            with open(path, 'rb') as f:
                sum = 0
                while part := f.read(1 << 20):
                    sum = zlib.crc32(part, sum)
            one['sum'] = sum
        print(json.dumps(one))
`

// The kernel reads from a compressed disk exactly what was written: each entry, and the content of each file of a part.
// All parts are compared.
func TestPackedDisk(t *testing.T) {
	if !long() {
		t.Skip("all of a disk, read in a machine, is make long's (UNITASK_TEST_LONG=1)")
	}
	needErofs(t)
	rt, im := imageOf(t, "data")
	parts := map[string]string{}
	for _, line := range im.Parts {
		part, _, _ := strings.Cut(line, " ")
		root := filepath.Join(baseHome, "vendor", string(image.HostArch()), part, "root")
		_ = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				parts[strings.TrimPrefix(name, root)] = name
			}
			return nil
		})
	}
	slot(t)
	res, err := rt.Run(t.Context(), unitask.Request{Kernel: image.Linux, Image: "data", Cold: true, Code: walkImage},
		unitask.IO{})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%+v %v", res, err)
	}
	type entry struct {
		Path, Target     string
		Mode, Sum, Links uint32
		Size             int64
	}
	got, folders := map[string]entry{}, map[string]uint32{}
	for lines := bufio.NewScanner(bytes.NewReader(res.Stdout)); lines.Scan(); {
		var e entry
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		got[e.Path] = e
		if e.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			folders[filepath.Dir(e.Path)]++
		}
	}
	want, err := im.Entries()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("%d entries, not %d", len(got), len(want))
	}
	compared := 0
	for _, w := range want {
		g, kind, links := got[w.Path], uint32(syscall.S_IFREG), uint32(1)
		switch w.Mode.Type() {
		case fs.ModeDir:
			kind, links, g.Size = syscall.S_IFDIR, 2+folders[w.Path], 0
		case fs.ModeSymlink:
			kind = syscall.S_IFLNK
		}
		if g.Mode != kind|uint32(w.Mode.Perm()) || g.Size != w.Size || g.Target != w.Target || g.Links != links {
			t.Errorf("%+v, not %+v", g, w)
		}
		// the image's own file
		if from := parts[w.Path]; from != "" && kind == syscall.S_IFREG && w.Path != "/etc/matplotlibrc" {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if g.Sum != crc32.ChecksumIEEE(text) {
				t.Errorf("%s: other content, of %d bytes", w.Path, len(text))
			}
			compared++
		}
	}
	if compared < 4000 {
		t.Errorf("only %d files compared", compared)
	}
}
