// Package failure makes errors that name the host's operation that failed. Everything between the front door and the
// machines returns these errors; the engine turns them into a run's outcome.
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

// Host returns a HostError, or err if it wraps one.
func Host(op string, err error) error {
	var host *run.HostError
	if errors.As(err, &host) {
		return err
	}
	return &run.HostError{Op: op, Err: err}
}

// Failure is an error of the host, with what it did.
type Failure struct {
	Op  string
	Err error
}

func (f Failure) Error() string { return f.Err.Error() }

func (f Failure) Unwrap() error { return f.Err }

// At returns a Failure.
func At(op string, err error) error { return Failure{op, err} }

// Cancelled returns the error of what ended with ctx. It wraps the context's cause, and names it if it is more than
// that somebody cancelled.
func Cancelled(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == context.Canceled {
		return cancelled{cause}
	}
	return fmt.Errorf("cancelled: %w", cause)
}

// Unread returns the error of what ended since nobody reads its output any more, as after `| head`; nil if err is
// another one.
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

// ErrRetry ends a run on nanos that is made again on linux.
var ErrRetry = errors.New("the kernel lacks what the code asks for")
