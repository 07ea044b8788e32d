package clients

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/httpapi"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testprogram"
	"github.com/unitask/unitask/internal/testregistry"
)

// library is a copy of a client library's folder, with what its tests need.
type library struct {
	name, dir, base string
	program         string // unitask
	env             []string
}

// copyOf copies a client library, and builds unitask for it.
func copyOf(t *testing.T, name string) *library {
	t.Helper()
	if testing.Short() {
		t.Skip("boots real machines; not in -short")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, "linux")
	dir := filepath.Join(t.TempDir(), name)
	for _, path := range sources(t, name) {
		text, err := os.ReadFile(filepath.Join(name, path))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, path), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	bin, err := testprogram.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	// The tests start many servers: no machines of Node stand ready in them.
	poolless := bin + "-without-a-pool"
	script := "#!/bin/sh\nif [ \"$1\" = serve ]; then set -- \"$@\" --pool 0; fi\nexec '" + bin + "' \"$@\"\n"
	if err := os.WriteFile(poolless, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	l := &library{name: name, dir: dir, base: base, program: bin, env: append(os.Environ(), "UNITASK_BIN="+poolless,
		"UNITASK_HOME="+testhome.New(t, base))}
	writeDocument(t, l.document())
	return l
}

// document returns the path of the API's document.
func (l *library) document() string { return filepath.Join(l.dir, "openapi.json") }

// run runs a command in the library's folder.
func (l *library) run(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "env", append([]string{program}, args...)...) // which looks into l.env's PATH
	cmd.Dir, cmd.Env = l.dir, l.env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
}

// The Python client's tests pass, and its generated parts are those of the API's document.
func TestPython(t *testing.T) {
	l := copyOf(t, "python")
	list, err := os.ReadFile("python/requirements-dev.txt")
	if err != nil {
		t.Fatal(err)
	}
	tools := testregistry.Pip(t, l.base, "clients", strings.Fields(string(list))...)
	l.env = append(l.env, "PYTHONPATH="+tools+":"+filepath.Join(l.dir, "src"),
		"PATH="+filepath.Join(tools, "bin")+":"+os.Getenv("PATH"))
	l.run(t, "python3", "generate.py", l.document())
	l.sameFiles(t)
	l.run(t, "python3", "-m", "mypy")
	l.run(t, "python3", "-m", "ruff", "check", ".")
	l.run(t, "python3", "-m", "ruff", "format", "--check", ".")
	l.run(t, "python3", "-m", "pytest", "-q")
}

// The TypeScript client's tests pass, and its generated part matches the API's document.
func TestTypeScript(t *testing.T) {
	l := copyOf(t, "typescript")
	text, err := os.ReadFile("typescript/package.json")
	var described struct {
		DevDependencies map[string]string
	}
	if err == nil {
		err = json.Unmarshal(text, &described)
	}
	if err != nil {
		t.Fatal(err)
	}
	var packages []string
	for name, version := range described.DevDependencies {
		packages = append(packages, name+"@"+version)
	}
	slices.Sort(packages)
	tools := testregistry.NPM(t, l.base, "clients", packages...)
	if err := os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(l.dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	l.run(t, "node", "generate.mjs", l.document())
	l.sameFiles(t)
	l.run(t, "node", "node_modules/typescript/bin/tsc")
	files, err := filepath.Glob(filepath.Join(l.dir, "dist", "test", "*.test.js"))
	if err != nil || len(files) < 4 {
		t.Fatalf("only %v: %v", files, err)
	}
	// The Node of the images is newer than that of some hosts.
	l.env = append(l.env, "PATH="+filepath.Join(l.base, "vendor", runtime.GOARCH, "node")+":"+os.Getenv("PATH"))
	l.run(t, "node", append([]string{"--test"}, files...)...)
}

// The tests of the worker for Claude Managed Agents pass. Its module is outside of the workspace, since its library is
// large.
func TestClaude(t *testing.T) {
	l := copyOf(t, "claude")
	l.env = append(l.env, "GOWORK=off", "UNITASK_TEST_PROGRAM="+l.program)
	l.run(t, "go", "vet", ".")
	l.run(t, "go", "test", "-count=1", "-vet=off", ".")
}

// writeDocument writes the API's document to a file.
func writeDocument(t *testing.T, path string) {
	t.Helper()
	w := httptest.NewRecorder()
	httpapi.New(httpapi.Options{Version: "test"}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if err := os.WriteFile(path, w.Body.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// sources returns the paths of a library's files, without those that its tools make.
func sources(t *testing.T, name string) []string {
	t.Helper()
	made := []string{"node_modules", "package-lock.json", "dist", "build", "__pycache__", ".ruff_cache", ".mypy_cache",
		".pytest_cache"}
	var paths []string
	err := fs.WalkDir(os.DirFS(name), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case slices.Contains(made, entry.Name()) && entry.IsDir():
			return fs.SkipDir
		case entry.Type().IsRegular() && !slices.Contains(made, entry.Name()):
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// sameFiles compares the library's files with their copies, which its generator may have changed.
func (l *library) sameFiles(t *testing.T) {
	t.Helper()
	paths := append(sources(t, l.name), sources(t, l.dir)...)
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		if path == filepath.Base(l.document()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(l.name, path))
		if err != nil {
			t.Fatal(err)
		}
		is, err := os.ReadFile(filepath.Join(l.dir, path))
		if err != nil || string(is) != string(text) {
			t.Errorf("clients/%s/%s is not what its generator makes of the API's document: %v", l.name, path, err)
		}
	}
}
