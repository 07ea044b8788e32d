package unitask_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// until waits for a background command until it has ended or has printed a text.
func until(t *testing.T, s *unitask.Session, run, text string) (stdout, stderr string, is unitask.Background) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		now, err := s.Wait(t.Context(), run, is.Seq, 5*time.Second)
		if err != nil {
			t.Fatalf("wait: %v", err)
		}
		for _, piece := range now.Output {
			if piece.Stderr {
				stderr += string(piece.Text)
			} else {
				stdout += string(piece.Text)
			}
		}
		if is = now; is.Result != nil || text != "" && strings.Contains(stdout, text) {
			return stdout, stderr, is
		}
		if time.Now().After(deadline) {
			t.Fatalf("it prints %q and goes on", stdout)
		}
	}
}

// Background commands: their output, exit codes, limits, and ends.
func TestSessionBackground(t *testing.T) {
	t.Parallel()
	needVM(t)
	ceiling, err := policy.ParseCeiling("a ceiling", []byte("backgroundCommands = 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Ceiling: ceiling})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell", Timeout: 20 * time.Second,
		Secrets: map[string]string{"S": "a secret value"}}})
	start := func(code string, limit time.Duration) string {
		t.Helper()
		run, err := s.Start(t.Context(), unitask.Command{Args: []string{"sh", "-c", code}, Timeout: limit})
		if err != nil {
			t.Fatal(err)
		}
		return run
	}
	// The command continues after the call, beside steps, and its output comes as it is printed.
	a := start(`cat; echo begun; echo err "$S" >&2; while [ ! -e go ]; do sleep 0.05; done; echo done; exit 3`, 0)
	if out, _, is := until(t, s, a, "begun\n"); out != "begun\n" || is.Result != nil {
		t.Errorf("%q %+v", out, is)
	}
	if rec, err := rt.Runs().Get(a); err != nil || rec.Session != s.ID || rec.Status != record.Running {
		t.Errorf("%+v %v", rec, err)
	}
	stubborn := start(`trap '' INT; echo up; while :; do sleep 1; done`, 0)
	var busy *unitask.BusyError
	if _, err := s.Start(t.Context(), unitask.Command{Args: []string{"true"}}); !errors.As(err, &busy) {
		t.Errorf("a third one: %v", err)
	}
	refuseBackground(t, a, s)
	if err := s.WriteFile(t.Context(), "go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out, _, is := until(t, s, a, "")
	if is.Result.Outcome != unitask.OutcomeExited || is.Result.ExitCode != 3 ||
		out != "done\n" && out != "begun\ndone\n" || is.Err != nil {
		t.Errorf("%q %+v", out, is.Result)
	}
	all, err := s.Wait(t.Context(), a, 0, 0)
	if text := string(all.Text()); err != nil || strings.Contains(text, "a secret value") ||
		!strings.Contains(text, "err") || len(all.Output) < 2 {
		t.Errorf("%s %v", text, err)
	}
	if rec, err := rt.Runs().Get(a); err != nil || rec.Status != record.Done {
		t.Errorf("%+v %v", rec, err)
	}
	// A command that only SIGKILL ends.
	until(t, s, stubborn, "up")
	if err := s.Stop(t.Context(), stubborn); err != nil {
		t.Fatal(err)
	}
	if is, err := s.Wait(t.Context(), stubborn, 0, 0); err != nil || is.Result == nil ||
		is.Result.Outcome != unitask.OutcomeCancelled {
		t.Errorf("%+v %v", is, err)
	}
	// Endless output uses no memory, and is reported as lost.
	flood := start(`head -c 3000000 /dev/zero | tr '\0' x; printf end`, 0)
	for is, _ = s.Wait(t.Context(), flood, 0, 0); is.Result == nil; {
		if is, err = s.Wait(t.Context(), flood, is.Seq, 10*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	is, err = s.Wait(t.Context(), flood, 5, 0)
	kept := len(is.Text())
	if err != nil || kept != unitask.MaxKeptOutput || is.Seq != 3000003 || is.Lost != 3000003-5-int64(kept) ||
		!strings.HasSuffix(string(is.Output[len(is.Output)-1].Text), "xend") {
		t.Errorf("%d bytes are kept of %d, %d lost: %v", kept, is.Seq, is.Lost, err)
	}
	// Invalid commands.
	endBackground(t, s, start)
	// The command ends with its session, as intended.
	endWithSession(t, start, s, rt)
}

// endWithSession checks a command whose session ends.
func endWithSession(
	t *testing.T, start func(code string, limit time.Duration) string, s *unitask.Session, rt *unitask.Runtime,
) {
	t.Helper()
	last := start("echo up; sleep 1000", 0)
	until(t, s, last, "up")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if is, err := s.Wait(t.Context(), last, 0, time.Minute); err != nil || is.Result == nil ||
		is.Result.Outcome != unitask.OutcomeCancelled {
		t.Errorf("%+v %v", is, err)
	}
	if rec, err := rt.Runs().Get(last); err != nil || rec.Status != record.Done {
		t.Errorf("%+v %v", rec, err)
	}
	if _, err := s.Start(t.Context(), unitask.Command{Args: []string{"true"}}); !errors.As(err,
		new(*unitask.SessionError)) {
		t.Errorf("after its end: %v", err)
	}
}

// refuseBackground checks which commands are refused.
func refuseBackground(t *testing.T, a string, s *unitask.Session) {
	t.Helper()
	for _, bad := range []struct {
		run   string
		after int64
	}{{a, -1}, {a, 1 << 40}, {"", 0}, {"../../etc", 0}, {s.ID, 0}} {
		var field *policy.FieldError
		if _, err := s.Wait(t.Context(), bad.run, bad.after, 0); !errors.As(err, &field) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// endBackground checks how background commands end, and which are refused.
func endBackground(t *testing.T, s *unitask.Session, start func(code string, limit time.Duration) string) {
	t.Helper()
	if _, _, is := until(t, s, start("sleep 100", time.Second), ""); !is.Result.TimedOut ||
		is.Result.ExitCode != unitask.ExitTimeout {
		t.Errorf("%+v", is.Result)
	}
	none, err := s.Start(t.Context(), unitask.Command{Args: []string{"no-such-thing"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, text, is := until(t, s, none, ""); is.Result.ExitCode != 127 || !strings.Contains(text, "no-such-thing") {
		t.Errorf("%q %+v", text, is.Result)
	}
	for name, c := range map[string]unitask.Command{
		"standard input": {Args: []string{"cat"}, Stdin: strings.NewReader("x")},
		"a terminal":     {Args: []string{"cat"}, Terminal: &unitask.Terminal{}},
		"nothing":        {}, "a negative limit": {Args: []string{"cat"}, Timeout: -1},
		"a limit beyond its life": {Args: []string{"cat"}, Timeout: 25 * time.Hour},
	} {
		var field *policy.FieldError
		if _, err := s.Start(t.Context(), c); !errors.As(err, &field) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A background command prevents neither a pause nor a fork of its session, and continues after both. Its time limit
// counts while the machine runs.
func TestSessionBackgroundPause(t *testing.T) {
	t.Parallel()
	needClones(t)
	s := openSession(t, sessionRuntime(t), unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	run, err := s.Start(t.Context(), unitask.Command{Args: []string{"sh", "-c",
		"echo up; while [ ! -e go ]; do sleep 0.05; done; echo woke"}, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	until(t, s, run, "up")
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is, err := s.Wait(t.Context(), run, 0, 0); err != nil || is.Seq != 3 || !s.Paused() {
		t.Errorf("what is known resumes it: %+v %v", is, err)
	}
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer forks[0].Close()
	if _, err := forks[0].Wait(t.Context(), run, 0, 0); !errors.As(err, new(*policy.FieldError)) {
		t.Errorf("in the fork: %v", err)
	}
	if got := value(t, forks[0], "", "ps ax | grep -c '[!] -e go'"); got == "0" {
		t.Error("the fork has lost the command")
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(t.Context(), "go", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, _, is := until(t, s, run, ""); is.Result.ExitCode != 0 || !strings.HasSuffix(out, "woke\n") {
		t.Errorf("%q %+v", out, is.Result)
	}
}
