// Package accepting takes connections from a listener until it is closed. It continues when the host has no free
// descriptor for a moment.
package accepting

import (
	"errors"
	"net"
	"time"
)

// After is how long nothing is taken after a connection could not be.
const After = 100 * time.Millisecond

// Next returns what accept, a listener's method, returns next. The error is that of a listener that was closed.
func Next[C any](accept func() (C, error)) (C, error) {
	for {
		conn, err := accept()
		if err == nil || errors.Is(err, net.ErrClosed) {
			return conn, err
		}
		time.Sleep(After)
	}
}
