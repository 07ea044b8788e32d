package unitask_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/policy"
)

// Files and folders of the host are at the relative paths that a session's code uses, from the start and in later
// steps.
func TestSessionBrings(t *testing.T) {
	needVM(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"data/x.csv": "1,2", "data/deep/y": "y", "one.txt": "one", "other/z": "z"} {
		mustDo(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		mustDo(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	mustDo(t, os.Symlink("x.csv", filepath.Join(dir, "data/link")))
	t.Chdir(dir)
	for _, whole := range []bool{false, true} {
		req := unitask.Request{Image: "shell", Dirs: []unitask.Mount{{Host: "data"}},
			Files: []unitask.Mount{{Host: "./one.txt"}}}
		if whole {
			req.Files, req.Dirs = nil, []unitask.Mount{{Host: "."}}
		}
		s := openSession(t, sessionRuntime(t), unitask.SessionRequest{Request: req})
		step := func(step unitask.Step, want string) {
			t.Helper()
			if res, err := s.Run(t.Context(), step); err != nil || string(res.Stdout) != want {
				t.Errorf("%q: %+v %v", step.Code, res, err)
			}
		}
		step(unitask.Step{Code: "cat data/x.csv data/deep/y one.txt data/link; echo mine > mine; cat mine"},
			"1,2yone1,2mine\n")
		if whole { // files from the start are read-only
			continue
		}
		step(unitask.Step{Code: "cat other/z beside; echo again >> other/z", Dirs: []unitask.Mount{{Host: "other"}},
			InlineFiles: []unitask.InlineFile{{Name: "beside", Content: "b"}}}, "zb")
		step(unitask.Step{Code: "cat other/z /tmp/w", Files: []unitask.Mount{{Host: "other/z"},
			{Host: filepath.Join(dir, "one.txt"), Guest: "/tmp/w"}}}, "zone")
		if res, err := s.Run(t.Context(), unitask.Step{Code: "true", Files: []unitask.Mount{{Host: "nowhere"}}}); err == nil {
			t.Errorf("a file that there is not: %+v", res)
		}
	}

	ceiling, err := policy.ParseCeiling(filepath.Join(dir, policy.CeilingFile),
		[]byte("filesUnder = [\"other\"]\ndirsUnder = [\"other\"]\n"))
	mustDo(t, err)
	s, err := sessionRuntime(t).NewSessionFor(t.Context(), unitask.Caller{Ceiling: ceiling},
		unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	mustDo(t, err)
	defer s.Close()
	res, err := s.Run(t.Context(), unitask.Step{Code: "cat other/z; cat one.txt; ls data",
		Files: []unitask.Mount{{Host: "one.txt"}}, Dirs: []unitask.Mount{{Host: "data"}, {Host: "other"}}})
	if err != nil || string(res.Stdout) != "z" || len(res.Policy.Denials) != 2 ||
		!strings.Contains(res.Policy.Denials[0].String(), "one.txt") {
		t.Errorf("%+v %v", res, err)
	}
}

// When a paused session continues, the current ceiling applies to the files of a step. The record and the audit log
// list the denied ones.
func TestAttackBringCeiling(t *testing.T) {
	needClones(t)
	home, dir := newHome(t), t.TempDir()
	file := filepath.Join(dir, policy.CeilingFile)
	mustDo(t, os.WriteFile(filepath.Join(dir, "late"), []byte("late"), 0o600))
	mustDo(t, os.WriteFile(file, []byte("filesUnder = [\".\"]\n"), 0o600))
	held, err := policy.LoadForPeople(home, dir, "")
	mustDo(t, err)
	rt := openRuntime(t, unitask.Options{Home: home})
	s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: held.Ceiling, Origin: held.Origin},
		unitask.SessionRequest{Request: unitask.Request{Language: "shell"}})
	mustDo(t, err)
	defer s.Close()
	for _, c := range []struct{ name, ceiling, want string }{
		{"that allows it", "filesUnder = [\".\"]\n", "late, denied 0 0, logged 0"},
		{"that allows it no longer", "filesUnder = []\n", ", denied 1 1, logged 1"},
	} {
		mustDo(t, s.Pause(t.Context()))
		mustDo(t, os.WriteFile(file, []byte(c.ceiling), 0o600))
		res, err := s.Run(t.Context(), unitask.Step{Code: "cat /work/late; true",
			Files: []unitask.Mount{{Host: filepath.Join(dir, "late"), Guest: "/work/late"}}})
		if err != nil {
			t.Fatal(err)
		}
		in, err := rt.History().Inspect(res.RunID, 0)
		mustDo(t, err)
		logged := 0
		mustDo(t, rt.Audit().Read(func(_ int64, line []byte) error {
			if strings.Contains(string(line), string(audit.PolicyDenied)) && strings.Contains(string(line), res.RunID) {
				logged++
			}
			return nil
		}))
		attack.Check(t, "a step that brings a file into a session that was paused under a ceiling "+c.name, c.want,
			fmt.Sprintf("%s, denied %d %d, logged %d", res.Stdout, len(res.Policy.Denials), len(in.Denied), logged))
		if res, err = s.Run(t.Context(), unitask.Step{Code: "rm -f /work/late"}); err != nil || res.ExitCode != 0 {
			t.Fatalf("%+v %v", res, err)
		}
	}
}

// Code that stops the tar of a step's files ends that step by the step's own time limit, but not the session.
func TestAttackBringTime(t *testing.T) {
	needVM(t)
	rt := sessionRuntime(t)
	unitask.SetBringTime(rt, 2*time.Second)
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	stop := `(while :; do for p in /proc/[0-9]*; ` +
		`do read -r name < $p/comm && [ "$name" = tar ] && kill -STOP ${p#/proc/}; done; done) >/dev/null 2>&1 & echo $!`
	res, err := s.Run(t.Context(), unitask.Step{Code: stop})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%+v %v", res, err)
	}
	for n := range 2 { // and the next one, too
		begun := time.Now()
		bring := unitask.Step{Code: "echo ran", Timeout: time.Second,
			InlineFiles: []unitask.InlineFile{{Name: "n", Content: strings.Repeat("x", 300_000)}}}
		got, err := s.Run(t.Context(), bring)
		said := fmt.Sprint(err)
		if err == nil {
			said = fmt.Sprintf("%+v", got)
		}
		if strings.Contains(said, "the machine did not take it within 2s") {
			said = "its time is over"
		}
		attack.Check(t, fmt.Sprintf("code that stops the tar of step %d", n+2), "its time is over", said)
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("after %v", took)
		}
	}
	if res, err := s.Run(t.Context(), unitask.Step{Code: "kill -9 " + strings.TrimSpace(string(res.Stdout)) +
		"; pgrep -x tar; echo on"}); err != nil || string(res.Stdout) != "on\n" {
		t.Errorf("%+v %v", res, err)
	}
	bring := unitask.Step{Code: "cat n", InlineFiles: []unitask.InlineFile{{Name: "n", Content: "x"}}}
	if res, err := s.Run(t.Context(), bring); err != nil || string(res.Stdout) != "x" {
		t.Errorf("%+v %v", res, err)
	}
}
