package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/guestport"
	"github.com/unitask/unitask/policy"
)

// secretHeaders are headers of requests that a machine does not get, beside those that guestport drops.
var secretHeaders = []string{"X-Api-Key", "X-Access-Token", "E2b-Traffic-Access-Token", "E2b-Sandbox-Id",
	"E2b-Sandbox-Port", "Mcp-Session-Id", "Idempotency-Key"}

// port sends a request to a port of a session's machine.
func (s *Server) port(c *call) (*answer, error) {
	of, err := s.session(c)
	if err != nil {
		return nil, err
	}
	if upgrade := c.r.Header.Get("Upgrade"); upgrade != "" && !strings.EqualFold(upgrade, "websocket") {
		return nil, wrong(http.StatusBadRequest, "ports take WebSockets, and no other upgrade")
	}
	port := int(c.number("port", 0))
	if c.r.Body != nil && c.r.Body != http.NoBody {
		c.r.Body = newUpload(c, maxUpload)
	}
	proxy := &guestport.Proxy{Port: port, Drop: secretHeaders,
		Prefix: fmt.Sprintf("/v1/sessions/%s/ports/%d/", of.ID, port),
		Dial:   func(ctx context.Context) (net.Conn, error) { return dial(ctx, of, port) },
		Failed: func(w http.ResponseWriter, _ *http.Request, err error) {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			writeProblem(w, s.portProblem(c, port, err))
		}}
	c.w.Header().Del("X-Content-Type-Options") // answers have their own
	proxy.ServeHTTP(c.w, c.r)
	return nil, nil
}

// dial connects to a port of a session's machine, which it resumes if it is paused.
func dial(ctx context.Context, of *unitask.Session, port int) (net.Conn, error) {
	conn, err := of.Dial(ctx, port)
	if err == nil || !of.Paused() {
		return conn, err
	}
	if err := of.Resume(ctx); err != nil {
		return nil, err
	}
	return of.Dial(ctx, port)
}

// portProblem returns the problem of a request that no server in the machine has answered.
func (s *Server) portProblem(c *call, port int, err error) *Problem {
	if errors.As(err, new(*policy.FieldError)) || errors.As(err, new(*unitask.BusyError)) ||
		errors.As(err, new(*unitask.SessionError)) {
		return problemOf(s.shared.Hide(c.caller, err))
	}
	if errors.As(err, new(*http.MaxBytesError)) {
		return problemOf(uploaded(err))
	}
	return &Problem{Status: http.StatusBadGateway, Code: "port", Retryable: true,
		Detail: fmt.Sprintf("no HTTP server answers on port %d of the machine", port),
		Remedy: "start one there that listens on 127.0.0.1 or 0.0.0.0"}
}
