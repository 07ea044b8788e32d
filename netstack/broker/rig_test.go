package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testcert"
	"github.com/unitask/unitask/internal/testwait"
)

const (
	host  = "api.example.com"
	key   = "sk-live/+4f9a?&=\"<é>0123456789abcdef" // every encoding writes it differently
	plain = "ghp_0123456789abcdefghijklmnopqrstuvwx"
)

// origin is a real server behind the broker, with its own CA.
type origin struct {
	server *httptest.Server
	roots  *x509.CertPool

	mu       sync.Mutex
	requests []string // heads as received, and bodies
}

type originConfig struct {
	names   []string
	expired bool
	http1   bool
}

func newOrigin(t testing.TB, cfg originConfig, handler http.HandlerFunc) *origin {
	t.Helper()
	if cfg.names == nil {
		cfg.names = []string{host}
	}
	cert := testcert.For(t, cfg.names...)
	if cfg.expired {
		cert = testcert.Until(t, time.Now().Add(-time.Hour), cfg.names...)
	}
	o := &origin{roots: testcert.Roots(cert)}
	o.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.requests = append(o.requests, r.Proto+" "+r.Method+" "+r.Host+r.RequestURI)
		o.mu.Unlock()
		handler(w, r)
	}))
	o.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	o.server.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	o.server.EnableHTTP2 = !cfg.http1
	o.server.StartTLS()
	t.Cleanup(o.server.Close)
	return o
}

func (o *origin) got() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.requests...)
}

// rig is a guest's connection to an origin.
type rig struct {
	*Broker
	t      testing.TB
	origin *origin
	to     Target
	ctx    context.Context
	served sync.WaitGroup

	mu     sync.Mutex
	log    []Exchange
	errs   []error
	dialed int
}

func newRig(t testing.TB, o *origin, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t, origin: o, to: Target{Host: host, Port: 443, TLS: true}}
	cfg.Roots = o.roots
	var err error
	if r.Broker, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); r.served.Wait() })
	return r
}

// dial opens a new connection of the guest.
func (r *rig) dial() (net.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	server, err := l.Accept()
	if err != nil {
		return nil, err
	}
	r.served.Go(func() {
		err := r.Serve(r.ctx, server, r.to, func(ctx context.Context) (net.Conn, error) {
			r.mu.Lock()
			r.dialed++
			r.mu.Unlock()
			var d net.Dialer
			return d.DialContext(ctx, "tcp", r.origin.server.Listener.Addr().String())
		}, func(x Exchange) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.log = append(r.log, x)
		})
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	})
	return client, nil
}

// client returns the guest's client, which trusts only the run's CA.
func (r *rig) client(h2 bool) *http.Client {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(r.CA()) {
		r.t.Fatal("the CA is no certificate")
	}
	tr := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return r.dial() },
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: h2, DisableCompression: true,
		ExpectContinueTimeout: 5 * time.Second,
	}
	if !h2 {
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// last returns the last request of the log, which has at least one.
func (r *rig) last() Exchange { return r.logged(1) }

// logged returns the last request once the log has n of them: the log may be later than the guest's answer.
func (r *rig) logged(n int) Exchange {
	var last Exchange
	testwait.Until(r.t, fmt.Sprintf("%d requests are logged", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.log) < n {
			return false
		}
		last = r.log[len(r.log)-1]
		return true
	})
	return last
}

func do(t testing.TB, c *http.Client, method, at string, header http.Header, body string) (*http.Response, string) {
	t.Helper()
	var from io.Reader
	if body != "" {
		from = strings.NewReader(body)
	}
	req, err := http.NewRequest(method, at, from)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, at, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, at, err)
	}
	return res, string(text)
}

func both(t *testing.T, test func(t *testing.T, h2 bool)) {
	for name, h2 := range map[string]bool{"HTTP 1": false, "HTTP 2": true} {
		t.Run(name, func(t *testing.T) { test(t, h2) })
	}
}

// seen is a request as an origin received it.
type seen struct {
	URL     string
	Header  http.Header
	Body    string
	Trailer http.Header
	Length  int64
	Count   int // of requests until now
}

// recorder keeps its input, and returns nothing of it.
func recorder(t testing.TB, cfg originConfig) (*origin, func() seen) {
	var mu sync.Mutex
	var last seen
	o := newOrigin(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil { // cancelled in its middle
			return
		}
		mu.Lock()
		defer mu.Unlock()
		last = seen{r.RequestURI, r.Header.Clone(), string(body), r.Trailer.Clone(), r.ContentLength, last.Count + 1}
		fmt.Fprint(w, "ok")
	})
	return o, func() seen {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

var everywhere = []Place{InHeader, InQuery, InPath, InBody}
