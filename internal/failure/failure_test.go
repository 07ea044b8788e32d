package failure

import (
	"context"
	"errors"
	"testing"
)

// The error of what was cancelled names a cause that says more than that, and wraps it.
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
