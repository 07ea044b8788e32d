// Package accepting accepts connections from a listener until it is closed. It continues when the host has no free file
// descriptor for a moment.
package accepting

import (
	"errors"
	"net"
	"time"
)

// After is the pause after a connection could not be accepted.
const After = 100 * time.Millisecond

// Next calls accept, a listener's method, until it returns a connection. It returns an error only if the listener was
// closed.
func Next[C any](accept func() (C, error)) (C, error) {
	for {
		conn, err := accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		time.Sleep(After)
	}
}
