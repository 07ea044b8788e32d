package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testjupyter"
	"github.com/unitask/unitask/internal/testwait"
)

// kernelIn starts a kernel in a folder, and connects to it.
func kernelIn(t *testing.T, dir string, args ...string) (*testjupyter.Client, *exec.Cmd, *bytes.Buffer) {
	t.Helper()
	name, content := testjupyter.File(t)
	cmd := unitaskIn(t, agentHome(t), append(append([]string{"kernel", "run"}, args...), name)...)
	var errs bytes.Buffer
	cmd.Dir, cmd.Stderr = dir, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(&errs)
		}
	})
	return testjupyter.Connect(t, content), cmd, &errs
}

// shownBy returns what messages show, in short.
func shownBy(list []testjupyter.Message) string {
	var parts []string
	for _, m := range list {
		switch m.Type {
		case "stream":
			parts = append(parts, fmt.Sprint(m.Content["name"], ":", m.Content["text"]))
		case "error":
			parts = append(parts, fmt.Sprint(m.Content["ename"], ":", m.Content["evalue"]))
		case "clear_output":
			parts = append(parts, "clear")
		default:
			parts = append(parts, fmt.Sprint(m.Type, ":", m.Content["data"]))
		}
	}
	return strings.Join(parts, "|")
}

// A kernel runs cells in a machine: output, results, errors, questions, interrupts. Its machine ends with it.
func TestKernel(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, cmd, errs := kernelIn(t, dir, "--project="+dir)
	for _, row := range [][2]string{
		{"x = 40\nprint('out')", "stdout:out\n"}, {"x + 2", "execute_result:map[text/plain:42]"},
		{"print(open('note.txt').read(), end=''); open('note.txt', 'a').write('two\\n'); None", "stdout:one\n"},
		{"import sys; print('err', file=sys.stderr)", "stderr:err\n"},
		{"!echo from a shell", "stdout:from a shell\n"},
		{"def f():\n    return 1 / 0\nf()", "ZeroDivisionError:division by zero"},
		{"from IPython.display import HTML\nHTML('<b>bold</b>')", "text/html:<b>bold</b>"},
		{"import asyncio\nawait asyncio.sleep(0, 'done')", "execute_result:map[text/plain:'done']"},
		{"import os\nos.write(1, b'raw \\xff\\n'); None", "stdout:raw \ufffd\n"},
		{"for i in range(20000): print(i)", "\n19999\n"},
	} {
		if _, list := c.Run(row[0], nil); !strings.Contains(shownBy(list), row[1]) {
			t.Errorf("%s: %.300q, want %q", row[0], shownBy(list), row[1])
		}
	}
	kernelAsks(t, c, cmd.Process)
	reply, _ := c.Run("import os\nos._exit(3)", nil)
	if !strings.Contains(fmt.Sprint(reply["evalue"]), "the kernel ended while it ran the code") {
		t.Errorf("%v", reply)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "the kernel ended") ||
		!strings.Contains(errs.String(), "are a proposal: unitask apply change-") {
		t.Errorf("%v %s", err, errs)
	}
	if left := machinesOf(t, cmd.Process.Pid); len(left) > 0 {
		t.Errorf("machines are left: %v", left)
	}
}

// kernelAsks checks what goes the other way: interrupts, answers to input(), completion, cells that wait.
func kernelAsks(t *testing.T, c *testjupyter.Client, kernel *os.Process) {
	t.Helper()
	endless := "try:\n    print('on', flush=True)\n    while True: pass\nfinally: print('end')"
	reply, list := c.Run(endless, func(m testjupyter.Message) {
		if m.Content["text"] == "on\n" {
			c.Send("control", "interrupt_request", map[string]any{})
		}
	})
	if m := c.Receive("control"); m.Type != "interrupt_reply" {
		t.Errorf("%v", m)
	}
	if reply["status"] != "error" || !strings.Contains(shownBy(list), "stdout:end\n") ||
		!strings.Contains(shownBy(list), "KeyboardInterrupt:") {
		t.Errorf("an interrupt: %v %q", reply, shownBy(list))
	}
	reply, _ = c.Run("print('on', flush=True)\nimport time; time.sleep(100)", func(m testjupyter.Message) {
		if m.Content["text"] == "on\n" {
			_ = kernel.Signal(os.Interrupt) // as jupyter console does
		}
	})
	if reply["ename"] != "KeyboardInterrupt" {
		t.Errorf("SIGINT: %v", reply)
	}
	id := c.Send("shell", "execute_request", map[string]any{"code": "print(input('name? '))", "allow_stdin": true,
		"user_expressions": map[string]string{"x": "x", "no": "nope"}})
	if m := c.Receive("stdin"); m.Type != "input_request" || m.Parent != id || m.Content["prompt"] != "name? " {
		t.Errorf("%v", m)
	}
	c.Send("stdin", "input_reply", map[string]any{"value": "Ada"})
	if got := shownBy(c.Outputs(id, nil)); got != "stdout:Ada\n" {
		t.Errorf("input(): %q", got)
	}
	reply = c.Receive("shell").Content
	if got := fmt.Sprint(reply["user_expressions"]); !strings.Contains(got, "text/plain:40") ||
		!strings.Contains(got, "NameError") {
		t.Error(got)
	}
	if got := c.Ask("complete_request", map[string]any{"code": "os.getui", "cursor_pos": 8}); fmt.Sprint(got["matches"]) !=
		"[os.getuid]" || got["cursor_start"] != 0.0 {
		t.Errorf("completion: %v", got)
	}
	if got := c.Ask("inspect_request", map[string]any{"code": "f(", "cursor_pos": 2}); !strings.Contains(
		fmt.Sprint(got["data"]), "f()") {
		t.Errorf("inspection: %v", got)
	}
	first := c.Send("shell", "execute_request", map[string]any{"code": "import time; time.sleep(0.5); nope"})
	second := c.Send("shell", "execute_request", map[string]any{"code": "print('never')"})
	if got := shownBy(c.Outputs(first, nil)) + shownBy(c.Outputs(second, nil)); !strings.HasPrefix(got, "NameError:") ||
		strings.Contains(got, "never") {
		t.Error(got)
	}
	for _, want := range []string{"error", "aborted"} {
		if got := c.Receive("shell").Content["status"]; got != want {
			t.Errorf("%v instead of %s", got, want)
		}
	}
}

// A kernel ends with its parent, and does not start with a wrong file.
func TestKernelEnds(t *testing.T) {
	if _, out := kernelFails(t, "no-such-file"); !strings.Contains(out, "connection file no-such-file") {
		t.Error(out)
	}
	name, content := testjupyter.File(t)
	kernel := unitaskIn(t, t.TempDir(), "kernel", "run", "--image", "nosuch", name)
	cmd := exec.Command("sh", append([]string{"-c", `"$@" & wait`, "sh"}, kernel.Args...)...)
	cmd.Env = kernel.Env
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := testjupyter.Connect(t, content)
	if reply, _ := c.Run("1", nil); !strings.Contains(fmt.Sprint(reply["evalue"]), "did not start") {
		t.Errorf("%v", reply)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !c.Closed("hb") {
		t.Error("it outlives its parent")
	}
}

// kernelFails runs a kernel that can't start.
func kernelFails(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	cmd := unitaskIn(t, t.TempDir(), append([]string{"kernel", "run"}, args...)...)
	text, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(text)
}

// The published clients of Jupyter drive the kernel.
func TestKernelClients(t *testing.T) {
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("Jupyter from PyPI is make long's (UNITASK_TEST_LONG=1)")
	}
	home, dir := agentHome(t), t.TempDir()
	python := jupyterPython(t)
	env := append(os.Environ(), "UNITASK_HOME="+home, "HOME="+dir, "JUPYTER_PLATFORM_DIRS=0", "PYTHONUNBUFFERED=1")
	script, err := filepath.Abs("testdata/kernel/clients.py")
	if err != nil {
		t.Fatal(err)
	}
	prefix := filepath.Dir(filepath.Dir(python))
	for _, flags := range [][]string{nil, {"--name", "unitask-ipython", "--with", "pip:ipython"}} {
		install := exec.Command(built(t), append([]string{"kernel", "install", "--prefix", prefix}, flags...)...)
		install.Env = env
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cmd := exec.Command(python, script)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
	testwait.Within(t, time.Minute, "all kernels have ended", func() bool {
		return exec.Command("pgrep", "-f", "kernel run --home "+home).Run() != nil
	})
}

// jupyterPackages are what TestKernelClients needs of PyPI.
var jupyterPackages = []string{"jupyter_client==8.10.0", "nbclient==0.11.0"}

// jupyterPython returns the Python of an environment with Jupyter's clients, which is kept below the base home's cache.
func jupyterPython(t *testing.T) string {
	t.Helper()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	name := "jupyter-" + strings.ReplaceAll(strings.Join(jupyterPackages, "-"), "==", "-")
	dir := filepath.Join(base, "cache", name)
	python, done := filepath.Join(dir, "bin", "python"), filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err == nil {
		return python
	}
	for _, args := range [][]string{{"python3", "-m", "venv", "--clear", dir},
		append([]string{python, "-m", "pip", "install", "-q"}, jupyterPackages...)} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return python
}
