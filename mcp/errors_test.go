package mcp

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

func TestTyped(t *testing.T) {
	for _, row := range []struct {
		err   error
		code  string
		retry int64 // ms; 0 is no use
	}{
		{&policy.FieldError{Field: "image", Value: "pyton", Reason: "is none"}, "usage", 0},
		{fmt.Errorf("call: %w", &unitask.BusyError{What: "full", After: 3 * time.Second}), "busy", 3000},
		{&LimitError{"queue", 3, "full"}, "busy", 1000},
		{&hiddenError{"hidden", &unitask.SessionError{ID: "x", Why: "it was closed"}}, "session.gone", 0},
		{fmt.Errorf("session x: %w", errNoSession), "session.gone", 0},
		{record.ErrNotFound, "run.gone", 0},
		{&unitask.JailError{}, "jail", 0},
		{&unitask.GuestError{Reason: "panic"}, "guest", 0},
		{fmt.Errorf("read /x: %w", syscall.ENOENT), "file", 0},
		{&unitask.HostError{Op: "boot", Err: errors.New("no QEMU")}, "host", 0},
		{unitask.ErrClosed, "closing", 10000},
		{context.Canceled, "cancelled", 0},
		{errors.New("args do not go with session"), "usage", 0},
	} {
		got := typed(row.err)
		if got.Code != row.code || got.RetryAfterMS != row.retry || got.Retryable != (row.retry > 0) || got.Message != row.err.Error() || row.retry > 0 && got.Remedy == "" {
			t.Errorf("%v: %+v", row.err, got)
		}
	}
}
