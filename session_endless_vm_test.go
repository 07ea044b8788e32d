package unitask_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
)

// A command without a time limit keeps its session from neither a pause nor a fork, and continues after them.
func TestSessionEndless(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	over := make(chan error, 2)
	next := func(what string, from chan string) (text string) {
		t.Helper()
		select {
		case text = <-from:
		case err := <-over:
			t.Fatalf("%s: a command has ended: %v", what, err)
		case <-time.After(time.Minute):
			t.Fatalf("%s: nothing is printed", what)
		}
		return text
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ticks := execEndless(t, s, over, unitask.Command{Args: []string{"sh", "-c", "while :; do echo x; sleep 0.1; done"}})
	next("the start", ticks)
	from, to := io.Pipe()
	echoed := execEndless(t, s, over, unitask.Command{Args: []string{"cat"}, Stdin: from})
	say := func(what string) {
		t.Helper()
		_, err := io.WriteString(to, what)
		must(err)
		if got := next(what, echoed); got != what {
			t.Errorf("%q instead of %q", got, what)
		}
	}
	say("hello")
	pauseSession(t, s)
	for len(ticks) > 0 {
		<-ticks
	}
	if !s.Paused() {
		t.Fatal("it is not paused")
	}
	must(s.Resume(t.Context()))
	next("after the pause", ticks)

	forks, err := s.Fork(t.Context(), 1)
	must(err)
	res, err := forks[0].Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "cat /proc/[0-9]*/cmdline"}})
	if err != nil || !strings.Contains(string(res.Stdout), "while :; do echo x") {
		t.Errorf("in the fork: %+v %v", res, err)
	}
	must(forks[0].Close())
	for len(ticks) > 0 {
		<-ticks
	}
	next("after the fork", ticks)

	pauseSession(t, s)
	say("input")
	if s.Paused() {
		t.Error("input was read, and the session is paused")
	}
	pauseSession(t, s)
	must(s.Leave())
	for range 2 {
		if err := <-over; !errors.As(err, new(*unitask.SessionError)) {
			t.Errorf("after its session: %v", err)
		}
	}
}

// execEndless runs a command, and returns what it prints.
func execEndless(t *testing.T, s *unitask.Session, over chan error, c unitask.Command) (printed chan string) {
	printed = make(chan string, 10_000)
	c.Endless, c.Stdout = true, writerFunc(func(p []byte) (int, error) {
		printed <- string(p)
		return len(p), nil
	})
	go func() {
		_, err := s.Exec(t.Context(), c)
		over <- err
	}()
	return printed
}

// pauseSession pauses a session whose last input or output may still be in transit.
func pauseSession(t *testing.T, s *unitask.Session) {
	t.Helper()
	err := s.Pause(t.Context())
	for errors.As(err, new(*unitask.BusyError)) {
		err = s.Pause(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A command without bounds gives its caller everything, and its record what the session's bound allows.
func TestSessionUnbounded(t *testing.T) {
	needVM(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell", OutputBytes: 1 << 20}})
	for _, row := range []struct {
		unbounded bool
		want      int
	}{{true, 20 << 20}, {false, 1 << 20}} {
		got, last := 0, ""
		res, err := s.Exec(t.Context(), unitask.Command{Endless: true, Unbounded: row.unbounded, ResultBytes: 8,
			Args: []string{"sh", "-c", "yes | head -c 20971515; echo last"},
			Stdout: writerFunc(func(p []byte) (int, error) {
				got += len(p)
				last = string(p[max(0, len(p)-5):])
				return len(p), nil
			})})
		if err != nil || got != row.want || !res.Truncated || string(res.Stdout) != "y\ny\ny\ny\n" ||
			row.unbounded != strings.HasSuffix(last, "last\n") {
			t.Fatalf("unbounded %t: %d bytes, the end %q, %+v, %v", row.unbounded, got, last, res, err)
		}
		in, err := rt.History().Inspect(res.RunID, 2<<20)
		if err != nil || len(in.Stdout) != 1<<20 {
			t.Errorf("the record has %d bytes, %v", len(in.Stdout), err)
		}
	}
}
