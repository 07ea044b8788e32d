package failure

import (
	"context"
	"errors"
	"testing"
)

// The error of a cancelled operation names and wraps a cause that is more than a cancellation.
func TestCancelled(t *testing.T) {
	closed := errors.New("the command line has gone away")
	for cause, want := range map[error]string{nil: "cancelled", closed: "cancelled: the command line has gone away"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		err := Cancelled(ctx)
		if err.Error() != want || !errors.Is(err, context.Cause(ctx)) {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}
