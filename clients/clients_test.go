package clients

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/httpapi"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testregistry"
)

// The Python client's tests pass, and its generated parts are those of the API's document.
func TestPython(t *testing.T) {
	if testing.Short() {
		t.Skip("boots real machines; not in -short")
	}
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, "linux")
	list, err := os.ReadFile("python/requirements-dev.txt")
	if err != nil {
		t.Fatal(err)
	}
	tools := testregistry.Pip(t, base, "clients", strings.Fields(string(list))...)
	dir := filepath.Join(t.TempDir(), "python")
	if err := os.CopyFS(dir, os.DirFS("python")); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "unitask")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "../cli/unitask")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	python := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "python3", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PYTHONPATH="+tools+":"+filepath.Join(dir, "src"), "UNITASK_BIN="+bin,
			"UNITASK_HOME="+testhome.New(t, base), "PATH="+filepath.Join(tools, "bin")+":"+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("python3 %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	document := filepath.Join(dir, "openapi.json")
	writeDocument(t, document)
	python("generate.py", document)
	sameFiles(t, dir, "python")
	python("-m", "mypy")
	python("-m", "ruff", "check", ".")
	python("-m", "ruff", "format", "--check", ".")
	python("-m", "pytest", "-q")
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

// sameFiles compares the files of the folder want with those of got.
func sameFiles(t *testing.T, got, want string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(want), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		is, err := os.ReadFile(filepath.Join(got, path))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(filepath.Join(want, path))
		if err == nil && string(is) != string(text) {
			t.Errorf("clients/%s/%s is not what generate.py makes of the API's document", want, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
