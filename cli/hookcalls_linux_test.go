package cli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
)

// hookAnswer is what Claude Code reads.
type hookAnswer struct {
	SystemMessage      string
	HookSpecificOutput struct {
		HookEventName, PermissionDecision, PermissionDecisionReason, AdditionalContext string
		UpdatedInput                                                                   map[string]any
	}
}

// claude calls hooks as Claude Code does: in one of its sessions, for a project.
type claude struct {
	t            *testing.T
	program      *exec.Cmd
	session, dir string
}

// hook calls a hook with a text.
func (c claude) hook(text string, flags ...string) (code int, out, errs string) {
	c.t.Helper()
	cmd := exec.Command(c.program.Path, append([]string{"hook", "claude-code"}, flags...)...)
	var stdout, stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.program.Env, strings.NewReader(text), &stdout, &stderr
	cmd.Dir = "/"
	_ = cmd.Run()
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// call calls the hook of an event with a tool's input.
func (c claude) call(event, tool string, input map[string]any, flags ...string) (a hookAnswer) {
	c.t.Helper()
	code, out, errs := c.hook(inJSON(map[string]any{"hook_event_name": event, "session_id": c.session, "cwd": c.dir,
		"tool_name": tool, "tool_input": input, "transcript_path": "/x", "permission_mode": "default"}), flags...)
	if code != 0 {
		c.t.Fatalf("%s: exit code %d: %s", event, code, errs)
	}
	if out != "" {
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			c.t.Fatalf("%v: %s", err, out)
		}
	}
	return a
}

// bash runs a command as Claude Code does: what the hook puts in its place, in a shell of the host.
func (c claude) bash(command string) (out string, code int, a hookAnswer) {
	c.t.Helper()
	a = c.call("PreToolUse", "Bash", map[string]any{"command": command, "timeout": 5000})
	put := a.HookSpecificOutput
	if put.PermissionDecision != "allow" || put.UpdatedInput["timeout"] != 5000.0 {
		c.t.Fatalf("%+v", a)
	}
	cmd := exec.Command("bash", "-c", put.UpdatedInput["command"].(string))
	cmd.Dir = c.dir
	text, _ := cmd.CombinedOutput()
	return string(text), cmd.ProcessState.ExitCode(), a
}

func TestAttackHookSkill(t *testing.T) { // one home and one program: the first machine boots, the others are clones
	program := unitaskIn(t, agentHome(t))
	defer func() {
		end := exec.Command(program.Path, "session", "rm", "--all")
		end.Env = program.Env
		_ = end.Run()
	}()
	t.Run("hook", func(t *testing.T) {
		c := hookClients(t, program)
		hookAttacks(t, c)
		hookFiles(t, c)
	})
	t.Run("skill", func(t *testing.T) { skillRuns(t, program) })
}

// Commands of one client share a machine, also if they begin at once; another client has its own. A session that is
// gone is made anew, and the answer says so. At the end the changes are a proposal. It returns a client with a machine.
func hookClients(t *testing.T, program *exec.Cmd) (other claude) {
	t.Helper()
	dir := testdir.Private(t)
	c, other := claude{t, program, "one", dir}, claude{t, program, "two", dir}
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("noted\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			if out, code, _ := c.bash(fmt.Sprintf("cat note.txt; echo %d > own%d; exit %d", i, i, i)); code != i {
				t.Errorf("%d: %d %s", i, code, out)
			}
		})
	}
	all.Wait()
	if out, code, _ := other.bash("ls; hostname"); out != "note.txt\nunitask\n" || code != 0 {
		t.Errorf("%d %q", code, out)
	}
	if out, _, a := c.bash("mkdir sub; cd sub; ls .."); out != "note.txt\nown0\nown1\nown2\nsub\n" ||
		a.SystemMessage != "" {
		t.Errorf("%q %+v", out, a)
	}
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("edited\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	after := c.call("PostToolUse", "Edit", map[string]any{"file_path": filepath.Join(dir, "note.txt")})
	if after.HookSpecificOutput.HookEventName != "" {
		t.Errorf("%+v", after)
	}
	if out, _, _ := c.bash("pwd; cat ../note.txt"); out != dir+"/sub\nedited\n" {
		t.Errorf("%q", out)
	}
	list := func(args ...string) string {
		cmd := exec.Command(program.Path, args...)
		cmd.Env = program.Env
		text, _ := cmd.CombinedOutput()
		return string(text)
	}
	if code, out, errs := c.hook(inJSON(map[string]any{"hook_event_name": "SessionEnd", "session_id": "one", "cwd": dir,
		"reason": "other"})); code != 0 || out != "" {
		t.Errorf("%d %s %s", code, out, errs)
	}
	testwait.Within(t, time.Minute, "one session is left", func() bool {
		return strings.Count(list("session", "ls"), "running") == 1
	})
	if text := list("apply"); strings.Count(text, "proposed") != 1 || !strings.Contains(text, "claude-code") {
		t.Errorf("%s", text)
	}
	list("session", "rm", "--all")
	if out, _, a := other.bash("ls"); out != "note.txt\n" || !strings.Contains(a.SystemMessage, "a new machine") ||
		!strings.Contains(a.HookSpecificOutput.AdditionalContext, "If there was a machine before, it has ended") {
		t.Errorf("%q %+v", out, a)
	}
	return other
}

// A command does nothing on the host, whatever its text; a link of the project leads nowhere. Calls that can't be
// answered, or that are about no machine, stop the command.
func hookAttacks(t *testing.T, c claude) {
	t.Helper()
	mark := filepath.Join(t.TempDir(), "mark")
	for name, command := range map[string]string{
		"quotes": "x' ; touch " + mark + "; '", "double quotes": `"; touch ` + mark + `; "`,
		"a new line": "true\ntouch " + mark, "a substitution": "$(touch " + mark + ")`touch " + mark + "`",
		"an option": "--end x; touch " + mark, "a here document": "cat <<'EOF'\n'\nEOF\ntouch " + mark,
		"a backslash": `\'; touch ` + mark + ` #`, "its own command line": "' '--session' 'x' '--in' '/'; touch " + mark,
	} {
		c.bash(command)
		_, err := os.Lstat(mark)
		attack.Check(t, "hook claude-code: "+name, "nothing on the host", map[bool]string{
			true: "nothing on the host", false: "a file on the host"}[os.IsNotExist(err)])
	}
	denied := func(name string, c claude, tool string, input map[string]any, flags ...string) {
		t.Helper()
		a := c.call("PreToolUse", tool, input, flags...)
		attack.Check(t, "hook claude-code: "+name, "deny", a.HookSpecificOutput.PermissionDecision)
		if len(a.HookSpecificOutput.PermissionDecisionReason) > 1000 || a.HookSpecificOutput.UpdatedInput != nil {
			t.Errorf("%s: %+v", name, a)
		}
	}
	command := map[string]any{"command": "true"}
	denied("a NUL", c, "Bash", map[string]any{"command": "true\x00"})
	denied("a huge command", c, "Bash", map[string]any{"command": strings.Repeat("x", 1<<20)})
	denied("no text", c, "Bash", map[string]any{"command": []string{"true"}})
	denied("null", c, "Bash", map[string]any{"command": nil})
	denied("no command", c, "Monitor", map[string]any{"ws": "x"})
	denied("no input", c, "Bash", nil)
	for _, tool := range []string{"PowerShell", "bash", "BashOutput", "KillShell", ""} {
		denied("the tool "+tool, c, tool, command)
	}
	denied("no such folder", claude{t, c.program, "one", c.dir + "/none"}, "Bash", command)
	denied("a relative folder", claude{t, c.program, "one", "."}, "Bash", command)
	denied("all of the host", claude{t, c.program, "one", "/"}, "Bash", command)
	denied("no session", claude{t, c.program, "", c.dir}, "Bash", command)
	denied("no such image", claude{t, c.program, "three", c.dir}, "Bash", command, "--image", "nosuch")
	for name, text := range map[string]string{"no JSON": "x", "nothing": "", "a list": "[]", "another event": "{}",
		"deep": strings.Repeat("[", 1<<20), "large": `{"x":"` + strings.Repeat("x", 16<<20) + `"}`} {
		code, out, _ := c.hook(text)
		attack.Check(t, "hook claude-code: "+name, "exit code 2", fmt.Sprint("exit code ", code, out))
	}
	code, _, _ := c.hook("{}", "--no-such-flag")
	attack.Check(t, "hook claude-code: a wrong flag", "exit code 2", fmt.Sprint("exit code ", code))
}

// A file that a project's copy leaves out does not enter the machine through an edit either, under any name. A link
// leads nowhere, and a pipe blocks nothing. Folders with any names are the same in the machine.
func hookFiles(t *testing.T, c claude) {
	t.Helper()
	writeFiles(t, c.dir, map[string]string{".gitignore": ".env\n", ".env": "swordfish", ".git/config": "swordfish",
		"sub/note": "noted"})
	secret := filepath.Join(t.TempDir(), "secret")
	at := func(name string) string { return filepath.Join(c.dir, name) }
	if err := errors.Join(os.WriteFile(secret, []byte("swordfish"), 0o600), os.Symlink(secret, at("link")),
		os.Symlink(".env", at("other")), os.Symlink(".git", at("folder")), syscall.Mkfifo(at("pipe"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", ".env", "other", ".git/config", "folder/config", "pipe", "none"} {
		a := c.call("PostToolUse", "Edit", map[string]any{"file_path": at(name)})
		attack.Check(t, "hook claude-code: an edit of "+name, "refused", map[bool]string{true: "refused",
			false: "taken"}[a.HookSpecificOutput.AdditionalContext != ""])
	}
	c.call("PostToolUse", "Write", map[string]any{"file_path": at("sub/note")})
	out, _, _ := c.bash("cat sub/note; cat link .env other .git/config folder/config 2>/dev/null")
	attack.Check(t, "hook claude-code: what is not for the machine", "noted", out)
	c.dir = filepath.Join(c.dir, "a'b; touch HACK; '\n$(touch HACK)")
	writeFiles(t, c.dir, map[string]string{"in": ""})
	out, _, _ = c.bash("pwd; ls")
	attack.Check(t, "hook claude-code: a folder's name", c.dir+"\nin\n", out)
}
