// Package broker puts secrets into a guest's requests, on the host's side of its network. The guest works with a
// placeholder, and the value goes only to the hosts that it is bound to. The broker also checks requests against rules
// by method and path.
//
// For that it ends the guest's TLS with a certificate of the run's own authority, and reads HTTP/1 and HTTP/2. It opens
// its own TLS connection to the server, whose certificate it verifies. It handles only hosts with a secret or a rule
// (Concerns); no other traffic comes here. It never opens other connections, never writes a key or a value anywhere,
// and logs requests as the guest made them, with their placeholders. One exception: net/http's client writes
// unrequested data after an answer's end to the standard logger. A program with brokers must discard that (package cli
// does).
//
// A run's network (package netstack, Config.Broker) gives it connections.
package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// helloTime bounds both handshakes together: the guest's waits while the server's is made.
	helloTime = 20 * time.Second
	// headTime bounds reading the head of a request.
	headTime = 10 * time.Second
	// maxHeaders bounds a head, in bytes, on both sides; servers accept 8 to 64 KiB.
	maxHeaders = 64 << 10
	// maxStreams bounds the requests at once on one HTTP/2 connection.
	maxStreams = 100
	// maxUnread bounds the memory for one answer that the guest does not read; an HTTP/2 connection may use twice
	// that. The bounds of net/http are 4 MiB and 1 GiB.
	maxUnread = 1 << 20
	// continueTime bounds the wait for a server's 100 Continue.
	continueTime = time.Second
)

// Misdirected selects what happens to a request with a placeholder where its secret does not belong. The zero
// value refuses the request.
type Misdirected int

const (
	// Refuse answers 403 with the reason.
	Refuse Misdirected = iota
	// Pass sends the request unchanged: the placeholder is worthless. Hosts whose requests quote earlier text
	// need it.
	Pass
)

// Config configures a Broker; New copies it.
type Config struct {
	Secrets []Secret
	Rules   []Rule
	// Roots verify servers; nil means the host's.
	Roots *x509.CertPool
	// Kept, if not nil, is the state of an earlier broker (Broker.Keep), with which the same guest continues.
	Kept *Kept
	// MaxSigned bounds the validity of signed queries (X-Amz-Expires); 0 leaves it unchanged.
	MaxSigned time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Exchange is the log entry of one request. It quotes the request as the guest sent it, so it contains
// placeholders and no values.
type Exchange struct {
	Time       time.Time `json:"time"`
	Host       string    `json:"host"`
	Proto      string    `json:"proto"` // HTTP/1.1, HTTP/2.0
	ALPN       string    `json:"alpn,omitempty"`
	Method     string    `json:"method"`
	Path       string    `json:"path"`
	Allowed    bool      `json:"allowed"`
	Rule       string    `json:"rule,omitempty"`
	Reason     string    `json:"reason,omitempty"`     // why it was refused, or Audit would refuse it
	Status     int       `json:"status,omitempty"`     // as the guest saw it
	BytesUp    int64     `json:"bytesUp,omitempty"`    // of bodies
	BytesDown  int64     `json:"bytesDown,omitempty"`  // of bodies
	DurationMs int64     `json:"durationMs,omitempty"` //
	Secrets    []string  `json:"secrets,omitempty"`    // whose values were sent
	Redacted   int       `json:"redacted,omitempty"`   // how often a value was replaced in the answer
	Exposed    []string  `json:"exposed,omitempty"`    // whose values were in the answer, but not in the request
	Sent       bool      `json:"-"`                    // the server received some of it, whatever happened then
}

// Broker serves the connections of one run. Its methods may be called from any goroutine.
type Broker struct {
	cfg Config
	ca  *authority

	buffers          buffers
	requests, bodies busy
	signings         busy         // bodies being read for their signature
	ahead            atomic.Int64 // answers that are read ahead

	mu         sync.Mutex
	swappers   map[swapperKey]*swapper
	redactors  map[redactorKey]*swapper
	signatures []pair         // recent signatures made with a value, each with the guest's own
	made       int            // number of signatures made
	exposed    map[string]int // by secret name: answers with a value that their requests did not carry
}

// Kept is what a guest already has when it continues with another broker. It contains no secret values.
type Kept struct {
	Placeholders map[string]string `json:"placeholders,omitempty"` // by secret name
	Authority    []byte            `json:"authority"`              // certificate and key, in PEM
	Exposed      map[string]int    `json:"exposed,omitempty"`      // answers, by secret name
}

// Keep returns the state that the guest depends on.
func (b *Broker) Keep() (*Kept, error) {
	k := &Kept{Placeholders: map[string]string{}}
	b.mu.Lock()
	k.Exposed = maps.Clone(b.exposed)
	b.mu.Unlock()
	for _, s := range b.cfg.Secrets {
		k.Placeholders[s.Name] = s.placeholder
	}
	var err error
	k.Authority, err = b.ca.keep()
	return k, err
}

// placeholder returns the guest's placeholder for a secret, or makes a new one.
func (cfg *Config) placeholder(s *Secret, others []Secret) (string, error) {
	if cfg.Kept == nil {
		return newPlaceholder(len(s.Value), others)
	}
	switch p, known := cfg.Kept.Placeholders[s.Name]; {
	case !known:
		return "", fmt.Errorf("the guest knows no secret %q", s.Name)
	case len(p) != len(s.Value):
		return "", fmt.Errorf("secret %q had %d bytes when the guest was given its placeholder, and has %d now", s.Name,
			len(p), len(s.Value))
	default:
		return p, nil
	}
}

// New returns a broker with placeholders and an authority for the run.
func New(cfg Config) (*Broker, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Rules = slices.Clone(cfg.Rules)
	cfg.Secrets = slices.Clone(cfg.Secrets)
	if len(cfg.Secrets) > maxSecrets {
		return nil, fmt.Errorf("%d secrets, each counted for every set of places: %d can be bound to hosts",
			len(cfg.Secrets),
			maxSecrets)
	}
	var domains []string
	for i := range cfg.Rules {
		if err := cfg.Rules[i].check(); err != nil {
			return nil, err
		}
		domains = append(domains, cfg.Rules[i].Host.domain())
	}
	together := 0
	for i := range cfg.Secrets {
		s := &cfg.Secrets[i]
		if err := s.check(); err != nil {
			return nil, err
		}
		s.placeholder = ""
		var err error
		if first := slices.IndexFunc(cfg.Secrets[:i], s.same); first < 0 {
			if together += len(s.Value); together > maxSecretsTogether {
				const text = "secret %q: the secrets that are bound to hosts have more than %d bytes together"
				return nil, fmt.Errorf(text, s.Name, maxSecretsTogether)
			}
			s.placeholder, err = cfg.placeholder(s, cfg.Secrets[:i])
		} else if o := cfg.Secrets[first]; o.Value != s.Value || o.Misdirected != s.Misdirected {
			err = fmt.Errorf("secret %q is there twice, and not as the same", s.Name)
		} else {
			s.placeholder = o.placeholder
		}
		if err != nil {
			return nil, err
		}
		for _, h := range s.Hosts {
			domains = append(domains, h.domain())
		}
	}
	slices.Sort(domains)
	var ca *authority
	var err error
	if cfg.Kept != nil {
		ca, err = keptAuthority(cfg.Kept.Authority, cfg.Now)
	} else {
		ca, err = newAuthority(slices.Compact(domains), cfg.Now)
	}
	if err != nil {
		return nil, err
	}
	b := &Broker{cfg: cfg, ca: ca, swappers: map[swapperKey]*swapper{}, redactors: map[redactorKey]*swapper{},
		exposed:  map[string]int{},
		requests: busy{most: maxRequests, what: "requests"}, bodies: busy{most: maxBodies, what: "requests with bodies"},
		signings: busy{most: maxSignings, what: "signed requests whose bodies are read first"}}
	if cfg.Kept != nil {
		maps.Copy(b.exposed, cfg.Kept.Exposed)
	}
	return b, nil
}

// CA returns the certificate, in PEM, that the guest must trust.
func (b *Broker) CA() []byte { return b.ca.pem() }

// Placeholder returns the guest's placeholder for a secret; "" for an unknown secret.
func (b *Broker) Placeholder(name string) string {
	for _, s := range b.cfg.Secrets {
		if s.Name == name {
			return s.placeholder
		}
	}
	return ""
}

// Concerns reports whether the broker handles connections to a host, given in normal form.
func (b *Broker) Concerns(host string) bool {
	return slices.ContainsFunc(b.cfg.Secrets, func(s Secret) bool { return s.boundTo(host) }) ||
		slices.ContainsFunc(b.cfg.Rules, func(r Rule) bool { return r.Host.covers(host) })
}

// Ruled reports whether a rule can refuse requests to a host, given in normal form.
func (b *Broker) Ruled(host string) bool {
	return slices.ContainsFunc(b.cfg.Rules, func(r Rule) bool { return r.enforces(host) })
}

// Target is a connection's destination: a name in normal form that a network rule allows.
type Target struct {
	Host string
	Port uint16
	TLS  bool // the guest begins with a TLS hello
	// Ask, if not nil, decides whether a request that the rules allow is sent, and why: an error refuses it.
	// Nothing is dialled before, so the guest's TLS handshake completes before the server's.
	Ask func(method, path string) (why string, err error)
}

// Serve serves one connection of the guest until it ends, and closes it. dial connects to the target, at a
// checked address. It is called when the guest's hello has arrived, and again when the server has closed a
// connection between two requests. When ctx ends, both sides are closed. log receives one Exchange for each
// request when the request has ended, from several goroutines.
//
// The error explains why the connection itself failed; failed requests are only logged.
func (b *Broker) Serve(ctx context.Context, guest net.Conn, to Target, dial func(context.Context) (net.Conn, error),
	log func(Exchange)) error {
	if !b.Concerns(to.Host) {
		guest.Close()
		return fmt.Errorf("%s is not the broker's", to.Host)
	}
	ctx, cancel := context.WithCancel(ctx)
	hooked := &hookedConn{Conn: guest, closed: make(chan struct{})}
	defer hooked.Close()
	stop := context.AfterFunc(ctx, func() { hooked.Close() })
	defer stop()
	up := &upstream{ctx: ctx, broker: b, to: to, dial: dial}
	defer up.close()
	defer cancel()
	var conn net.Conn = hooked
	if to.TLS {
		timed, done := context.WithTimeout(ctx, helloTime)
		secured, err := b.handshake(timed, hooked, to, up)
		done()
		if err != nil {
			return err
		}
		conn = secured
	}
	p := &proxy{broker: b, to: to, up: up, log: log, ruled: b.Ruled(to.Host)}
	p.reverse = p.newReverse(up.transport())
	server := &http.Server{
		Handler: p, DisableGeneralOptionsHandler: true, ReadHeaderTimeout: headTime, MaxHeaderBytes: maxHeaders,
		ErrorLog:    silent,
		BaseContext: func(net.Listener) context.Context { return ctx },
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams}, Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	_ = server.Serve(&oneListener{conn: conn, closed: hooked.closed})
	cancel()
	p.close()
	return nil
}

// silent discards the messages of net/http, which quote both sides.
var silent = log.New(io.Discard, "", 0)

// GuestError is an error of Serve that quotes the guest.
type GuestError struct{ Err error }

func (e *GuestError) Error() string { return e.Err.Error() }

func (e *GuestError) Unwrap() error { return e.Err }

// handshake terminates the guest's TLS. The server's handshake happens between the guest's hello and our answer.
// So a server with an invalid certificate fails the guest's handshake, and both sides speak the same HTTP
// version.
func (b *Broker) handshake(ctx context.Context, guest net.Conn, to Target, up *upstream) (*tls.Conn, error) {
	var refused error
	conn := tls.Server(guest, &tls.Config{MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if name := strings.ToLower(hello.ServerName); name != to.Host {
				refused = &GuestError{fmt.Errorf("TLS for %q on a connection to %s", name, to.Host)}
				return nil, refused
			}
			begin := up.begin
			if to.Ask != nil {
				begin = up.beginLater
			}
			proto, err := begin(ctx, hello.SupportedProtos)
			if err != nil {
				refused = err
				return nil, err
			}
			leaf, err := b.ca.leaf(to.Host)
			if err != nil {
				refused = err
				return nil, err
			}
			cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*leaf},
				SessionTicketsDisabled: true}
			if proto != "" {
				cfg.NextProtos = []string{proto}
			}
			return cfg, nil
		}})
	if err := conn.HandshakeContext(ctx); err != nil {
		if refused != nil {
			return nil, refused
		}
		return nil, &GuestError{fmt.Errorf("the guest's TLS: %w", err)}
	}
	return conn, nil
}

var errListenerDone = errors.New("the connection has ended")

// oneListener is a listener for one connection.
type oneListener struct {
	mu     sync.Mutex
	conn   net.Conn
	closed <-chan struct{}
}

func (l *oneListener) Accept() (net.Conn, error) {
	l.mu.Lock()
	conn := l.conn
	l.conn = nil
	l.mu.Unlock()
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, errListenerDone
}

func (l *oneListener) Close() error   { return nil }
func (l *oneListener) Addr() net.Addr { return &net.TCPAddr{} }
