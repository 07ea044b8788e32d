package accepting_test

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/accepting"
)

// A temporary shortage of the host is waited for; the end of the listener ends the wait.
func TestNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
		answers := []error{full, full, nil, full, &net.OpError{Op: "accept", Err: net.ErrClosed}}
		taken := 0
		accept := func() (int, error) {
			err := answers[taken]
			taken++
			return taken, err
		}
		begin := time.Now()
		if n, err := accepting.Next(accept); n != 3 || err != nil || time.Since(begin) != 2*accepting.After {
			t.Errorf("%d %v after %s", n, err, time.Since(begin))
		}
		if _, err := accepting.Next(accept); !errors.Is(err, net.ErrClosed) || taken != 5 {
			t.Errorf("%d %v", taken, err)
		}
	})
}
