package unitask_test

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
)

// TypeScript beyond plain type annotations runs, and stack traces have its line numbers. Code that Node runs itself
// behaves as in Node.
func TestTypeScript(t *testing.T) {
	needVM(t)
	archive, err := txtar.ParseFile("testdata/typescript.txtar")
	mustDo(t, err)
	dir := t.TempDir()
	expected := map[string]string{} // by the name of a program, and of a stream
	var programs []txtar.File
	for _, f := range archive.Files {
		switch name := path.Base(f.Name); {
		case path.Dir(f.Name) == ".": // in the folder above all programs
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
			if got := string(res.Stderr); !strings.Contains(got, stderr) || stderr == "" && got != "" ||
				strings.Contains(got, "preload") {
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

// Programs of several files run as people write them: JSX, decorators, settings of tsconfig.json, imports as tsc
// resolves them. They need a process beside Node's, which Nanos lacks. There a message says so.
func TestTypeScriptMore(t *testing.T) {
	needVM(t)
	archive, err := txtar.ParseFile("testdata/typescriptmore.txtar")
	mustDo(t, err)
	root := t.TempDir()
	expected := map[string]string{} // by the name of a program, and of a stream
	var programs []string           // their main files
	for _, f := range archive.Files {
		name := filepath.Join(root, f.Name)
		switch base := path.Base(f.Name); {
		case base == "stdout" || base == "stderr":
			expected[f.Name] = string(f.Data)
			continue
		case strings.HasPrefix(base, "main."):
			programs = append(programs, f.Name)
		}
		mustDo(t, os.MkdirAll(filepath.Dir(name), 0o755))
		mustDo(t, os.WriteFile(name, f.Data, 0o644))
	}
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	run := func(main string, kernel unitask.Kernel) *unitask.Result {
		code, err := os.ReadFile(filepath.Join(root, main))
		mustDo(t, err)
		req := unitask.Request{Kernel: kernel, Code: string(code), Path: filepath.Join(root, main)}
		req.Dirs = []unitask.Mount{{Host: filepath.Join(root, path.Dir(main))}}
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		if err != nil {
			t.Fatalf("%s: %v", main, err)
		}
		return res
	}
	for _, main := range programs {
		name := path.Dir(main)
		res := run(main, unitask.Linux)
		stdout, stderr := expected[name+"/stdout"], strings.TrimSuffix(expected[name+"/stderr"], "\n")
		if got := string(res.Stdout); got != stdout {
			t.Errorf("%s: stdout %q, want %q", name, got, stdout)
		}
		if got := string(res.Stderr); !strings.Contains(got, stderr) || stderr == "" && got != "" ||
			strings.Contains(got, "/unitask/") {
			t.Errorf("%s: stderr %q, want %q, and nothing of ours", name, got, stderr)
		}
	}
	if slices.Contains(kernels(t), image.Nanos) {
		if res := run(programs[0], unitask.Nanos); !strings.Contains(string(res.Stderr), `kernel = "linux"`) ||
			res.ExitCode == 0 {
			t.Errorf("on nanos: %+v %s", res, res.Stderr)
		}
	}
	for code, exit := range map[string]int{"const a = <b>x</b>": 0, "const a = <b>": 1} {
		check := unitask.Request{Kernel: unitask.Linux, Code: code, Path: "/work/code.tsx", Check: true}
		if res, err := rt.Run(t.Context(), check, unitask.IO{}); err != nil || res.ExitCode != exit {
			t.Errorf("check of %s: %+v %v", code, res, err)
		}
	}
}
