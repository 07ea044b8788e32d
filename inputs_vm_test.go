package unitask_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/policy"
)

// The host's files and folders are the same in the guest, and stay unchanged.
func TestInputs(t *testing.T) {
	needVM(t)
	dir := tree(t, "proj/data/sales.csv", "proj/data/tool.sh", "proj/data/latest -> sales.csv", "proj/src/main.js",
		"proj/empty/", "one.txt", "evil -> /etc/passwd")
	if err := errors.Join(os.Chmod(dir+"/proj/data/tool.sh", 0o755),
		os.Chtimes(dir+"/proj/data/sales.csv", time.Time{}, time.Unix(1_500_000_000, 0))); err != nil {
		t.Fatal(err)
	}
	code := testarchive.Open(t, "testdata/inputs.txtar").File("folder.js")
	if err := os.WriteFile(dir+"/proj/src/main.js", []byte("module.exports = 'a module'"), 0o644); err != nil {
		t.Fatal(err)
	}
	const want = `relative content of proj/data/sales.csv
absolute content of proj/data/sales.csv sales.csv
elsewhere content of one.txt
list code.js,data,empty,src
time 1500000000
write data/sales.csv EACCES
write data/new EACCES
write new EACCES
write /elsewhere/file EACCES
write empty/x EACCES
append EACCES
unlink EACCES
rename EACCES
mkdir EACCES
truncate EACCES
tmp undefined
require a module
`
	req := unitask.Request{Code: code, Dir: dir + "/proj", Dirs: []unitask.Mount{{Host: dir + "/proj"}},
		Files: []unitask.Mount{{Host: dir + "/one.txt", Guest: "/elsewhere/file"}}}
	for _, kernel := range kernels(t) {
		for _, cold := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s cold=%v", kernel, cold), func(t *testing.T) {
				req := req
				req.Kernel, req.Cold = kernel, cold
				rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
				if err != nil {
					t.Fatal(err)
				}
				defer rt.Close()
				res, err := rt.Run(t.Context(), req, unitask.IO{})
				if err != nil || res.Cloned == cold {
					t.Fatalf("%+v %v", res, err)
				}
				if string(res.Stdout) != want || len(res.Stderr) > 0 {
					t.Errorf("%s%s", res.Stdout, res.Stderr)
				}
				again, err := rt.History().Request(res.RunID, "")
				if err != nil || len(again.Dirs) != 1 || again.Dirs[0].Host != dir+"/proj" ||
					again.Files[0].Guest != "/elsewhere/file" {
					t.Errorf("%+v %v", again, err)
				}
			})
		}
	}
	text, err := os.ReadFile(dir + "/proj/data/sales.csv")
	if err != nil || string(text) != "content of proj/data/sales.csv" {
		t.Errorf("%q %v", text, err)
	}
	refuseInputs(t)
}

// refuseInputs checks that names with invalid text arrive unchanged, and that too much data for the machine is refused.
func refuseInputs(t *testing.T) {
	t.Helper()
	t.Run("names that are no text", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("this host's file system has none")
		}
		odd := tree(t, "\xff\xfe", "d\x80/f", "link -> \xff\xfe")
		code := testarchive.Open(t, "testdata/inputnames.txtar").Text("names.js")
		req := unitask.Request{Dirs: []unitask.Mount{{Host: odd, Guest: "/w"}}, Code: code}
		res, err := unitask.Run(t.Context(), req, unitask.Options{Home: newHome(t)})
		if err != nil || res.Kernel != image.Linux ||
			string(res.Stdout) != "d\u0080,link,\u00ff\u00fe content of \u00ff\u00fe content of \u00ff\u00fe\n" {
			t.Errorf("%q %q %v", res.Stdout, res.Stderr, err)
		}
		req.Kernel = image.Nanos
		if _, err = unitask.Run(t.Context(), req, unitask.Options{Home: newHome(t)}); err == nil ||
			!strings.Contains(err.Error(), "use linux") {
			t.Error(err)
		}
	})
	t.Run("too much for the machine", func(t *testing.T) {
		big := tree(t, "x")
		if err := os.Truncate(big+"/x", 200<<20); err != nil {
			t.Fatal(err)
		}
		_, err := unitask.Run(t.Context(), unitask.Request{Code: "1", MemoryMB: 256,
			Files: []unitask.Mount{{Host: big + "/x"}}}, unitask.Options{Home: newHome(t)})
		if !errors.As(err, new(*policy.FieldError)) || !strings.Contains(err.Error(), "memoryMb 490 would do") {
			t.Error(err)
		}
	})
}

// A large tree arrives completely. UNITASK_TEST_TREE=20000 makes it the full size: 20 000 files, 200 MB.
func TestTree(t *testing.T) {
	needVM(t)
	files := 2000
	if os.Getenv("UNITASK_TEST_TREE") != "" {
		files = 20000
	}
	root := t.TempDir()
	content := []byte(strings.Repeat("0123456789", 1000))
	for i := range files {
		dir := filepath.Join(root, "d"+itoa(i%7), "e"+itoa(i%100))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		copy(content, fmt.Sprintf("%010d", i))
		if err := os.WriteFile(filepath.Join(dir, "f"+itoa(i)), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const code = `
const fs = require("fs"), path = require("path");
let n = 0, bytes = 0, bad = 0;
(function walk(dir) {
  for (const e of fs.readdirSync(dir, { withFileTypes: true })) {
    const p = path.join(dir, e.name);
    if (e.isDirectory()) { walk(p); continue; }
    const b = fs.readFileSync(p);
    n++; bytes += b.length;
    if (b.subarray(0, 10).toString() !== e.name.slice(1).padStart(10, "0")) bad++;
  }
})(process.argv[2]);
console.log(n, bytes, bad);`
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Code: code, Args: []string{"/tree"},
				MemoryMB: 768, Timeout: 5 * time.Minute,
				Dirs: []unitask.Mount{{Host: root, Guest: "/tree"}}}, unitask.Options{Home: newHome(t), Machines: unitask.Booted()})
			if err != nil || string(res.Stdout) != fmt.Sprintf("%d %d 0\n", files, files*10000) {
				t.Fatalf("%+v %v", res, err)
			}
			runtime.ReadMemStats(&after)
			t.Logf("%d files in after %d ms, read after %d ms; the host's heap grew by %d MiB", files,
				res.Duration.Connect.Milliseconds(), res.Duration.Run.Milliseconds(),
				(int64(after.HeapSys)-int64(before.HeapSys))>>20)
		})
	}
}
