package unitask_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// A paused session continues in another runtime: its grants, variables, files and processes are there, and nobody else
// gets it.
func TestSessionRevive(t *testing.T) {
	t.Parallel()
	needClones(t)
	home := newHome(t)
	open := func() *unitask.Runtime { return openRuntime(t, unitask.Options{Home: home}) }
	rt := open()
	secrets := map[string]string{"KEY": "0123456789-abcdef"}
	caller := unitask.Caller{Name: "ada"}
	s, err := rt.NewSessionFor(t.Context(), caller, unitask.SessionRequest{Request: unitask.Request{Language: "python",
		Env:     map[string]string{"COLOUR": "red"},
		Secrets: secrets, SecretHosts: map[string][]string{"KEY": {"api.example.com"}},
		AllowNet: []string{"api.example.com"}}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(s *unitask.Session, code, value string) *unitask.Result {
		t.Helper()
		res, err := s.Run(t.Context(), unitask.Step{Code: code})
		if err != nil || res.Value != value || res.ExitCode != 0 {
			t.Fatalf("%s: %+v %v", code, res, err)
		}
		return res
	}
	run(s, "x = 40; open('kept', 'w').write('text'); import os, subprocess, random\n"+
		"p = subprocess.Popen(['sleep', '1000'])\nkey = os.environ['KEY']; key != ''", "True")
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Revive(t.Context(), caller, s.ID, secrets); !errors.As(err, new(*unitask.BusyError)) {
		t.Errorf("while another process holds it: %v", err)
	}
	if err := s.Leave(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(t.Context(), unitask.Step{Code: "1"}); err == nil || !strings.Contains(err.Error(), "left paused") {
		t.Errorf("after it was left: %v", err)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	checkNoAuthorityKey(t, home, s.ID)
	rt, other := open(), open()
	checkLeft(t, rt, s, home, secrets)

	refuseRevival(t, rt, s, secrets, caller)

	// A caller that leaves at any moment destroys nothing.
	killReviving(t, rt, caller, s, secrets, home)

	// Of several concurrent requests from two runtimes, one gets the session.
	again := reviveAtOnce(t, rt, other, caller, s, secrets)
	if again.ID != s.ID || !again.Expires().Equal(s.Expires()) {
		t.Errorf("%s %s, not %s %s", again.ID, again.Expires(), s.ID, s.Expires())
	}
	if res := run(again,
		"x += 2; (x, open('kept').read(), p.poll() is None, key == os.environ['KEY'], os.environ['COLOUR'])",
		"(42, 'text', True, True, 'red')"); res.Hint() != "" {
		t.Errorf("%+v", res)
	}
	if err := again.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	run(again, "x", "42")
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(home, "sessions", "*")); err != nil || len(left) != 0 {
		t.Errorf("after its end: %v %v", left, err)
	}
	if _, err := rt.Revive(t.Context(), caller, s.ID, secrets); !errors.As(err, new(*unitask.SessionError)) {
		t.Errorf("after its end: %v", err)
	}
}

// checkLeft checks the files of a paused session on the disk.
func checkLeft(t *testing.T, rt *unitask.Runtime, s *unitask.Session, home string, secrets map[string]string) {
	t.Helper()
	if rec, err := rt.Runs().Get(s.ID); err != nil || rec.Status != record.Paused {
		t.Errorf("%+v %v", rec, err)
	}
	list, err := paused.List(home)
	if err != nil || len(list) != 1 || list[0].ID != s.ID || list[0].Owner != "ada" || !list[0].Since.IsZero() ||
		len(list[0].Secrets) != 1 {
		t.Fatalf("%+v %v", list, err)
	}
	if found, err := filepath.Glob(filepath.Join(home, "sessions", s.ID, "*")); err != nil || len(found) != 4 {
		t.Errorf("%v %v", found, err)
	} else {
		for _, name := range found {
			if text, err := os.ReadFile(name); err != nil || strings.Contains(string(text), secrets["KEY"]) {
				t.Errorf("%s holds a secret (%v)", name, err)
			}
		}
	}
}

// reviveAtOnce revives a session many times at once; exactly one succeeds.
func reviveAtOnce(
	t *testing.T, rt, other *unitask.Runtime, caller unitask.Caller, s *unitask.Session,
	secrets map[string]string,
) *unitask.Session {
	t.Helper()
	var asking sync.WaitGroup
	got := make(chan *unitask.Session, 6)
	for i := range cap(got) {
		asking.Go(func() {
			one, err := []*unitask.Runtime{rt, other}[i%2].Revive(t.Context(), caller, s.ID, secrets)
			if err == nil {
				got <- one
			} else if !errors.As(err, new(*unitask.BusyError)) {
				t.Errorf("%v", err)
			}
		})
	}
	asking.Wait()
	if len(got) != 1 {
		t.Fatalf("%d have it", len(got))
	}
	again := <-got
	return again
}

// refuseRevival checks who may not revive a session, and with what.
func refuseRevival(
	t *testing.T, rt *unitask.Runtime, s *unitask.Session, secrets map[string]string, caller unitask.Caller,
) {
	t.Helper()
	t.Run("refused", func(t *testing.T) {
		var field *policy.FieldError
		if _, err := rt.Revive(t.Context(), unitask.Caller{Name: "eve"}, s.ID, secrets); !errors.As(err,
			new(*unitask.SessionError)) {
			t.Errorf("another caller: %v", err)
		}
		if _, err := rt.Revive(t.Context(), caller, "20200101-000000000-aaaaaa", secrets); !errors.As(err,
			new(*unitask.SessionError)) {
			t.Errorf("one that never was: %v", err)
		}
		if _, err := rt.Revive(t.Context(), caller, s.ID, nil); !errors.As(err, &field) || field.Field != "secrets" {
			t.Errorf("without its secret: %v", err)
		}
		if _, err := rt.Revive(t.Context(), caller, s.ID, map[string]string{"KEY": "a longer one than it was"}); err == nil ||
			!strings.Contains(err.Error(), "bytes") {
			t.Errorf("with a longer secret: %v", err)
		}
		var err error
		narrow := caller
		if narrow.Ceiling, err = policy.ParseCeiling("/x/.unitask.toml",
			[]byte("allowNet = []\nsecrets = [\"KEY\"]\n")); err != nil {
			t.Fatal(err)
		}
		if _, err := rt.Revive(t.Context(), narrow, s.ID, secrets); !errors.As(err, &field) || field.Field != "allowNet" {
			t.Errorf("under a narrower ceiling: %v", err)
		}
		if rec, err := rt.Runs().Get(s.ID); err != nil || rec.Status != record.Paused {
			t.Errorf("%+v %v", rec, err)
		}
	})
}

// killReviving kills processes while they revive a session.
func killReviving(
	t *testing.T, rt *unitask.Runtime, caller unitask.Caller, s *unitask.Session, secrets map[string]string,
	home string,
) {
	t.Helper()
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), after)
		one, err := rt.Revive(ctx, caller, s.ID, secrets)
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("left after %s: %v", after, err)
		}
		if err == nil {
			if err := errors.Join(one.Pause(t.Context()), one.Leave()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := paused.Find(home, s.ID); err != nil {
			t.Fatalf("left after %s: %v", after, err)
		}
	}
}

// An extended session lives equally long in another process.
func TestSessionReviveExtended(t *testing.T) {
	t.Parallel()
	needClones(t)
	home := newHome(t)
	open := func() *unitask.Runtime { return openRuntime(t, unitask.Options{Home: home}) }
	rt := open()
	const life = 10 * time.Second
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Image: "shell"}, Life: life})
	if err != nil {
		t.Fatal(err)
	}
	began := s.Expires().Add(-life)
	if err := s.Extend(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	id, expires := s.ID, s.Expires()
	if err := errors.Join(s.Pause(t.Context()), s.Leave(), rt.Close()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(began.Add(life + time.Second)))
	again, err := open().Revive(t.Context(), unitask.Caller{}, id, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = again.Close() })
	if res, err := again.Run(t.Context(), unitask.Step{Code: "echo lives"}); err != nil ||
		string(res.Stdout) != "lives\n" || !again.Expires().Equal(expires) {
		t.Errorf("%+v %v, until %s and not %s", res, err, again.Expires(), expires)
	}
}
