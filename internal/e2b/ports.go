package e2b

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"sync"

	"github.com/unitask/unitask"
)

// ports are the ports of a sandbox to which requests were forwarded.
type ports struct {
	mu  sync.Mutex
	all map[int]*unitask.Forward
}

// of returns the way to a port.
func (p *ports) of(session *unitask.Session, port int) (*unitask.Forward, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.all[port]; f != nil {
		return f, nil
	}
	f, err := session.Forward(port, 0)
	if err != nil {
		return nil, err
	}
	if p.all == nil {
		p.all = map[int]*unitask.Forward{}
	}
	p.all[port] = f
	return f, nil
}

func (p *ports) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.all {
		_ = f.Close()
	}
	p.all = nil
}

// forward sends a request to a port of a sandbox. The sandbox's token and the caller's own do not go with it.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, box *sandbox, port int) {
	f, err := box.ports.of(box.session, port)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(out *httputil.ProxyRequest) {
			out.Out.URL.Scheme, out.Out.URL.Host = "http", "127.0.0.1:"+strconv.Itoa(port)
			for _, name := range []string{idHeader, portHeader, tokenHeader, trafficHeader, keyHeader, "Authorization"} {
				out.Out.Header.Del(name)
			}
			out.SetXForwarded()
		},
		Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, network, f.Addr.String())
			}},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			writeError(w, http.StatusBadGateway, "nothing answers on port "+strconv.Itoa(port)+" of the sandbox")
		},
	}
	proxy.ServeHTTP(w, r)
}
