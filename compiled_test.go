package unitask_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
)

// The compiled program is not kept for other runs if more than the text, its name and its folder may affect it.
func TestCompiledAlone(t *testing.T) {
	rt := openRuntime(t, unitask.Options{Home: testdir.Private(t)})
	dir := t.TempDir()
	file := filepath.Join(dir, "data")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const code = "package main\n\nfunc main() {}\n"
	for name, c := range map[string]struct {
		change func(*unitask.Request, *unitask.IO)
		alone  bool
	}{
		"one file":            {func(*unitask.Request, *unitask.IO) {}, true},
		"arguments":           {func(r *unitask.Request, _ *unitask.IO) { r.Args = []string{"a"} }, true},
		"one for go run":      {func(r *unitask.Request, _ *unitask.IO) { r.Args = []string{"other.go"} }, false},
		"one like it, later":  {func(r *unitask.Request, _ *unitask.IO) { r.Args = []string{"a", "other.go"} }, true},
		"its name and folder": {func(r *unitask.Request, _ *unitask.IO) { r.Path, r.Dir = "/p/x.go", "/d" }, true},
		"colours":             {func(_ *unitask.Request, s *unitask.IO) { s.Colors = "1" }, true},
		"a fresh process":     {func(r *unitask.Request, _ *unitask.IO) { r.FreshProcess = true }, true},
		"the network":         {func(r *unitask.Request, _ *unitask.IO) { r.AllowNet = []string{"a.example"} }, true},
		"what is there anyway": {func(r *unitask.Request,
			_ *unitask.IO) {
			r.Env = map[string]string{"HOME": "/home/user"}
		}, true},
		"a variable": {func(r *unitask.Request, _ *unitask.IO) { r.Env = map[string]string{"A": "1"} }, false},
		"a variable of Go's": {func(r *unitask.Request, _ *unitask.IO) { r.Env = map[string]string{"GOFLAGS": "-x"} },
			false},
		"another PATH": {func(r *unitask.Request, _ *unitask.IO) { r.Env = map[string]string{"PATH": "/tmp"} },
			false},
		"another HOME": {func(r *unitask.Request, _ *unitask.IO) { r.Env = map[string]string{"HOME": "/tmp"} },
			false},
		"a secret": {func(r *unitask.Request,
			_ *unitask.IO) {
			r.Secrets = map[string]string{"A": "12345678"}
		}, false},
		"a file": {func(r *unitask.Request,
			_ *unitask.IO) {
			r.Files = []unitask.Mount{{Host: file, Guest: "/data"}}
		}, false},
		"a folder, which is empty": {func(r *unitask.Request,
			_ *unitask.IO) {
			r.Dirs = []unitask.Mount{{Host: t.TempDir(), Guest: "/data"}}
		}, false},
		"a file beside it": {func(r *unitask.Request, _ *unitask.IO) {
			r.InlineFiles = []unitask.InlineFile{{Name: "go.mod", Content: "module x\n"}}
		}, false},
		"its syntax":            {func(r *unitask.Request, _ *unitask.IO) { r.Check = true }, false},
		"a terminal":            {func(_ *unitask.Request, s *unitask.IO) { s.Terminal = &unitask.Terminal{} }, false},
		"files that go into it": {func(r *unitask.Request, _ *unitask.IO) { r.Code = "//go:embed x\n" + code }, false},
		"another language":      {func(r *unitask.Request, _ *unitask.IO) { r.Language = "shell" }, false},
		"another image": {func(r *unitask.Request, _ *unitask.IO) {
			r.Language, r.Code, r.Image = "shell",
				"true", "golang:1.26"
		}, false},
		"a file of another's, by name": {func(r *unitask.Request, _ *unitask.IO) { r.Language, r.Path = "", "x.py" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			req, streams := unitask.Request{Language: "go", Code: code}, unitask.IO{}
			c.change(&req, &streams)
			if alone, err := unitask.Alone(rt, req, streams); err != nil || alone != c.alone {
				t.Errorf("%v %v", alone, err)
			}
		})
	}
}
