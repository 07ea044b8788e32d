package python

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// runOn runs one of the programs with the host's Python on a file. It returns how the program ended: its exit code, and
// the error.
func runOn(t *testing.T, program, name, text string) (end, out string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	dir, out := t.TempDir(), t.TempDir()
	runner, file := filepath.Join(dir, "ours.py"), filepath.Join(dir, name)
	program = strings.Replace(program, "OUT = '/out'", "OUT = "+strconv.Quote(out), 1)
	for name, text := range map[string]string{runner: program, file: text} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "prlimit", "--as=4000000000", python, runner, file)
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "it takes more than 30 seconds", out
	case cmd.ProcessState == nil:
		t.Skip(err)
	case strings.Contains(string(said), runner+`", line`):
		return "it fails in our program", out
	}
	return strconv.Itoa(cmd.ProcessState.ExitCode()), out
}

// notebook returns a notebook with a cell of code.
func notebook(code string) string {
	text, _ := json.Marshal(map[string]any{"cells": []any{map[string]any{"cell_type": "code", "source": code}}})
	return string(text)
}

// shows returns a notebook with a cell whose value has such a form.
func shows(method, body string) string {
	return notebook("class A:\n  def " + method + "(self):\n    " + body + "\nA()")
}

// An invalid notebook is refused in our words. Otherwise, the notebook comes back whatever a cell does.
func TestAttackNotebook(t *testing.T) {
	t.Parallel()
	const back, failed = "0, and there is one", "1, and there is one"
	for name, c := range map[string]struct{ text, want string }{
		"a list":                    {"[]", "1"},
		"cells that are a number":   {`{"cells":5}`, "1"},
		"a million brackets":        {strings.Repeat("[", 1<<20), "1"},
		"bytes that are no UTF-8":   {"\xff", "1"},
		"metadata that are null":    {`{"cells":[{"cell_type":"code","metadata":null}],"metadata":null}`, back},
		"a kernel that is a list":   {`{"cells":[],"metadata":{"kernelspec":[5]}}`, "1"},
		"a source that is a number": {`{"cells":[{"cell_type":"code","source":5}]}`, "1"},
		"tags that are a number":    {`{"cells":[{"cell_type":"code","source":"1","metadata":{"tags":5}}]}`, "1"},
		"half of a letter":          {`{"cells":[{"cell_type":"markdown","source":"\ud800"}]}`, back},
		"code with half of one":     {`{"cells":[{"cell_type":"code","source":"'\ud800'"}]}`, failed},
		"a print of half of one":    {notebook("print(chr(0xd800))"), failed},
		"JSON that is a set":        {shows("_repr_json_", "return {1}"), back},
		"HTML that is an object":    {shows("_repr_html_", "return A"), back},
		"JSON that holds itself":    {shows("_repr_json_", "a = []; a.append(a); return a"), back},
		"JSON that is deep":         {shows("_repr_json_", "a=[]\n    for i in range(10**5): a=[a]\n    return a"), back},
		"an error without a text":   {notebook("class E(Exception):\n  def __str__(self): 1 / 0\nraise E"), failed},
		"no standard output":        {notebook("import sys\nsys.__stdout__.close()"), back},
		"a command's bytes":         {notebook("!printf '\\377'"), back},
		"a million prints":          {notebook("for i in range(10**6): print(i, end='')"), back},
		"much output":               {notebook("for i in range(100): print('x' * 10**6)"), back},
	} {
		got, out := runOn(t, Notebook, "book.ipynb", c.text)
		if text, err := os.ReadFile(filepath.Join(out, "book.ipynb")); err == nil {
			got += ", and there is one"
			if len(text) > 40<<20 || !json.Valid(text) {
				got += " that is too large, or no JSON"
			}
		}
		attack.Check(t, "a notebook with "+name, c.want, got)
		if got, _ := runOn(t, CheckNotebook, "book.ipynb", c.text); len(got) > 1 {
			t.Errorf("check of one with %s: %s", name, got)
		}
	}
}

// A file in SQL ends with an error in our words, soon.
func TestAttackQuery(t *testing.T) {
	t.Parallel()
	const rows = "create table t (a);\ninsert into t values\n"
	for name, c := range map[string]struct{ text, want string }{
		"a file that reads itself":   {".read query.sql\n", "1"},
		"bytes that are no UTF-8":    {"select 1;\xff", "1"},
		"NUL":                        {"select 1\x00;", "1"},
		"a million semicolons":       {"select '" + strings.Repeat(";", 1<<20) + "';", "0"},
		"200 000 lines of values":    {rows + strings.Repeat("('some text'),\n", 200_000) + "(1);", "0"},
		"a text of a million lines":  {"select length('" + strings.Repeat("\n", 1<<20) + "');", "0"},
		"100 000 comments":           {strings.Repeat("-- a; b\n", 100_000) + "select 1;", "0"},
		"brackets":                   {"select " + strings.Repeat("(", 1<<20), "1"},
		"a folder to open":           {".open /\nselect 1;", "1"},
		"a command behind a comment": {"-- a\n.print b\n/* c */\n.tables\n", "0"},
	} {
		got, _ := runOn(t, Query, "query.sql", c.text)
		attack.Check(t, "SQL with "+name, c.want, got)
		if got, _ := runOn(t, CheckQuery, "query.sql", c.text); len(got) > 1 {
			t.Errorf("check of one with %s: %s", name, got)
		}
	}
}
