package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Dial connects to a TCP port of the machine, from this process alone: nothing listens on the host. The server may
// listen on the machine's loopback. If nothing listens there, the first Read fails with syscall.ECONNREFUSED. The
// connection ends by its Close or with the session; ctx is only for Dial. Dial does not resume a paused session, which
// is an error. Data on a connection waits during a pause. The connections count with those of forwarded ports against
// MaxForwarded, and a ceiling without forwardedPorts allows none.
func (s *Session) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, policy.Bad("port", fmt.Sprint(port), "must be from 1 to 65535")
	}
	if err := s.hasCommands("connections to its ports"); err != nil {
		return nil, err
	}
	if s.limits.ForwardedPorts < 0 {
		return nil, noPorts()
	}
	done, err := s.useRunning(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial port %d: %w", port, err)
	}
	defer done()
	select {
	case s.ports.carried <- struct{}{}:
	default:
		return nil, &run.BusyError{What: fmt.Sprintf("%d connections to ports of this session are open", MaxForwarded),
			After: time.Second}
	}
	ours, theirs := net.Pipe()
	live, cancel := context.WithCancelCause(context.Background())
	d := &dialed{Conn: theirs, cancel: cancel, over: make(chan struct{})}
	go func() {
		defer close(d.over)
		defer cancel(nil)
		defer func() { <-s.ports.carried }()
		d.err = s.client.Connect(live, uint16(port), ours, func() (func(), error) {
			done, err := s.useRunning(live)
			if errors.Is(err, errPaused) { // the data waits
				return func() {}, nil
			}
			return done, err
		})
	}()
	return d, nil
}

// dialed is a connection to a port of a session's machine.
type dialed struct {
	net.Conn
	cancel context.CancelCauseFunc
	over   chan struct{} // closed when the machine's end is closed
	err    error         // why; once over
}

// Read is like the Conn's, but tells why a connection ended that was not closed in order.
func (d *dialed) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if err == io.EOF {
		if <-d.over; d.err != nil {
			err = d.err
		}
	}
	return n, err
}

// lastData is the time that the machine has for the last data of a closed connection.
const lastData = 2 * time.Second

// Close closes the connection. What was written before is still sent.
func (d *dialed) Close() error {
	err := d.Conn.Close()
	time.AfterFunc(lastData, func() { d.cancel(net.ErrClosed) })
	return err
}
