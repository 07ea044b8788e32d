package session

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// A step may not have more time than its session was granted, whatever it requests; a terminal has the session's time.
func TestStepLimit(t *testing.T) {
	const granted, life = 30 * time.Second, time.Hour
	for _, row := range []struct{ asked, granted, want time.Duration }{
		{0, granted, granted},
		{time.Second, granted, time.Second},
		{granted, granted, granted},
		{granted + 1, granted, 0},
		{life, granted, 0},
		{life, 2 * life, life},
		{life + 1, 2 * life, 0},
		{-2, granted, 0},
		{endless, granted, life},
	} {
		got, err := stepLimit(row.asked, row.granted, life)
		if got != row.want || (err == nil) != (row.want > 0) {
			t.Errorf("%s of %s: %s %v, want %s", row.asked, row.granted, got, err, row.want)
		}
		if err != nil && !strings.Contains(err.Error(), "one that is started with a longer limit") { // the remedy
			t.Error(err)
		}
	}
}

// A name is in an environment once, because programs differ in which of two they use.
func TestWithEnv(t *testing.T) {
	env := []string{"A=1", "PATH=/bin", "AB=2"}
	got := withEnv(env, map[string]string{"PATH": "/x", "C": "=", "A": ""})
	if want := []string{"AB=2", "A=", "C==", "PATH=/x"}; !slices.Equal(got, want) || env[1] != "PATH=/bin" {
		t.Errorf("%q, want %q; %q", got, want, env)
	}
}

// A language that runs support and sessions do not is refused before the machine is asked.
func TestStepLanguage(t *testing.T) {
	s := newSession(nil, run.Caller{}, policy.SessionLimits{})
	if _, err := s.Run(
		t.Context(),
		Step{Code: "package main", Language: "go"},
	); err == nil ||
		!strings.Contains(err.Error(), "language go: has no steps in a session") {
		t.Error(err)
	}
	want := []string{"node", "python", "data", "shell", "python@3.11", "data@3.11"}
	if got := language.SessionImages(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A step whose machine has ended has no exit code, and none that means success.
func TestCodeOfNoEnd(t *testing.T) {
	for why, want := range map[error]run.Outcome{&run.SessionError{ID: "s",
		Why: "its machine crashed"}: run.OutcomeCrashed, errors.New("its stream broke"): run.OutcomeFailed} {
		for name, step := range map[string]func(*Session) (*run.Result, error){
			"a command": func(s *Session) (*run.Result, error) {
				return s.Exec(t.Context(), Command{Args: []string{"sleep", "9"}})
			},
			"code": func(s *Session) (*run.Result, error) { return s.Run(t.Context(), Step{Code: "for (;;);"}) },
		} {
			told, to := io.Pipe()
			s := without(t, to)
			go func() { // the machine dies during the step
				_, _ = told.Read(make([]byte, 1))
				go func() { _, _ = io.Copy(io.Discard, told) }()
				s.client.Close(why)
			}()
			res, err := step(s)
			to.Close()
			if !errors.Is(err, why) || res == nil || res.Outcome != want || res.ExitCode != run.ExitHost ||
				run.ExitCode(res, err) != run.ExitHost {
				t.Fatalf("%s, %v: %+v, %v", name, why, res, err)
			}
			if on := recorded(t, s); on.Outcome != want || on.ExitCode != run.ExitHost || on.Error == "" {
				t.Errorf("%s, %v: the record has %+v", name, why, on)
			}
		}
	}
}
