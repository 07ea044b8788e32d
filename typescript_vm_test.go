package unitask_test

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/unitask/unitask"
)

// TypeScript that is more than JavaScript with types runs, and stack traces have its lines. What Node runs by itself is
// as Node has it.
func TestTypeScript(t *testing.T) {
	needVM(t)
	archive, err := txtar.ParseFile("testdata/typescript.txtar")
	mustDo(t, err)
	dir := t.TempDir()
	expected := map[string]string{} // by the name of a program, and of a stream
	var programs []txtar.File
	for _, f := range archive.Files {
		switch name := path.Base(f.Name); {
		case path.Dir(f.Name) == ".": // beside them all
			mustDo(t, os.WriteFile(filepath.Join(dir, name), f.Data, 0o644))
		case name == "stdout" || name == "stderr":
			expected[f.Name] = string(f.Data)
		default:
			programs = append(programs, f)
		}
	}
	for _, kernel := range kernels(t) {
		rt := openRuntime(t, unitask.Options{Home: newHome(t)})
		for _, f := range programs {
			name := path.Dir(f.Name)
			stdout, stderr := expected[name+"/stdout"], strings.TrimSuffix(expected[name+"/stderr"], "\n")
			req := unitask.Request{Kernel: kernel, Code: string(f.Data), Path: filepath.Join(dir, path.Base(f.Name))}
			req.Dirs = []unitask.Mount{{Host: dir}}
			res, err := rt.Run(t.Context(), req, unitask.IO{})
			if err != nil {
				t.Errorf("%s on %s: %v", name, kernel, err)
				continue
			}
			if got := string(res.Stdout); got != stdout {
				t.Errorf("%s on %s: stdout %q, want %q", name, kernel, got, stdout)
			}
			if got := string(res.Stderr); !strings.Contains(got, stderr) || stderr == "" && got != "" || strings.Contains(got, "preload") {
				t.Errorf("%s on %s: stderr %q, want %q, and nothing of ours", name, kernel, got, stderr)
			}
		}
	}
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	check := unitask.Request{Kernel: unitask.Linux, Code: "enum A { X }", Path: "/work/code.ts", Check: true}
	if res, err := rt.Run(t.Context(), check, unitask.IO{}); err != nil || res.ExitCode != 0 {
		t.Errorf("check: %+v %v", res, err)
	}
}
