package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Steps that their drivers must survive, each followed by one that works.
func TestHostileSteps(t *testing.T) {
	t.Parallel()
	c := open(t)
	const suffix = "…"
	for _, row := range []struct {
		language, name, code string
		exit                 int
		value                string // its end
	}{
		{"python", "a value of 3 bytes a letter", "'漢' * 100000", 0, suffix},
		{"python", "a value of NULs", "class R:\n    def __repr__(self): return '\\0' * 100000\nR()", 0, suffix},
		{"python", "a value of lone surrogates", "class R:\n    def __repr__(self): return '\\udc80' * 60000\nR()", 0,
			suffix},
		{"python", "a repr that exits", "class R:\n    def __repr__(self): raise SystemExit(3)\nR()", 3, ""},
		{"python", "a child that comes back",
			"import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\n'parent' if child else 'child'", 0, "parent"},
		{"python", "a hook for exceptions that fails",
			"import sys\ndef hook(*_): raise ValueError\nsys.excepthook = hook\n1/0", 1, ""},
		{"python", "an exit code that can't be printed",
			"import sys\nclass S:\n    def __str__(self): raise ValueError\nsys.exit(S())", 1, ""},
		{"python", "no standard error", "import sys\nsys.excepthook = sys.__excepthook__\nsys.stderr = 7\n1/0", 1, ""},
		{"python", "Ctrl-C when the step has ended",
			"import os, sys\nclass Out:\n    def write(self, text): pass\n    def flush(self): os.kill(os.getpid(), 2)\n" +
				"sys.stdout = Out()\n5", 0, "5"},
		{"python", "Ctrl-C by itself", "import os\nos.kill(os.getpid(), 2)\nwhile True: pass", 130, ""},
		{"js", "a negative exit code", "process.exitCode = -1; 5", 255, "5"},
		{"js", "a value of 3 bytes a letter", "'漢'.repeat(100000)", 0, suffix},
		{"js", "a value of NULs", "({ [Symbol.for('nodejs.util.inspect.custom')]: () => '\\0'.repeat(100000) })", 0, suffix},
		{"js", "an exception that can't be shown", "throw { [Symbol.for('nodejs.util.inspect.custom')]() { throw 1 } }", 1,
			""},
		{"js", "an exception behind much output", "process.stderr.write('x'.repeat(1 << 20)); throw 'y'.repeat(1 << 20)", 1,
			""},
		{"js", "no standard error", "require('fs').closeSync(2); throw 1", 1, ""},
		{"js", "a proxy", "new Proxy({}, { get() { throw 1 }, ownKeys() { throw 2 } })", 0, "{}"},
		{"js", "a _ of its own", "var _ = 1; 5", 0, "5"},
		{"js", "a function of that name", "function _() {}; 5", 0, "5"},
		{"js", "no more globals", "Object.preventExtensions(globalThis); 5", 0, "5"},
		{"shell", "break", "break; continue; echo x", 0, ""},
		{"shell", "return", "return 9", 9, ""},
		{"shell", "its words apart otherwise", "IFS=x; set -- a; set -f; true", 0, ""},
		{
			language: "shell",
			name:     "functions that are called as what the driver needs",
			code: "printf() { :; }; read() { false; }; set() { :; }; trap() { :; }; kill() { :; }; return() { :; }; " +
				"exit() { :; }; eval() { :; }; .() { :; }; unset() { :; }; true",
		},
		{"shell", "traps", "trap 'echo e' ERR; trap 'echo d' DEBUG; false", 1, ""},
	} {
		if _, err := exec.LookPath("node"); err != nil && row.language == "js" {
			continue // TestInterpreters reports it
		}
		t.Run(row.language+"/"+row.name, func(t *testing.T) {
			t.Parallel()
			in := interpret(t, c, row.language)
			step, err := in.Run(within(t), row.code, patience, io.Discard, io.Discard)
			if err != nil || step.Gone || step.Code != row.exit ||
				!strings.HasSuffix(strings.Trim(step.Value, "'"), row.value) || len(step.Value) > MaxValue ||
				(row.value == suffix && len(step.Value) < 50_000) {
				t.Errorf("%.80q: code %d, gone %v, %d bytes of value, %v", row.code, step.Code, step.Gone, len(step.Value), err)
			}
			again := map[string]string{"python": "6 * 7", "js": "6 * 7", "shell": "echo 42"}[row.language]
			var out bytes.Buffer
			step, err = in.Run(within(t), again, patience, &out, io.Discard)
			if err != nil || step.Gone || step.Code != 0 || !strings.Contains(step.Value+out.String(), "42") {
				t.Errorf("after %.80q: %+v %v", row.code, step, err)
			}
			_ = in.cmd.Signal(t.Context(), syscall.SIGKILL)
		})
	}
}

// Ctrl-C ends the rest of a step, wherever it is, and nothing else: variables stay.
func TestInterruptDropsStep(t *testing.T) {
	t.Parallel()
	c := open(t)
	for _, row := range []struct{ language, name, code string }{
		{"shell", "a function", "build() { echo up; sleep 60; }; build; echo after"},
		{"shell", "functions in functions",
			"f() { g; echo after; }; g() { echo up; sleep 60; echo after; }; f || echo after; if f; then echo after; fi"},
		{"shell", "a function that only computes", "f() { while :; do :; done; }; echo up; f\necho after"},
		{"shell", "a loop", "f() { echo up; sleep 60; }; for i in 1 2 3; do f; echo after; done; echo after"},
		{"shell", "a file", "echo 'echo up; sleep 60; echo after' > file.sh; source ./file.sh; echo after"},
		{"shell", "eval", "eval 'echo up; sleep 60; echo after'; echo after"},
		{"shell", "a pipeline", "echo up; sleep 60 | cat; echo after"},
		{"shell", "a substitution", "echo up; x=$(sleep 60; echo in); echo after"},
		{"shell", "a builtin", "f() { read x < <(sleep 60); echo after; }; echo up; f; echo after"},
		{"shell", "a trap", "trap 'echo up; sleep 60; echo after' USR1; kill -USR1 $$; echo after"},
		{"shell", "redirections", "{ echo up >&2; sleep 60; echo after >&2; } 2>&1 >/dev/null </dev/null; echo after"},
		{"shell", "a command that catches it", "bash -c 'trap \"exit 0\" INT; echo up; sleep 60 & wait'; echo after"},
		{"shell", "a trap for every command", "f() { echo up; sleep 60; }; trap : DEBUG; f; echo after"},
		{"python", "a coroutine",
			"import asyncio\nasync def tick():\n    print('up', flush=True)\n    while True:\n" +
				"        await asyncio.sleep(0.01)\n" +
				"        print('.', flush=True)\nawait tick()"},
		{"python", "tasks that wait for others",
			"import asyncio\nasync def tick():\n    print('up', flush=True)\n    while True:\n" +
				"        await asyncio.sleep(0.01)\n" +
				"        print('.', flush=True)\nawait asyncio.gather(tick(), asyncio.wait_for(tick(), 60))"},
	} {
		t.Run(row.language+"/"+row.name, func(t *testing.T) {
			t.Parallel()
			in := interpret(t, c, row.language)
			run := map[string][2]string{"shell": {"kept=41; declare -A more=([k]=1)", "echo $? $((kept + more[k])) $-"},
				"python": {"kept = 41", "await __import__('asyncio').sleep(0.2)\nprint(130, kept + 1, 'hBs')"}}[row.language]
			if step, err := in.Run(within(t), run[0], patience, io.Discard, io.Discard); err != nil || step.Code != 0 {
				t.Fatalf("%+v %v", step, err)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			out := newLines()
			go func() {
				out.await(t, "up")
				cancel(errors.New("late"))
			}()
			step, err := in.Run(ctx, row.code, patience, out, out)
			if err == nil || step.Code != 130 || step.Gone || strings.Contains(out.text.String(), "after") {
				t.Errorf("%+v %v, printed %q", step, err, out.text.String())
			}
			var all bytes.Buffer
			if step, err = in.Run(within(t), run[1], patience, &all, &all); err != nil || step.Code != 0 ||
				all.String() != "130 42 hBs\n" {
				t.Errorf("after it: %+v %v, printed %q", step, err, all.String())
			}
			_ = in.cmd.Signal(t.Context(), syscall.SIGKILL)
		})
	}
}

// No variable of the session breaks the shell's steps, and steps may set every variable.
func TestShellVariables(t *testing.T) {
	t.Parallel()
	c := open(t)
	for _, variable := range []string{"POSIXLY_CORRECT=1", "POSIXLY_CORRECT=", "BASH_COMPAT=5.0", "BASH_COMPAT=4.2",
		"BASHOPTS=compat44", "BASH_FUNC_printf%%=() { :; }", "BASH_FUNC_read%%=() { false; }", "BASH_FUNC_shopt%%=() { :; }",
		"SHELLOPTS=posix", "SHELLOPTS=noexec", "SHELLOPTS=privileged", "SHELLOPTS=errexit", "SHELLOPTS=onecmd",
		"BASH_ENV=/no/such"} {
		t.Run(variable, func(t *testing.T) {
			t.Parallel()
			in := interpret(t, c, "shell", variable)
			for _, row := range []struct {
				code, out string
				exit      int
			}{
				{"echo x", "x\n", 0},
				{"false", "", 1},
				{"export POSIXLY_CORRECT=1 BASH_COMPAT=5.0; echo y", "y\n", 0},
				{"echo $(echo z) $POSIXLY_CORRECT $BASH_COMPAT", "z 1 5.0\n", 0},
			} {
				var out bytes.Buffer
				step, err := in.Run(within(t), row.code, patience, &out, &out)
				if err != nil || step.Gone || step.Code != row.exit || out.String() != row.out {
					t.Errorf("%s: %+v %v, printed %q", row.code, step, err, out.String())
				}
			}
			_ = in.cmd.Signal(t.Context(), syscall.SIGKILL)
		})
	}
}

// A shell without its driver runs no step, and does not exit as if it had.
func TestShellUndriven(t *testing.T) {
	t.Parallel()
	l := Languages[slices.IndexFunc(Languages, func(l Language) bool { return l.Name == "shell" })]
	l.Env = []string{"BASH_ENV=/no/such"}
	in, err := open(t).Interpret(t.Context(), l, environment, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	step, err := in.Run(within(t), "echo x", patience, &out, &errs)
	if err != nil || !step.Gone || step.Code != 125 || out.Len() > 0 ||
		!strings.Contains(errs.String(), "the step did not run") {
		t.Errorf("%+v %v, stdout %q, stderr %q", step, err, out.String(), errs.String())
	}
}
