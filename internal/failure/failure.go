// Package failure makes errors that name the host's operation that failed. All packages between the public API and the
// machines return these errors; the engine turns them into a run's outcome.
package failure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/run"
)

// Host returns a HostError, or err if it already wraps one.
func Host(op string, err error) error {
	var host *run.HostError
	if errors.As(err, &host) {
		return err
	}
	return &run.HostError{Op: op, Err: err}
}

// Failure is an error of the host and the operation that failed.
type Failure struct {
	Op  string
	Err error
}

func (f Failure) Error() string { return f.Err.Error() }

func (f Failure) Unwrap() error { return f.Err }

// At returns a Failure.
func At(op string, err error) error { return Failure{op, err} }

// Cancelled returns the error of an operation that ended with ctx. It wraps the context's cause, and names the cause
// unless it is a plain cancellation.
func Cancelled(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled {
		return cancelled{cause}
	}
	return fmt.Errorf("cancelled: %w", cause)
}

// Unread returns an error if nobody reads the output any more, as after `| head`. It returns nil if err has another
// cause.
func Unread(err error) error {
	if errors.As(err, new(*bounded.WriteError)) && (errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)) {
		return unread{err}
	}
	return nil
}

type unread struct{ error }

func (unread) Error() string { return "cancelled: nobody reads its output any more" }

func (u unread) Unwrap() error { return u.error }

type cancelled struct{ error }

func (cancelled) Error() string { return "cancelled" }

func (c cancelled) Unwrap() error { return c.error }

// ErrRetry ends a run on nanos that the engine then repeats on linux.
var ErrRetry = errors.New("the kernel lacks what the code asks for")
