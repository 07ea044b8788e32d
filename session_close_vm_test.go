package unitask_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/vmm"
)

// sessionUses are uses of sessions by callers while their runtime is closed. Each continues until its session has
// ended.
var sessionUses = []struct {
	name string
	use  func(ctx context.Context, rt *unitask.Runtime, s *unitask.Session) error
}{
	{"start others", func(ctx context.Context, rt *unitask.Runtime, _ *unitask.Session) error {
		_, err := rt.NewSession(ctx, unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
		return err
	}},
	{"pause and resume", func(ctx context.Context, _ *unitask.Runtime, s *unitask.Session) error {
		return errors.Join(s.Pause(ctx), s.Resume(ctx))
	}},
	{"fork", func(ctx context.Context, _ *unitask.Runtime, s *unitask.Session) error {
		_, err := s.Fork(ctx, 2)
		return err
	}},
	{"revive", func(ctx context.Context, rt *unitask.Runtime, s *unitask.Session) error {
		if err := errors.Join(s.Pause(ctx), s.Leave()); err != nil {
			return err
		}
		_, err := rt.Revive(ctx, unitask.Caller{}, s.ID, nil)
		return err
	}},
	{"run steps", func(ctx context.Context, _ *unitask.Runtime, s *unitask.Session) error {
		_, err := s.Run(ctx, unitask.Step{Code: "1"})
		return err
	}},
}

// A runtime is closed while sessions start, pause, resume, fork and continue. It leaves no process, socket, or
// incomplete pause.
func TestAttackCloseWhileSessions(t *testing.T) {
	needClones(t)
	home := newHome(t)
	for _, c := range sessionUses {
		for uses := range 3 { // uses that have ended at the close, while others continue
			closeDuring(t, home, uses, c.use)
			attack.Check(
				t,
				fmt.Sprintf("a runtime is closed while callers %s, after %d times: what is left", c.name, uses),
				"",
				leftOf(t, home),
			)
		}
	}
}

// closeDuring closes a runtime while three callers use a session, after this number of completed uses.
func closeDuring(
	t *testing.T,
	home string,
	uses int,
	use func(context.Context, *unitask.Runtime, *unitask.Session) error,
) {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := make(chan struct{}, 3+uses)
	var using sync.WaitGroup
	for range 3 {
		using.Go(func() {
			for err := error(nil); ctx.Err() == nil && !isOver(err); err = use(ctx, rt, s) {
				select {
				case began <- struct{}{}:
				default: // enough have started
				}
			}
		})
	}
	over := make(chan struct{}) // nobody uses it any more: a revived session is a new one
	go func() {
		using.Wait()
		close(over)
	}()
	for range 3 + uses {
		select {
		case <-began:
		case <-over:
		case <-ctx.Done():
			t.Fatal("the session is not used")
		}
	}
	if err := rt.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	using.Wait()
}

// isOver reports whether an error means that a session or its runtime has ended.
func isOver(err error) bool {
	return errors.Is(err, unitask.ErrClosed) || errors.As(err, new(*unitask.SessionError))
}

// leftOf lists what a closed runtime has left: processes, sockets, and pauses that can't be resumed.
func leftOf(t *testing.T, home string) (left string) {
	t.Helper()
	for _, pid := range qemuChildren(t, os.Getpid()) {
		left += fmt.Sprint("process ", pid, " ")
	}
	sockets, _ := filepath.Glob(filepath.Join(home, "runs", "*", "*.sock"))
	for _, name := range sockets {
		left += filepath.Base(name) + " "
	}
	pauses, _ := filepath.Glob(filepath.Join(home, "sessions", "*"))
	for _, dir := range pauses {
		if st, err := os.Stat(dir); err == nil && st.IsDir() {
			if _, err := os.Stat(filepath.Join(dir, "pause.json")); err != nil {
				left += "half a pause: " + filepath.Base(dir) + " "
			}
		}
	}
	return left
}

// A console connects to the machine after a pause, not to the one before it.
func TestAttackAttachAfterPause(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
	status := func() string {
		m, _, err := rt.Consoles().Join(t.Context(), s.ID, vmm.AccessRead, false)
		if err != nil {
			return "refused"
		}
		defer m.Disconnect()
		var is struct {
			Status string `json:"status"`
		}
		if err := m.Do(t.Context(), "query-status", nil, &is); err != nil {
			return err.Error()
		}
		return is.Status
	}
	attack.Check(t, "a console of a session", "running", status())
	for range 2 {
		if err := s.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a console of a session that is paused", "refused", status())
		if err := s.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a console of a session that was resumed", "running", status())
	}
}
