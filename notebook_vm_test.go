package unitask_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
)

// cells returns a notebook with cells of code; a cell that begins with # raises must fail.
func cells(t *testing.T, codes ...string) string {
	t.Helper()
	var list []map[string]any
	for _, code := range codes {
		cell := map[string]any{"cell_type": "code", "metadata": map[string]any{}, "source": strings.SplitAfter(code, "\n"),
			"outputs": []any{}, "execution_count": nil}
		if strings.HasPrefix(code, "# raises") {
			cell["metadata"] = map[string]any{"tags": []string{"raises-exception"}}
		}
		list = append(list, cell)
	}
	list = append(list, map[string]any{"cell_type": "markdown", "metadata": map[string]any{}, "source": "the *end*"})
	text, err := json.Marshal(map[string]any{"cells": list, "metadata": map[string]any{}, "nbformat": 4,
		"nbformat_minor": 5})
	mustDo(t, err)
	return string(text)
}

// A notebook's cells run in order in one interpreter. The notebook comes back with the output of each cell, including a
// failing one.
func TestNotebook(t *testing.T) {
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	run := func(image string, codes ...string) (*unitask.Result, []string) {
		t.Helper()
		out := t.TempDir()
		req := unitask.Request{Image: image, Path: "/work/book.ipynb", Code: cells(t, codes...), Args: []string{"arg"}}
		res, err := rt.Run(t.Context(), req, unitask.IO{Out: out})
		mustDo(t, err)
		text, err := os.ReadFile(filepath.Join(out, "book.ipynb"))
		mustDo(t, err)
		var book struct {
			Cells []struct {
				Type    string          `json:"cell_type"`
				Outputs json.RawMessage `json:"outputs"`
			} `json:"cells"`
		}
		mustDo(t, json.Unmarshal(text, &book))
		var outputs []string
		for _, cell := range book.Cells {
			if cell.Type == "code" {
				outputs = append(outputs, strings.Join(strings.Fields(string(cell.Outputs)), " "))
			}
		}
		return res, outputs
	}
	has := func(what, text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s lacks %q: %s", what, part, text)
			}
		}
	}
	res, outputs := run("python",
		"import sys\nx = 4\nprint('out', x)\nprint('err', file=sys.stderr)\nx + 1",
		"%matplotlib inline\n!echo from a shell\nimport asyncio\nawait asyncio.sleep(0, sys.argv)",
		"# raises\n1 / 0",
		"from IPython.display import HTML\nclass A: pass\nimport pickle\npickle.loads(pickle.dumps(A()))\nHTML('<b>')",
		"_ = 1;\nx;",
		"def f():\n    raise KeyError('gone')\nf()",
		"print('never')")
	if res.ExitCode != 1 || !strings.HasPrefix(string(res.Stdout),
		"out 4\n5\nfrom a shell\n['/work/book.ipynb', 'arg']\n") || strings.Contains(string(res.Stdout), "never") {
		t.Errorf("exit code %d, stdout %q", res.ExitCode, res.Stdout)
	}
	has("stderr", string(res.Stderr), "err\n", `File "<cell 6>", line 2, in f`, "    raise KeyError('gone')\n",
		"KeyError: 'gone'")
	if strings.Contains(string(res.Stderr), "/unitask") {
		t.Errorf("stderr has frames of ours: %s", res.Stderr)
	}
	has("cell 1", outputs[0], `"name": "stdout", "text": "out 4\n"`, `"name": "stderr"`,
		`"execution_count": 1, "data": { "text/plain": "5" }`)
	has("cell 2", outputs[1], `from a shell\n`, `['/work/book.ipynb', 'arg']`)
	has("cell 3", outputs[2], `"ename": "ZeroDivisionError"`)
	has("cell 4", outputs[3], `"text/html": "<b>"`)
	has("cell 6", outputs[5], `"output_type": "error", "ename": "KeyError", "evalue": "'gone'"`)
	if outputs[4] != "[]" || outputs[6] != "[]" {
		t.Errorf("cells without outputs: %s, %s", outputs[4], outputs[6])
	}
	res, outputs = run("", "import pandas, matplotlib.pyplot as plt", "pandas.DataFrame({'a': [1]})",
		"plt.plot([1, 2]);\nplt.show()", "plt.figure()\nplt.plot([1]);")
	if res.ExitCode != 0 || len(res.Artifacts) != 1 {
		t.Errorf("with the image data: exit code %d, %+v, %s", res.ExitCode, res.Artifacts, res.Stderr)
	}
	has("a table", outputs[1], "text/html", "<table")
	has("a shown figure", outputs[2], `"image/png": "iVBOR`)
	has("a figure left open", outputs[3], `"image/png": "iVBOR`)
	check := unitask.Request{Path: "/work/book.ipynb", Code: "{}", Check: true}
	if res, err := rt.Run(t.Context(), check, unitask.IO{}); err != nil || res.ExitCode != 1 ||
		!strings.Contains(string(res.Stderr), "no notebook of format 4") {
		t.Errorf("check: %+v %v", res, err)
	}
}

// The statements of an SQL file run in the database from a folder, and their results are printed as tables.
func TestQuery(t *testing.T) {
	needVM(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	dir := t.TempDir()
	script := "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); " +
		"db.executescript(\"create table t (name text, n); insert into t values ('日本', 22), ('a;b', null)\")"
	if out, err := exec.Command("python3", "-c", script, filepath.Join(dir, "shop.db")).CombinedOutput(); err != nil {
		t.Skipf("python3 of the host makes no database: %v %s", err, out)
	}
	for _, c := range []struct {
		code, stdout, stderr string
		check                bool
	}{
		{"select * from t; -- all; of it\nselect count(*) as c from t where n > 1",
			"name     n\n----  ----\n日本    22\na;b   NULL\n(2 rows)\n\nc\n-\n1\n(1 row)\n", "", false},
		{".tables\nselect x'00ff' as b, 1.5 as r where 0;", "t\nb  r\n-  -\n(0 rows)\n", "", false},
		{".open :memory:\nselect * from t", "", "query.sql:2: no such table: t (no database is here: --dir brings one)",
			false},
		{"select 1;\n\nselect nope", "1\n-\n1\n(1 row)\n", "query.sql:3: no such column: nope", false},
		{"delete from t", "", "query.sql:1: attempt to write a readonly database", false},
		{
			code: ".open /tmp/x.db\ncreate table u (a); insert into u values (1); " +
				"create trigger r after insert on u begin select 1; select 2; end;\nselect a from u",
			stdout: "a\n-\n1\n(1 row)\n",
		},
		{"select 'a", "", "is not whole", true},
		{"select 1", "", "", true},
	} {
		req := unitask.Request{Path: filepath.Join(dir, "query.sql"), Code: c.code, Check: c.check,
			Dirs: []unitask.Mount{{Host: dir}}}
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		mustDo(t, err)
		if string(res.Stdout) != c.stdout || !strings.Contains(string(res.Stderr), c.stderr) ||
			(res.ExitCode != 0) != (c.stderr != "") {
			t.Errorf("%s: %d, stdout %q, want %q, stderr %q", c.code, res.ExitCode, res.Stdout, c.stdout, res.Stderr)
		}
	}
}
