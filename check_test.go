package unitask_test

import (
	"strings"
	"testing"

	"github.com/unitask/unitask"
)

// A check prints what the languages' own tools print. It runs nothing of the code, whatever the code tries.
func TestCheck(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	for _, c := range []struct {
		name   string
		req    unitask.Request
		exit   int
		stderr string // its first part
	}{
		{"js", unitask.Request{Code: "require('fs').writeFileSync('/out/ran', '1')\nawait 1; process.exit(9)"}, 0, ""},
		{"js: an error", unitask.Request{Code: "require('fs').writeFileSync('/out/ran', '1')\nconst z = {;",
			Path: "/work/a b.js"}, 1, "/work/a b.js:2\nconst z = {;\n           ^\n\nSyntaxError: Unexpected token ';'\n"},
		{"js: a module",
			unitask.Request{Code: "import x from './no-such';\nimport fs from 'fs'; fs.writeFileSync('/out/ran', '1')\nlet x;",
				PackageType: "module"}, 1,
			"/work/code.js:3\nlet x;\n    ^\n\nSyntaxError: Identifier 'x' has already been declared\n"},
		{"ts", unitask.Request{Language: "ts",
			Code: "import fs from 'fs';\ninterface A { b: string }\nconst n: number = 1;\nfs.writeFileSync('/out/ran', '1')"}, 0,
			""},
		{"ts: no type", unitask.Request{Language: "ts", Code: "let a;\nconst n: = 1;"}, 1,
			"/work/code.ts:2\nlet a;\nconst n: = 1;\n         ^\n\nSyntaxError [ERR_INVALID_TYPESCRIPT_SYNTAX]: "},
		{"ts: what V8 finds", unitask.Request{Language: "mts", Code: "const n: number = 1;\nlet n = 2;"}, 1,
			"/work/code.mts:2\nlet n = 2;\n    ^\n\nSyntaxError: Identifier 'n' has already been declared\n"},
		{"python", unitask.Request{Language: "python", Code: "import os\nopen('/out/ran', 'w')\nos._exit(9)",
			Args: []string{"x"}, Env: map[string]string{"PYTHONPATH": "/work", "PYTHONOPTIMIZE": "1"},
			InlineFiles: []unitask.InlineFile{{Name: "py_compile.py", Content: "open('/out/ran', 'w')"},
				{Name: "sitecustomize.py", Content: "open('/out/ran', 'w')"},
				{Name: "tempfile.py", Content: "open('/out/ran', 'w')"}}}, 0, ""},
		{"python: an error", unitask.Request{Language: "python", Code: "open('/out/ran', 'w')\nif x\n  y\n"}, 1,
			"  File \"/work/script.py\", line 2\n    if x\n        ^\nSyntaxError: expected ':'\n"},
		{"python: a tab", unitask.Request{Language: "python", Code: "if x:\n        y\n\tz\n"}, 1,
			"Sorry: TabError: inconsistent use of tabs and spaces in indentation (script.py, line 3)"},
		{"shell", unitask.Request{Language: "shell", Code: "echo x > /out/ran\n$(touch /out/ran)\nexit 9",
			Env:         map[string]string{"BASH_ENV": "/work/ran.sh"},
			InlineFiles: []unitask.InlineFile{{Name: "ran.sh", Content: "touch /out/ran"}}}, 0, ""},
		{"shell: an error", unitask.Request{Language: "shell", Code: "touch /out/ran\nif true; then\n", Path: "-n.sh"}, 2,
			"/work/-n.sh: line 3: syntax error: unexpected end of file\n"},
		{"go", unitask.Request{Language: "go",
			Code: "package main\n\nimport \"os\"\n\nfunc main() { os.WriteFile(\"/out/ran\", nil, 0o644); x }\n",
			Env:  map[string]string{"ENV": "/work/ran.sh"}, InlineFiles: []unitask.InlineFile{{Name: "ran.sh",
				Content: "touch /out/ran"}}}, 0, ""},
		{"go: an error", unitask.Request{Code: "package main\n\nfunc main() { x := }\n", Path: "-e x.go"}, 2,
			"/work/-e x.go:3:20: expected operand, found '}'\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			slot(t)
			c.req.Check = true
			res, err := rt.Run(t.Context(), c.req, unitask.IO{})
			if err != nil {
				t.Fatalf("%v %+v", err, res)
			}
			if res.ExitCode != c.exit || !strings.HasPrefix(string(res.Stderr), c.stderr) ||
				c.stderr == "" && len(res.Stderr) > 0 || len(res.Stdout) > 0 {
				t.Errorf("exit %d, %q, %q", res.ExitCode, res.Stdout, res.Stderr)
			}
			if len(res.Artifacts) > 0 || res.Hint() != "" || res.Kernel != "linux" {
				t.Errorf("%+v", res)
			}
			req, err := rt.History().Request(res.RunID, "")
			if err != nil || !req.Check || req.Args != nil || req.Env != nil {
				t.Errorf("%+v %v", req, err)
			}
		})
	}
	// If a ceiling or the caller chooses a kernel without processes, the error says so.
	if _, err := rt.Run(t.Context(), unitask.Request{Code: "1", Check: true, Kernel: "nanos"}, unitask.IO{}); err == nil ||
		!strings.Contains(err.Error(), "check with kernel nanos: starts a process, which needs the linux kernel") {
		t.Error(err)
	}
}
