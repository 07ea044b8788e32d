package e2b

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"

	"github.com/unitask/unitask"
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
	proxy := &httputil.ReverseProxy{
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host = "http", "127.0.0.1:"+strconv.Itoa(port)
			for _, name := range []string{idHeader, portHeader, tokenHeader, trafficHeader, keyHeader, "Authorization"} {
				out.Out.Header.Del(name)
			}
			out.SetXForwarded()
		},
		Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return box.dial(ctx, port) }},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.As(err, new(*policy.FieldError)) || errors.As(err, new(*unitask.BusyError)) {
				s.fail(w, r, err)
				return
			}
			writeError(w, http.StatusBadGateway, "nothing answers on port "+strconv.Itoa(port)+" of the sandbox")
		},
	}
	proxy.ServeHTTP(w, r)
}
