package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// serveSteps serves a session whose model makes the calls, and checks their results.
func serveSteps(t *testing.T, program string, flags []string, steps []step) {
	t.Helper()
	p := newPlane(t, steps)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	w := worker{unitask: program, flags: flags, log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	go func() { ended <- w.serve(ctx, "env_1", environmentKey, 1) }()
	p.wait()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p.check()
}

// unitask returns the program whose machines the tests use.
func unitask(t *testing.T) string {
	t.Helper()
	program := os.Getenv("UNITASK_TEST_PROGRAM")
	if program == "" {
		t.Skip("boots real machines: UNITASK_TEST_PROGRAM names no unitask (go test ./clients of the repository sets it)")
	}
	return program
}

func TestTools(t *testing.T) {
	project := t.TempDir()
	if err := os.WriteFile(filepath.Join(project, "a.txt"), []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	serveSteps(t, unitask(t), []string{"--project=" + project}, []step{
		{tool: "bash", input: `{"command":"cat a.txt | head -1; cd /tmp; x=5"}`, want: "one"},
		{tool: "bash", input: `{"command":"pwd; echo $((x+1)); env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'"}`,
			want: "/tmp\n6\n"},
		{tool: "bash", input: `{"command":"echo out; echo err >&2; exit_code() { return 3; }; exit_code"}`,
			want: "out\nerr\n\nexit code: 3", fails: true},
		{tool: "bash", input: `{"command":"if ("}`, want: "syntax error", fails: true},
		{tool: "bash", input: `{"command":"cat; echo \"it's read\""}`, want: "it's read"},
		{tool: "bash", input: `{"command":"seq 100000"}`, want: "[output truncated]"},
		{tool: "bash", input: `{"command":"echo begun; sleep 600","timeout_ms":1500}`, want: "[timed out; the next",
			fails: true},
		{tool: "bash", input: `{"command":"echo [$x]"}`, want: "[]"},
		{tool: "bash", input: `{"command":"exit 4"}`, want: "the shell has ended", fails: true},
		{tool: "bash", input: `{"restart":true}`, want: "new"},
		{tool: "bash", input: `{}`, want: "command is missing", fails: true},
		{tool: "bash", input: `{"command":"echo no > denied.txt"}`, permission: "deny"},
		{tool: "write", input: `{"file_path":"d/e/f.txt","content":"x = 1\nx = 2\n"}`, want: "wrote 12 bytes to"},
		{tool: "read", input: `{"file_path":"d/e/f.txt"}`, want: "x = 1\nx = 2\n"},
		{tool: "read", input: `{"file_path":"a.txt","view_range":[2,2]}`, want: "two"},
		{tool: "read", input: `{"file_path":"a.txt","view_range":[2]}`, want: "view_range", fails: true},
		{tool: "read", input: `{"file_path":"/dev/zero"}`, want: "no regular file", fails: true},
		{tool: "read", input: `{"file_path":"denied.txt"}`, want: "o such file", fails: true},
		{tool: "edit", input: `{"file_path":"d/e/f.txt","old_string":"x","new_string":"y"}`, want: "2 times", fails: true},
		{tool: "edit", input: `{"file_path":"d/e/f.txt","old_string":"x","new_string":"y","replace_all":true}`, want: "2 of"},
		{tool: "edit", input: `{"file_path":"d/e/f.txt","old_string":"x","new_string":"y"}`, want: "does not have",
			fails: true},
		{tool: "glob", input: `{"pattern":"**/*.txt"}`, want: "f.txt\n"},
		{tool: "glob", input: `{"pattern":"../*"}`, want: "relative", fails: true},
		{tool: "grep", input: `{"pattern":"^y = \\d$"}`, want: "f.txt:2:y = 2"},
		{tool: "grep", input: `{"pattern":"nowhere"}`, want: "no matches"},
		{tool: "grep", input: `{"pattern":"("}`, want: "grep", fails: true},
		{tool: "bash", input: `{"command":"cat /work/d/e/f.txt || cat $OLDPWD/d/e/f.txt"}`, want: "y = 1"},
	})
}

// TestNoMachine has machines that do not start, or end: each call says why, and the worker gives the session back.
func TestNoMachine(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"ends": {"echo 'the image is missing' >&2; exit 1", "the machine has ended: the image is missing"},
		"garbage": {"read line; echo nothing; echo '{\"id\":1,\"error\":{\"message\":\"no room\"}}'; cat >/dev/null",
			"no room"},
	} {
		t.Run(name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "unitask")
			if err := os.WriteFile(program, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			serveSteps(t, program, nil, []step{
				{tool: "bash", input: `{"command":"echo"}`, want: c.want, fails: true},
				{tool: "read", input: `{"file_path":"a"}`, want: c.want, fails: true},
			})
		})
	}
	t.Run("missing", func(t *testing.T) {
		serveSteps(t, "/no/such/program", nil, []step{
			{tool: "bash", input: `{"command":"echo"}`, want: "no such file", fails: true}})
	})
}

// TestEnvironmentOfMachine has a program in unitask's place show its environment: the platform's keys are not in it.
func TestEnvironmentOfMachine(t *testing.T) {
	dir := t.TempDir()
	program, shown := filepath.Join(dir, "unitask"), filepath.Join(dir, "env")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nenv >"+shown+"\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	serveSteps(t, program, nil, []step{{tool: "bash", input: `{"command":"echo"}`, want: "ended", fails: true}})
	env, err := os.ReadFile(shown)
	if err != nil || !strings.Contains(string(env), "PATH=") || strings.Contains(string(env), "ANTHROPIC") {
		t.Errorf("got %v, %s", err, env)
	}
}

func TestArguments(t *testing.T) {
	t.Setenv("ANTHROPIC_ENVIRONMENT_ID", "")
	t.Setenv("ANTHROPIC_ENVIRONMENT_KEY", "")
	for _, c := range []struct{ args, key, want string }{
		{"", "k", "name the environment"},
		{"--environment env_1", "", "ANTHROPIC_ENVIRONMENT_KEY is missing"},
		{"--environment env_1 --sessions 0", "k", "--sessions 0: use 1 to 64"},
		{"--nothing", "k", "not defined"},
	} {
		t.Setenv("ANTHROPIC_ENVIRONMENT_KEY", c.key)
		if err := run(strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %q", c.args, err, c.want)
		}
	}
}

func TestFits(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"*.go", "a.go", true}, {"*.go", "b/a.go", false}, {"**/*.go", "a.go", true}, {"**/*.go", "b/c/a.go", true},
		{"b/**", "b/c/a.go", true}, {"b/**/a.go", "b/a.go", true}, {"b/**/a.go", "c/a.go", false},
		{strings.Repeat("**/", 500) + "x", strings.Repeat("a/", 500) + "y", false},
	} {
		if got := fits(strings.Split(c.pattern, "/"), strings.Split(c.name, "/")); got != c.want {
			t.Errorf("%.40s, %.40s: got %v, want %v", c.pattern, c.name, got, c.want)
		}
	}
}

func TestMatches(t *testing.T) {
	list := "9.5000000000 old.txt\x0010.5000000000 d/new.txt\x008.0000000000 x.go\x00"
	if got, want := matches("/work", "**/*.txt", list), "/work/d/new.txt\n/work/old.txt"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestSkillsIn reads skills: no links, and not more than the bounds.
func TestSkillsIn(t *testing.T) {
	dir := t.TempDir()
	if list, err := skillsIn(dir); len(list) != 0 || err != nil {
		t.Errorf("no skills: got %v, %v", list, err)
	}
	skill := filepath.Join(dir, "skills", "hello")
	for _, err := range []error{os.MkdirAll(skill, 0o700), os.Symlink("/etc/passwd", filepath.Join(skill, "link")),
		os.WriteFile(filepath.Join(skill, "run.sh"), []byte("echo"), 0o700)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	list, err := skillsIn(dir)
	if err != nil || len(list) != 1 || list[0].name != "skills/hello/run.sh" || !list[0].run {
		t.Errorf("got %v, %v", list, err)
	}
	if err := os.Truncate(filepath.Join(skill, "run.sh"), maxSkills+1); err != nil {
		t.Fatal(err)
	}
	if _, err := skillsIn(dir); err == nil {
		t.Error("skills over the bound are read")
	}
}
