package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/testwait"
)

// The output of an interpreter between two steps belongs to the next one, even if the interpreter is replaced in
// between.
func TestRenewKeepsOutput(t *testing.T) {
	t.Parallel()
	in := interpret(t, open(t), "python")
	if step, err := in.Run(within(t), "import threading\nthreading.Timer(0.1, lambda: print('late', flush=True)).start()",
		patience, io.Discard, io.Discard); err != nil || step.Code != 0 {
		t.Fatalf("%+v %v", step, err)
	}
	awaitKept(t, in, 1)
	if err := in.Renew(within(t)); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if step, err := in.Run(within(t), "print('now')", patience, &out, io.Discard); err != nil || step.Code != 0 ||
		out.String() != "late\nnow\n" {
		t.Errorf("%+v %v, stdout %q", step, err, out.String())
	}
}

// If more output comes between two steps than is kept, the next step reports how much. That also holds if another
// process continues the session.
func TestTooMuchBetweenSteps(t *testing.T) {
	t.Parallel()
	c := open(t)
	in := interpret(t, c, "python")
	if step, err := in.Run(within(t),
		"import threading, os\nthreading.Timer(0.1, lambda: os.write(1, b'x' * 300000)).start()", patience, io.Discard,
		io.Discard); err != nil || step.Code != 0 {
		t.Fatalf("%+v %v", step, err)
	}
	awaitKept(t, in, 300000)
	_, list := Restore(c.State([]*Interpreter{in}))
	var restored, out bytes.Buffer
	list[0].out[0].swap(&restored)
	want := strings.Repeat("x", maxKept) + fmt.Sprintf("\n[%d more bytes were printed between the steps", 300000-maxKept)
	for _, code := range []string{"print('now')", "print('then')"} {
		out.Reset()
		step, err := in.Run(within(t), code, patience, &out, io.Discard)
		if err != nil || step.Code != 0 {
			t.Fatalf("%+v %v", step, err)
		}
		if code == "print('now')" && (!strings.HasPrefix(out.String(), want) ||
			!strings.HasSuffix(out.String(), "]\nnow\n") || !strings.HasPrefix(restored.String(), want)) {
			t.Errorf("%d bytes, restored %d: %.100q", out.Len(), restored.Len(), out.Bytes()[max(0, out.Len()-200):])
		}
	}
	if out.String() != "then\n" {
		t.Errorf("said again: %.100q", out.String())
	}
}

// awaitKept waits until an interpreter has printed this much after its step.
func awaitKept(t *testing.T, in *Interpreter, size int64) {
	t.Helper()
	testwait.Within(t, patience, fmt.Sprintf("it has printed %d bytes", size), func() bool {
		kept, lost := in.out[0].waiting()
		return int64(len(kept))+lost >= size
	})
}

type stepRow struct {
	code, value, out string
	errs             string // text in standard error
	exit             int
}

// interpret starts an interpreter in its own folder, with extra variables.
func interpret(t *testing.T, c *Client, name string, more ...string) *Interpreter {
	t.Helper()
	l := Languages[slices.IndexFunc(Languages, func(l Language) bool { return l.Name == name })]
	dir := t.TempDir()
	l.Path = filepath.Join(dir, filepath.Base(l.Path))
	if err := os.WriteFile(l.Path, []byte(l.Driver), 0o644); err != nil {
		t.Fatal(err)
	}
	if name == "shell" {
		l.Env = []string{"BASH_ENV=" + l.Path}
	} else {
		l.Args = append(l.Args[:len(l.Args)-1:len(l.Args)-1], l.Path)
	}
	in, err := c.Interpret(t.Context(), l, slices.Concat(environment, more), dir)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func steps(t *testing.T, c *Client, l Language, rows []stepRow) {
	t.Helper()
	in := interpret(t, c, l.Name)
	for _, row := range rows {
		var out, errs bytes.Buffer
		step, err := in.Run(within(t), row.code, patience, &out, &errs)
		if err != nil || step.Code != row.exit || step.Value != row.value || out.String() != row.out ||
			!strings.Contains(errs.String(), row.errs) || (row.errs == "" && errs.Len() > 0) || step.Gone {
			t.Errorf("%s:\n%+v %v\nstdout %q\nstderr %q\nwanted %+v", row.code, step, err, out.String(), errs.String(), row)
		}
	}
	// An interpreter that does not end by itself.
	for _, forever := range map[string][]string{
		"python": {"print('up', flush=True)\nwhile True: pass",
			"import time; print('up', flush=True)\nwhile True: time.sleep(0.01)"},
		"shell": {"echo up; while :; do :; done"},
		"js":    {"console.log('up'); await new Promise(() => setInterval(() => {}, 1e6))"},
	}[l.Name] {
		ctx, cancel := context.WithCancelCause(t.Context())
		out := newLines()
		go func() {
			out.await(t, "up")
			cancel(errors.New("late"))
		}()
		step, err := in.Run(ctx, forever, patience, out, io.Discard)
		if err == nil || err.Error() != "late" || step.Gone || step.Code != 130 {
			t.Errorf("%s: %+v %v", forever, step, err)
		}
	}
	step, err := in.Run(within(t), rows[0].code, patience, io.Discard, io.Discard)
	if err != nil || step.Gone {
		t.Errorf("after that: %+v %v", step, err)
	}
	code := map[string]string{"python": "import os; os._exit(9)", "shell": "exit 9", "js": "process.exit(9)"}[l.Name]
	if step, err := in.Run(within(t), code, patience, io.Discard, io.Discard); err != nil || !step.Gone ||
		step.Code != 9 || !in.Ended() {
		t.Errorf("exit: %+v %v", step, err)
	}
}

// pythonSteps are steps of one session, in turn: the code, its value, stdout, a part of stderr, and the exit code.
var pythonSteps = []stepRow{
	{"x = 41", "", "", "", 0},
	{"x + 1", "42", "", "", 0},
	{"print('a'); y = [x]\ny", "[41]", "a\n", "", 0},
	{"import math, os\nos.chdir('/usr')", "", "", "", 0},
	{"os.getcwd(), math.pi > 3", "('/usr', True)", "", "", 0},
	{"def f():\n    raise ValueError('no')\nf()", "", "",
		"Traceback (most recent call last):\n  File \"<step 6>\", line 3, in <module>\n    f()\n" +
			"  File \"<step 6>\", line 2, in f\n    raise ValueError('no')\nValueError: no\n", 1},
	{"1 +", "", "", "SyntaxError", 1},
	{"import asyncio\nawait asyncio.sleep(0.01)\nx", "41", "", "", 0},
	{"import sys; sys.exit(4)", "", "", "", 4},
	{"class A: pass\nimport pickle\npickle.loads(pickle.dumps(A())).__class__ is A", "True", "", "", 0},
	{"None", "", "", "", 0},
	{"'ü\\0'", "'ü\\x00'", "", "", 0},
	{"input()", "", "", "EOFError", 1},
	{"exit()", "", "", "", 0},
	{"input()", "", "", "EOFError", 1},
	{"def f(x: Undefined): pass", "", "", "NameError", 1},
	{"from __future__ import annotations\ndef f(x: Undefined): pass\n(lambda: [f.__annotations__ for f in [f]])()",
		"[{'x': 'Undefined'}]", "", "", 0},
	{"def g(x: Undefined): pass\ng.__annotations__", "{'x': 'Undefined'}", "", "", 0},
	{"x = 42\nfrom __future__ import annotations", "", "", "must occur at the beginning", 1},
}

// shellSteps are steps of one session, in turn: the code, its value, stdout, a part of stderr, and the exit code.
var shellSteps = []stepRow{
	{"x=41", "", "", "", 0},
	{"echo $((x + 1)); cd /usr", "", "42\n", "", 0},
	{"pwd; false", "", "/usr\n", "", 1},
	{"f() { echo in f; return 7; }", "", "", "", 0},
	{"f", "", "in f\n", "", 7},
	{"no-such-command", "", "", "not found", 127},
	{"if then", "", "", "syntax error", 2},
	{"cat", "", "", "", 0},
	{"set -- a 'b c'; echo \"$#\"; declare -A m=([k]=v); declare n=5; typeset -i i=6; alias hi='echo hello'; false", "",
		"2\n", "", 1},
	{"echo \"$? $2 ${m[k]} $n $i $LINENO $0\"; hi", "", "1 b c v 5 6 1 bash\nhello\n", "", 0},
	{"local z=1", "", "", "line 1: local: can only be used in a function", 1},
	{"exec 9<<<kept", "", "", "", 0},
	{"cat <&9", "", "kept\n", "", 0},
	{"exec no-such-program; echo $?\necho $BASH_ENV", "", "127\n\n", "not found", 0},
	{"cat <<-end\n\t$((1 + 1))\nend\ncat <<'end'\n$x\nend", "", "2\n$x\n", "", 0},
	{"echo 'a'\r\necho \"$(echo \"b $(echo \"c\")\")\"", "", "a\r\nb c\n", "", 0},
	{"echo a\nif x; then\n", "", "a\n", "line 3: syntax error", 2},
	{"for i in 1 2; do\n  echo \"line $i\"\ndone", "", "line 1\nline 2\n", "", 0},
}

// jsSteps are steps of one session, in turn: the code, its value, stdout, a part of stderr, and the exit code.
var jsSteps = []stepRow{
	{"const a = 41", "", "", "", 0},
	{"const a = 1; let b = 41", "", "", "", 0},
	{"a + b", "42", "", "", 0},
	{"console.log('x'); ({ a, b })", "{ a: 1, b: 41 }", "x\n", "", 0},
	{"await new Promise((r) => setTimeout(r, 5)); b", "41", "", "", 0},
	{"async function main() { console.log('in'); return 7 }\nmain()", "7", "in\n", "", 0},
	{"import fs, { readFileSync as r } from 'node:fs'\nimport * as path from 'path'\n" +
		"typeof r + typeof fs.readFileSync + path.join('a', 'b')", "'functionfunctiona/b'", "", "", 0},
	{"(await import('node:os')).EOL", `'\n'`, "", "", 0},
	{"require('path').sep", "'/'", "", "", 0},
	{"import.meta.dirname === process.cwd()", "true", "", "", 0},
	{"function f() {\n  null.x\n}\nf()", "", "", "at f (step-11:2:8)", 1},
	{"throw 5", "", "", "Uncaught 5\n", 1},
	{"import none from 'no-such-module'", "", "", " {\n  code: 'MODULE_NOT_FOUND',\n  requireStack: [", 1},
	{"throw Object.assign(new Error('outer', { cause: new Error('inner') }), { code: 5 })", "", "",
		" {\n  code: 5,\n  [cause]: Error: inner\n      at step-", 1},
	{"let 1", "", "", "SyntaxError: Unexpected", 1},
	// must not run again
	{"globalThis.ran = (globalThis.ran ?? 0) + 1; await null; JSON.parse('{')", "", "",
		"SyntaxError: Expected property name", 1},
	{"throw new SyntaxError('of ' + ++ran)", "", "", "SyntaxError: of 2", 1},
	{"#!/bin/node\nran++; eval('1 +')", "", "", "SyntaxError: Unexpected end", 1},
	{"ran", "3", "", "", 0},
	{"Promise.reject(new Error('z'))", "", "", "Error: z", 1},
	{"'import(\"x\")' // import(y)", `'import("x")'`, "", "", 0},
	{"class A {}; new A()", "A {}", "", "", 0},
	{"10n ** 20n", "100000000000000000000n", "", "", 0},
	{"export const e = 5; e", "5", "", "", 0},
	{"undefined", "", "", "", 0},
	{"NaN", "NaN", "", "", 0},
	{"process.argv.length + process.execArgv.length", "1", "", "", 0},
	{"Symbol('q')", "Symbol(q)", "", "", 0},
	{"'last'", "'last'", "", "", 0},
	{"_ + 1", "'last1'", "", "", 0},
	{"delete globalThis._", "true", "", "", 0},
	{"_", "true", "", "", 0},
	{"_", "true", "", "", 0},
	{"var _ = true; undefined", "", "", "", 0}, // its former value
	{"2", "2", "", "", 0},
	{"_", "true", "", "", 0},
	{"function _() { return 'mine' }", "", "", "", 0},
	{"3", "3", "", "", 0},
	{"_()", "'mine'", "", "", 0},
	{"process.exitCode = 3; 1", "1", "", "", 3},
	{"1", "1", "", "", 0},
}

func TestInterpreters(t *testing.T) {
	t.Parallel()
	c := open(t)
	byName := map[string]Language{}
	for _, l := range Languages {
		byName[l.Name] = l
	}
	t.Run("python", func(t *testing.T) {
		steps(t, c, byName["python"], pythonSteps)

	})
	t.Run("shell", func(t *testing.T) {
		steps(t, c, byName["shell"], shellSteps)

	})
	t.Run("js", func(t *testing.T) {
		if _, err := exec.LookPath("node"); err != nil {
			t.Skip("needs node on this host")
		}
		steps(t, c, byName["js"], jsSteps)

	})
}
