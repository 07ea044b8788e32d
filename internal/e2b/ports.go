package e2b

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/guestport"
	"github.com/unitask/unitask/policy"
)

// dial connects to a port of a sandbox that runs. It resumes a machine that is paused because nobody used it, but not a
// paused sandbox.
func (box *sandbox) dial(ctx context.Context, port int) (net.Conn, error) {
	if !box.ready() {
		return nil, errNotRunning
	}
	conn, err := box.session.Dial(ctx, port)
	if err == nil || !box.session.Paused() {
		return conn, err
	}
	box.changing.Lock() // nobody pauses the sandbox meanwhile
	defer box.changing.Unlock()
	if !box.ready() {
		return nil, errNotRunning
	}
	if err := box.session.Resume(ctx); err != nil {
		return nil, err
	}
	return box.session.Dial(ctx, port)
}

// forward sends a request to a port of a sandbox. The sandbox's token and the caller's own do not go with it.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, box *sandbox, port int) {
	proxy := &guestport.Proxy{Port: port,
		Dial: func(ctx context.Context) (net.Conn, error) { return box.dial(ctx, port) },
		Drop: []string{idHeader, portHeader, tokenHeader, trafficHeader, keyHeader, "Authorization"},
		Failed: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.As(err, new(*policy.FieldError)) || errors.As(err, new(*unitask.BusyError)) {
				s.fail(w, r, err)
				return
			}
			writeError(w, http.StatusBadGateway, "nothing answers on port "+strconv.Itoa(port)+" of the sandbox")
		},
	}
	proxy.ServeHTTP(w, r)
}
