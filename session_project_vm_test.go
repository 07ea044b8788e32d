package unitask_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// projectFolder returns a folder of the host with some files.
func projectFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"src/a.txt": "1\n2\n3\n", "old": "moves\n", "gone": "x\n",
		".gitignore": "out\n", "out/built": "no\n", ".git/config": "secret\n", "tool": "#!/bin/sh\n"} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// projectChanges returns what a session changed, in a line.
func projectChanges(t *testing.T, s *unitask.Session, paths ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	if err := s.Changes(t.Context(), paths, true, &out); err != nil {
		return "", err
	}
	kept, err := os.Create(filepath.Join(t.TempDir(), "texts"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	r, err := project.Read(&out, kept)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, c := range r.Changes {
		list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s", c.Status(), strings.TrimSpace(c.From+" "+c.Path))))
	}
	return strings.Join(list, ", "), nil
}

func inShell(t *testing.T, s *unitask.Session, script string) {
	t.Helper()
	res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"/bin/sh", "-c", script}})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%s: %v %+v", script, err, res)
	}
}

// A session changes its project in its machine. What it changed is known there, in a fork, and after a pause in another
// process.
func TestSessionProject(t *testing.T) {
	t.Parallel()
	needClones(t)
	home, dir := newHome(t), projectFolder(t)
	rt := openRuntime(t, unitask.Options{Home: home})
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "node"},
		Project: session.ProjectRequest{Host: dir}})
	same := func(s *unitask.Session, want string, paths ...string) {
		t.Helper()
		if got, err := projectChanges(t, s, paths...); err != nil || got != want {
			t.Errorf("%q %v, want %q", got, err, want)
		}
	}
	same(s, "")
	inShell(t, s, "test ! -e .git && test ! -e out && echo 4 >> src/a.txt && mkdir -p out new && mv old new/name && "+
		"rm gone && chmod +x tool && echo n > out/more && "+
		"seq 100 | while read n; do echo $n > new/$n; done; touch .gitignore")
	const want = "deleted gone, renamed old new/name, modified src/a.txt, mode tool"
	inShell(t, s, "mv new/name /tmp; rm -r new; mkdir new; mv /tmp/name new")
	same(s, want)
	same(s, "modified src/a.txt", "src")
	inShell(t, s, "mv src s; mkdir src; mv s/a.txt src; rmdir s")
	same(s, want)
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	same(forks[0], want)
	if err := forks[0].Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Leave(); err != nil {
		t.Fatal(err)
	}
	rt.Close()
	rt = openRuntime(t, unitask.Options{Home: home})
	if s, err = rt.Revive(t.Context(), unitask.Caller{}, s.ID, nil); err != nil {
		t.Fatal(err)
	}
	same(s, want)
	texts := rt.Runs().Path(s.ID, project.TextsFile)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(texts); err == nil {
		t.Error("the texts outlive the session")
	}
}

// Hostile sessions and folders get errors, and a session gets no project that its ceiling forbids.
func TestAttackSessionProject(t *testing.T) {
	t.Parallel()
	needClones(t)
	rt := sessionRuntime(t)
	refused := func(name string, caller unitask.Caller, p session.ProjectRequest) {
		t.Helper()
		s, err := rt.NewSessionFor(t.Context(), caller, unitask.SessionRequest{
			Request: unitask.Request{Language: "shell"}, Project: p})
		if err == nil {
			s.Close()
		}
		attack.Check(t, "project: "+name, "true", fmt.Sprint(errors.As(err, new(*policy.FieldError))))
	}
	ceiling, err := policy.ParseCeiling("ceiling", []byte("dirsUnder = [\"/nowhere\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	refused("a folder beyond the ceiling", unitask.Caller{Ceiling: ceiling},
		session.ProjectRequest{Host: projectFolder(t)})
	refused("a repository beyond the ceiling", unitask.Caller{Ceiling: ceiling},
		session.ProjectRequest{Host: projectFolder(t), Branch: "unitask/x"})
	for name, make := range map[string]func(git string) error{
		"a file": func(git string) error { return os.WriteFile(git, []byte("gitdir: /etc\n"), 0o644) },
		"a link": func(git string) error { return os.Symlink(filepath.Join(projectFolder(t), ".git"), git) },
	} {
		dir := t.TempDir()
		if err := make(filepath.Join(dir, ".git")); err != nil {
			t.Fatal(err)
		}
		refused("a clone whose .git is "+name, unitask.Caller{}, session.ProjectRequest{Host: dir, Branch: "unitask/x"})
	}
	dir := projectFolder(t)
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "shell"},
		Project: session.ProjectRequest{Host: dir, Guest: "/work/p"}})
	for _, c := range []struct{ script, want string }{
		{"mkfifo p/pipe; ln -s /etc p/l; mkdir p/.GIT; echo x > p/.GIT/config; echo x > 'p/git~1'",
			"added .GIT/config, added git~1, added l, added pipe"},
		{"mkdir -p p/.git/hooks; echo x > p/.git/hooks/x; rm p/pipe p/l; rm -r p/.GIT 'p/git~1'", ""},
		{"mv p q; ln -s q p", "error"},
		{"rm p; echo x > p", "error"},
		{"rm p; mv q p; rm p/src/a.txt; ln -s /dev/zero p/src/a.txt", "kind src/a.txt"},
	} {
		inShell(t, s, c.script)
		got, err := projectChanges(t, s)
		if err != nil {
			got = "error"
		}
		attack.Check(t, "project: "+c.script, c.want, got)
	}
}
