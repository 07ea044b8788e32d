package unitask_test

import (
	"go/build"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/testarchive"
)

// A folder that an earlier run also had is in the machine from the start. The code sees the same as when it was sent.
func TestFoldersAreKept(t *testing.T) {
	needClones(t)
	dir := filepath.Join(build.Default.GOROOT, "src", "crypto") // nobody changes it
	found, err := hostfiles.Find(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	var set hostfiles.Set
	err = set.Add(found, "/in", 1<<30)
	found.Close()
	defer set.Close()
	if err != nil {
		t.Skip("no sources of Go: ", err)
	}
	if set.Steady() == nil {
		t.Skip(dir + " is on no disk whose times of changes can be trusted")
	}
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			t.Parallel()
			slot(t)
			keptFolder(t, kernel, dir)
		})
	}
}

func keptFolder(t *testing.T, kernel image.Kernel, dir string) {
	home := newHome(t)
	if err := os.Remove(filepath.Join(home, "templates")); err != nil { // the base home's templates
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	code := testarchive.Open(t, "testdata/folders.txtar").Text("tree.js")
	var outputs []string
	for range 2 {
		res, err := rt.Run(t.Context(), unitask.Request{Code: code, Kernel: kernel,
			Dirs: []unitask.Mount{{Host: dir, Guest: "/in"}}},
			unitask.IO{Events: func(e unitask.Event) { t.Log(e.Kind, e.Message) }})
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("%v %+v %s", err, res, res.Stderr)
		}
		outputs = append(outputs, string(res.Stdout))
		unitask.Settle(t.Context(), rt)
	}
	if outputs[0] != outputs[1] || strings.Contains(outputs[0], "allowed") {
		t.Errorf("sent: %s\nkept: %s", outputs[0], outputs[1])
	}
	// The second run was a clone of a separate template.
	used := 0
	for _, info := range globbed(t, filepath.Join(home, "templates", "*", "template.json")) {
		text, err := os.ReadFile(info)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), " folders ") {
			for range globbed(t, filepath.Join(filepath.Dir(info), "uses")) {
				used++
			}
		}
	}
	if used != 1 {
		t.Errorf("%d templates with folders were used", used)
	}
}

func globbed(t *testing.T, pattern string) []string {
	t.Helper()
	list, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return list
}
