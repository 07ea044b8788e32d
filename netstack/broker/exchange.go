package broker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
)

// misdirected is the error for a placeholder where its secret does not belong.
type misdirected struct {
	secrets []Secret // of the run
	secret  *Secret
	host    string
	where   string
	clear   bool // the request is not sent over TLS
}

func (m *misdirected) Error() string {
	var bound []string
	for _, s := range m.secrets {
		if s.same(*m.secret) {
			bound = append(bound, s.bound())
		}
	}
	text := fmt.Sprintf("the placeholder of %s is in the %s of a request to %s; the secret is for %s", m.secret.Name,
		m.where, m.host, strings.Join(bound, "; "))
	if m.clear {
		text += ", and by TLS only"
	}
	return text + ": --secret " + m.secret.Name +
		"@HOST:PLACE binds it to other hosts and places, and with pass its placeholder goes out as it is"
}

// bound describes the hosts and places of a secret.
func (s *Secret) bound() string {
	var hosts, places []string
	for _, h := range s.Hosts {
		hosts = append(hosts, string(h))
	}
	for _, p := range []Place{InHeader, InQuery, InPath, InBody, InSigV4} {
		switch {
		case p == InHeader && s.in(p) && len(s.Headers) > 0:
			places = append(places, "header "+strings.Join(s.Headers, " or "))
		case s.in(p):
			places = append(places, string(p))
		}
	}
	return strings.Join(hosts, ", ") + " in " + strings.Join(places, ", ")
}

// exchange is one current request.
type exchange struct {
	Exchange
	up, down atomic.Int64
	sent     atomic.Bool // it has a connection to the server

	mu       sync.Mutex
	refused  error           // why it was not sent, or not completely
	used     map[string]bool // by secret name: whose values were sent
	streamed map[string]bool // whose values the body may still contain
	signed   *pair           // its signature that was made with a value, or nil
	redacted int
	exposed  []string // whose values the answer had and the request did not
}

func (x *exchange) refuse(err error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.refused == nil {
		x.refused = err
	}
	return err
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// early returns why the answer was refused before its head: an informational head contained a value.
func (x *exchange) early() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.exposed) > 0 {
		return x.refused
	}
	return nil
}

// countingWriter counts bytes, and redacts the informational heads before the answer.
type countingWriter struct {
	http.ResponseWriter
	x      *exchange
	redact func() redaction
}

func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *countingWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.x.Status = status
	} else if w.redact().header(w.Header()) != nil {
		clear(w.Header())
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p)
	w.x.down.Add(int64(n))
	return n, err
}

type countingReader struct {
	io.ReadCloser
	n *atomic.Int64
}

func (r *countingReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// eofReader calls end before it reports its end.
type eofReader struct {
	io.ReadCloser
	end func()
}

func (r *eofReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err == io.EOF {
		r.end()
	}
	return n, err
}

type readCloser struct {
	io.Reader
	io.Closer
}

func contextWith(r *http.Request, x *exchange) context.Context {
	ctx := httptrace.WithClientTrace(r.Context(),
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { x.sent.Store(true) }})
	return context.WithValue(ctx, exchangeKey{}, x)
}
