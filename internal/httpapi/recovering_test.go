package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
)

// A panic becomes an error, and is in the log.
func TestRecovering(t *testing.T) {
	s := &Server{log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	var told error
	res, err := s.recovering(func() (*unitask.Result, error) { panic("a mistake") }, func(err error) { told = err })
	if res != nil || !errors.Is(err, errPanic) || !errors.Is(told, errPanic) {
		t.Errorf("%v %v %v", res, err, told)
	}
}

// A caller's many events leave other callers theirs.
func TestAttackEventsRoom(t *testing.T) {
	var ps progresses
	run := func(caller string, n, bytes int) {
		p := newProgress(caller, context.CancelFunc(func() {}))
		p.add("stdout", make([]byte, bytes))
		p.end(n)
		p.ended = time.Now().Add(time.Duration(n) * time.Millisecond)
		ps.add(fmt.Sprint(caller, n), p)
	}
	run("alice", 0, 1000)
	for n := range 3 * maxFinished {
		run("mallory", n+1, keptBytes/2)
	}
	attack.Check(t, "the events of another caller's run beside many", "kept", map[bool]string{true: "kept",
		false: "gone"}[ps.find("alice0", "alice") != nil])
	bytes := 0
	for _, p := range ps.all {
		bytes += p.bytes
	}
	attack.Check(t, "the events of one caller's many runs", "bounded", map[bool]string{true: "bounded",
		false: fmt.Sprint(bytes)}[bytes <= callerBytes+keptBytes])
}
