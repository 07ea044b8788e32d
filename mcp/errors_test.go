package mcp

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

func TestTyped(t *testing.T) {
	for _, row := range []struct {
		err   error
		code  string
		retry int64 // ms; 0 means no retry
	}{
		{&policy.FieldError{Field: "image", Value: "pyton", Reason: "is none"}, "usage", 0},
		{fmt.Errorf("call: %w", &unitask.BusyError{What: "full", After: 3 * time.Second}), "busy", 3000},
		{&LimitError{Limit: "queue", Most: 3, Text: "full"}, "busy", 1000},
		{&LimitError{Limit: "caller-per-minute", Most: 1, Text: "often", After: time.Minute}, "busy", 60000},
		{&hiddenError{"hidden", &unitask.SessionError{ID: "x", Why: "it was closed"}}, "session.gone", 0},
		{fmt.Errorf("session x: %w", errNoSession), "session.gone", 0},
		{record.ErrNotFound, "run.gone", 0},
		{&unitask.JailError{}, "jail", 0},
		{&unitask.GuestError{Reason: "panic"}, "guest", 0},
		{fmt.Errorf("read /x: %w", syscall.ENOENT), "file", 0},
		{&unitask.HostError{Op: "boot", Err: errors.New("no QEMU")}, "host", 0},
		{&unitask.HostError{Op: "record", Err: &fs.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}}, "host", 0},
		{&unitask.HostError{Op: "boot", Err: fmt.Errorf("map: %w", syscall.ENOMEM)}, "host", 0},
		{fmt.Errorf("runs: %w", &fs.PathError{Op: "open", Path: "/x", Err: syscall.EMFILE}), "host", 0},
		{&hiddenError{"hidden", os.NewSyscallError("socketpair", syscall.EMFILE)}, "host", 0},
		{unitask.ErrClosed, "closing", 10000},
		{errClosing, "closing", 10000},
		{context.Canceled, "cancelled", 0},
		{errors.New("args do not go with session"), "usage", 0},
	} {
		got := typed(row.err)
		if got.Code != row.code || got.RetryAfterMS != row.retry || got.Retryable != (row.retry > 0) ||
			got.Message != row.err.Error() || row.retry > 0 && got.Remedy == "" {
			t.Errorf("%v: %+v", row.err, got)
		}
	}
}

// With a limit of one call a minute, the next call is told to come in a minute, and is then accepted.
func TestRetryAfterRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, most := range []int{1, 30} {
			q := newQueue(4, 4, 0, most, func(int, int) {})
			for range most {
				if err := q.count("a"); err != nil {
					t.Fatal(err)
				}
			}
			got := typed(q.count("a"))
			if want := time.Minute.Milliseconds() / int64(most); got.Code != "busy" || got.RetryAfterMS < want ||
				got.RetryAfterMS > want+1 {
				t.Errorf("%d a minute: %+v", most, got)
			}
			testwait.Pass(time.Duration(got.RetryAfterMS) * time.Millisecond)
			if err := q.count("a"); err != nil {
				t.Errorf("%d a minute, %d ms later: %v", most, got.RetryAfterMS, err)
			}
		}
	})
}

// newServer returns a server in its own home, until the test ends.
func newServer(t *testing.T) *Server {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s, err := New(rt, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// A call during the server's shutdown is told to go to the next server.
func TestClosing(t *testing.T) {
	s := newServer(t)
	s.refuse()
	_, _, err := s.runCode(t.Context(), &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}},
		runArgs{Code: "1", Language: "js"})
	if got := typed(err); got.Code != "closing" || !got.Retryable {
		t.Errorf("%+v", got)
	}
}

// A remote caller's message about the end of a background command contains no path of the host.
func TestAttackEndedPaths(t *testing.T) {
	s := &Server{hider: newHider("/srv/dir", "/srv/home")}
	for via, want := range map[record.Via]string{unitask.ViaMCP: "open /srv/home/sessions/x: no space",
		unitask.ViaHTTP: "open [path]/sessions/x: no space"} {
		var out waitResult
		s.ended(unitask.Caller{Via: via}, &unitask.Result{Outcome: unitask.OutcomeFailed,
			Error: "open /srv/home/sessions/x: no space"}, &out)
		attack.Check(t, "the error of a command in the background, via "+string(via), want, out.Error)
	}
	var out waitResult
	if s.ended(unitask.Caller{}, &unitask.Result{Outcome: unitask.OutcomeExited, ExitCode: 3},
		&out); out.ExitCode == nil || *out.ExitCode != 3 {
		t.Error(out)
	}
}

// A remote caller's error about a field does not name the ceiling's file.
func TestAttackFieldErrorPaths(t *testing.T) {
	s := &Server{hider: newHider("/srv/dir", "/srv/home")}
	err := fmt.Errorf("start: %w", policy.Bad("image", "a:1", "only b:1 is allowed by /of us/(key x.toml (key images)"))
	for via, want := range map[record.Via]string{unitask.ViaMCP: err.Error(),
		unitask.ViaHTTP: "start: image a:1: only b:1 is allowed by the ceiling (key images)"} {
		attack.Check(t, "an error about a field, via "+string(via), want, s.tell(unitask.Caller{Via: via}, err).Error())
	}
}

// An unknown status is an error, not an empty list.
func TestListUnknownStatus(t *testing.T) {
	s := newServer(t)
	for status, known := range map[string]bool{"": true, "exited": true, "paused": true, "exitd": false, "EXITED": false} {
		_, _, err := s.listRuns(t.Context(), &sdk.CallToolRequest{Extra: &sdk.RequestExtra{}}, listArgs{Status: status})
		if errors.Is(err, history.ErrState) == known {
			t.Errorf("%q: %v", status, err)
		}
	}
}
