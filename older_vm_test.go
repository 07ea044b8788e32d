package unitask_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// An image with an older version runs that version. make long also tries sessions, packages and custom images.
func TestOlderPython(t *testing.T) {
	needVM(t)
	slot(t)
	r := newRegistry(t)
	r.put("good-1.2-py3-none-any.whl", wheel(t, "good", "1.2", "NAME = 'good'\n"))
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Booted()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	runs := func(req unitask.Request, want string) {
		t.Helper()
		req.Language, req.Kernel, req.Timeout = "python", image.Linux, 3*time.Minute
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		if err != nil || string(res.Stdout) != want {
			t.Fatalf("%s: %v\n%s%s", req.Image, err, res.Stdout, res.Stderr)
		}
	}
	// OpenSSL, SQLite and the others are libraries of the same release.
	const version = "import sys, ssl, sqlite3, lzma, bz2, ctypes, zoneinfo\nprint(sys.version_info[:2], end=' ')\n"
	runs(unitask.Request{Image: "python@3.11", Code: version}, "(3, 11) ")
	if !long() {
		return
	}
	runs(unitask.Request{Image: "python@3.11", Code: version + "import good\nprint(good.NAME, good.__file__)",
		Packages: []string{"pip:good"}},
		"(3, 11) good /usr/local/lib/python3.11/dist-packages/good/__init__.py\n")
	runs(unitask.Request{Image: "data@3.11", Code: version + "import numpy, pandas, matplotlib.pyplot as plt, scipy\n" +
		"print(*[m.__version__.rpartition('.')[0] for m in (numpy, pandas, scipy)])\nplt.plot([1])\nplt.show()"},
		"(3, 11) 1.24 1.5 1.10\n")
	runs(unitask.Request{Image: "python@3.11", Code: fmt.Sprintf(
		"import subprocess, sys\nsys.stdout.write(subprocess.run(['sh', '-c', %q], stdout=-1, text=True).stdout)", usual(t))},
		"done\n")

	describe(t, filepath.Join(home, "environments"), "old", "from = 'python@3.11'\npip = ['good']\nwarm = ['good']\n")
	if _, im, err := rt.BuildImage(t.Context(), "old", ""); err != nil || im.Base != "python@3.11" {
		t.Fatal(im, err)
	}
	runs(unitask.Request{Image: "old", Code: version + "import good\nprint(good.NAME)"}, "(3, 11) good\n")

	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "python@3.11"}})
	res, err := s.Run(t.Context(), unitask.Step{Code: "import sys; sys.version_info[:2]"})
	if err != nil || res.Value != "(3, 11)" {
		t.Errorf("%+v %v", res, err)
	}
}
