package mcp

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/hostname"
	"github.com/unitask/unitask/vmm"
)

// HTTPOptions configure a server over streamable HTTP.
type HTTPOptions struct {
	// Addr is HOST:PORT to listen on. Anything but a loopback address needs Auth.
	Addr string
	// Auth identifies callers by their tokens. nil admits the user of this process, identified by the user at the
	// other end of a connection, on systems that report it (NeedsToken).
	Auth *Auth
	// Anyone admits every user of this machine if Auth is nil.
	Anyone bool
	// TLS, if not nil, is the server's side of TLS.
	TLS *tls.Config
	// Hosts are host names, without a port, that requests may name in addition to the address itself and, on
	// loopback, localhost. If Auth is set and Hosts is empty, any host is allowed.
	Hosts []string
	// Origins are web origins that may call: "https://app.example.com". If it is empty, only the server's own
	// may.
	Origins []string
	// Stateless keeps no sessions, even for clients of older revisions, so that any server behind a load balancer
	// can answer any request. Streams can't be resumed.
	Stateless bool
	// MetricsToken is the token for readers of /metrics. Without it, they must be processes of the server's own user,
	// on a loopback address. The numbers cover all callers, so no caller's token allows reading them.
	MetricsToken string
	// Drain bounds how long current runs may take when the server closes; 0 means 30 s.
	Drain time.Duration
	// APIs are served at the same address, beside MCP. The first one that serves a request gets it.
	APIs []API
}

// Limits of the HTTP side.
const (
	sessionIdle  = 30 * time.Minute // a session of an older revision
	headerTime   = 10 * time.Second
	idleTime     = 2 * time.Minute // of a caller's connection; a stranger's has strangerTime
	bodyTime     = time.Minute
	headerBytes  = 64 << 10
	bodyBytes    = 16 << 20
	defaultDrain = 30 * time.Second
)

// path is the URL path of MCP.
const endpoint = "/mcp"

// Handler serves MCP at /mcp, and also /healthz, /metrics and the protected-resource metadata (RFC 9728). A
// program that serves it with another server than ServeHTTP must bound its connections.
func (s *Server) Handler(opts HTTPOptions) (http.Handler, error) {
	if err := opts.Check(); err != nil {
		return nil, err
	}
	server := func(*http.Request) *sdk.Server { return s.sdk }
	one := &sdk.StreamableHTTPOptions{Stateless: true, Logger: s.opts.Log, MaxRequestBodyBytes: bodyBytes,
		PropagateRequestCancellation: true, DisableLocalhostProtection: true} // ours is stricter
	many := *one
	if !opts.Stateless {
		many.Stateless, many.EventStore, many.SessionTimeout = false, newEvents(eventBytes, callerEventBytes, callerIn),
			sessionIdle
	}
	if opts.several() {
		s.queue.share()
	}
	mcp := s.bounded(s.byRevision(sdk.NewStreamableHTTPHandler(server, one),
		s.counted(opts.Stateless, sdk.NewStreamableHTTPHandler(server, &many))))
	var protect func(guard, http.Handler) http.Handler
	mux := http.NewServeMux()
	if opts.Auth != nil {
		metadata := ""
		if m := opts.Auth.resource; m != nil {
			metadata = m.url
			mux.Handle("/.well-known/oauth-protected-resource", auth.ProtectedResourceMetadataHandler(m.doc))
			mux.Handle("/.well-known/oauth-protected-resource"+endpoint, auth.ProtectedResourceMetadataHandler(m.doc))
		}
		bearer := auth.RequireBearerToken(opts.Auth.verify,
			&auth.RequireBearerTokenOptions{ResourceMetadataURL: metadata, AllowMissingExpiration: opts.Auth.tokens != nil})
		protect = func(g guard, h http.Handler) http.Handler { return g(oneToken(bearer(s.introduced(h)))) }
	} else {
		protect = func(g guard, h http.Handler) http.Handler { return g(peers(opts.Anyone, s.introduced(h))) }
	}
	mux.Handle(endpoint, protect(opts.guard, mcp))
	mux.Handle("/metrics", opts.guard(oneToken(opts.metricsReader(s.metrics.handler()))))
	mux.Handle("/healthz", opts.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !s.accepts() {
			http.Error(w, "going down", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})))
	return steadily(s.apis(&opts, protect, mux), stallTime), nil
}

// metricsReader admits only requests that may read the metrics.
func (o *HTTPOptions) metricsReader(next http.Handler) http.Handler {
	host, _, _ := net.SplitHostPort(o.Addr)
	want := sha256.Sum256([]byte("Bearer " + o.MetricsToken))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got := sha256.Sum256([]byte(r.Header.Get("Authorization")))
		switch {
		case o.MetricsToken != "" && subtle.ConstantTimeCompare(got[:], want[:]) == 0:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "give the token of --metrics-token", http.StatusUnauthorized)
			return
		case o.MetricsToken == "" && !isLoopback(host):
			http.Error(w, "nobody reads the metrics here: --metrics-token has a token for them", http.StatusForbidden)
			return
		case o.MetricsToken == "":
			if _, err := peerName(r, false); err != nil {
				http.Error(w, "only the server's own user reads the metrics, or who has the token of --metrics-token: "+err.Error(),
					http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// several reports whether there may be several callers.
func (o *HTTPOptions) several() bool {
	return o.Anyone || o.Auth != nil && len(o.Auth.tokens) != 1
}

// counted bounds the sessions of a caller: a POST without a session begins one.
func (s *Server) counted(none bool, sessions http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if none || r.Method != http.MethodPost || r.Header.Get("Mcp-Session-Id") != "" {
			sessions.ServeHTTP(w, r)
			return
		}
		began, err := s.visitors.newSession(callerOf(r), func() map[string]bool {
			live := map[string]bool{}
			for session := range s.sdk.Sessions() {
				live[session.ID()] = true
			}
			return live
		})
		if err != nil {
			s.tooMany(w, err)
			return
		}
		defer func() { began(w.Header().Get("Mcp-Session-Id")) }()
		sessions.ServeHTTP(w, r)
	})
}

// Check returns an error if the options are invalid.
func (o *HTTPOptions) Check() error {
	host, _, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return fmt.Errorf("address %q: use HOST:PORT", o.Addr)
	}
	if o.Auth == nil && !isLoopback(host) {
		return fmt.Errorf("address %s can be reached by others: give --token-file or --jwks, or listen on 127.0.0.1", o.Addr)
	}
	if o.Auth != nil && o.Anyone {
		return errors.New("either tokens or anyone: --loopback-anyone does not go with --token-file and --jwks")
	}
	if o.NeedsToken() {
		return errors.New(
			"this system does not tell which user holds the other end of a connection: " +
				"give --token-file or --jwks, or let everybody on this machine in with --loopback-anyone")
	}
	for _, origin := range o.Origins {
		if u, err := url.Parse(origin); err != nil || u.Scheme == "" || u.Host == "" || u.Path != "" {
			return fmt.Errorf("origin %q: use SCHEME://HOST[:PORT]", origin)
		}
	}
	return nil
}

// oneToken refuses a request with several tokens, or one that is not plain text: a proxy before us may have read
// it differently.
func oneToken(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers := r.Header.Values("Authorization")
		if len(headers) > 1 {
			http.Error(w, "more than one Authorization header", http.StatusBadRequest)
			return
		}
		if len(headers) == 1 && strings.ContainsFunc(headers[0], func(c rune) bool { return c < ' ' || c > '~' }) {
			http.Error(w, "the Authorization header has other characters than printable ASCII", http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isLoopback(host string) bool {
	addr, _ := netip.ParseAddr(strings.Trim(host, "[]")) // the zero Addr if it is a name
	return hostname.Loopback(strings.ToLower(host), addr)
}

// requireJail makes every run require all layers and limits of QEMU's jail that this host supports, and warns
// about the others.
func (s *Server) requireJail(ctx context.Context) error {
	jail, err := s.rt.Jail(ctx)
	if err != nil {
		return fmt.Errorf("find out what holds machines here, which others could reach: %w", err)
	}
	s.require = nil
	for _, l := range slices.Concat(jail.Layers, jail.Limits) {
		if l.Holds {
			s.require = append(s.require, l.Name)
		} else {
			s.opts.Log.Warn("a layer of the jail does not hold", "layer", l.Name, "why", l.Why, "remedy", vmm.Remedy(l))
		}
	}
	return nil
}

// exposed are the headers of answers that web pages of other origins may read.
const exposed = "Mcp-Session-Id, WWW-Authenticate, Location, Retry-After, Idempotency-Replayed, Content-Range"

// guard refuses requests for another host, and requests from a web page of another origin. A name that changes its
// address can lead a browser here.
func (o *HTTPOptions) guard(next http.Handler) http.Handler {
	return o.guardFor(func(string) bool { return false }, func(*http.Request) bool { return false }, next)
}

// foreign reports whether a page of another site has a browser send a request that names no origin, for a picture or a
// frame. Following a link is not that. Programs do not send these headers.
func foreign(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	link := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return len(r.Header.Values("Origin")) == 0 && (site == "cross-site" || site == "same-site") && !link
}

// guardFor is guard that allows further hosts, and requests for pictures and frames from pages of other sites.
func (o *HTTPOptions) guardFor(allows func(host string) bool, embeds func(*http.Request) bool,
	next http.Handler) http.Handler {
	own, _, _ := net.SplitHostPort(o.Addr)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.Trim(host, "[]")
		known := strings.EqualFold(host, own) || isLoopback(own) && isLoopback(host) ||
			slices.ContainsFunc(o.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) ||
			o.Auth != nil && len(o.Hosts) == 0 && !isLoopback(own) || allows(host)
		if !known {
			http.Error(w, "this server is not "+host+": --allow-host adds names", http.StatusForbidden)
			return
		}
		if o.Auth == nil && foreign(r) && !allows(host) && !embeds(r) { // nobody needs a token
			http.Error(w, "requests of web pages of other sites are refused", http.StatusForbidden)
			return
		}
		if origins := r.Header.Values("Origin"); len(origins) > 0 {
			u, err := url.Parse(origins[0])
			ours := err == nil && len(origins) == 1 && u.Host != "" && strings.EqualFold(u.Host, r.Host)
			if !ours && !(len(origins) == 1 && slices.Contains(o.Origins, origins[0])) {
				http.Error(w, "requests of web pages of this origin are refused: --allow-origin adds one", http.StatusForbidden)
				return
			}
			if !ours {
				w.Header().Set("Access-Control-Allow-Origin", origins[0])
				w.Header().Set("Access-Control-Expose-Headers", exposed)
				w.Header().Set("Vary", "Origin")
				if r.Method == http.MethodOptions {
					w.Header().Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
					w.Header().Set("Access-Control-Allow-Headers",
						"Authorization, Content-Type, Last-Event-ID, Idempotency-Key, Range, "+
							"Mcp-Session-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name")
					w.WriteHeader(http.StatusNoContent)
					return
				}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// byRevision sends a request to the handler of its revision: 2026-07-28 has no sessions, earlier ones begin one
// with initialize.
func (s *Server) byRevision(stateless2026, sessions http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if session := r.Header.Get("Mcp-Session-Id"); r.Method == http.MethodDelete &&
			session != "" { // the SDK waits for calls
			s.sessions.end(session, callerOf(r))
		}
		if r.Method != http.MethodPost {
			r.Header.Del(leaseHeader)
			sessions.ServeHTTP(w, r)
			return
		}
		l, over := s.openLease(r)
		defer over()
		body := s.readBody(w, r, l)
		if body == nil {
			return
		}
		itself := newer(body) // it names its revision itself
		r.Body = &onceReader{body}
		version := r.Header.Get("Mcp-Protocol-Version")
		switch {
		case r.Header.Get("Mcp-Session-Id") != "", version != "" && version < stateless &&
			slices.Contains(sdk.SupportedProtocolVersions(), version):
			sessions.ServeHTTP(w, r)
			return
		case version != "":
			stateless2026.ServeHTTP(w, r)
			return
		}
		if itself {
			stateless2026.ServeHTTP(w, r)
			return
		}
		sessions.ServeHTTP(w, r)
	})
}

// ServeHTTP serves until ctx ends, then lets the current runs end, for at most opts.Drain. listening is called with the
// address.
func (s *Server) ServeHTTP(ctx context.Context, opts HTTPOptions, listening func(net.Addr)) error {
	handler, err := s.Handler(opts)
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", opts.Addr)
	if err != nil {
		return err
	}
	if at, ok := l.Addr().(*net.TCPAddr); opts.Auth == nil && (!ok || !at.IP.IsLoopback()) {
		l.Close()
		return fmt.Errorf(
			"address %s leads to %s, which others can reach: give --token-file or --jwks, or listen on 127.0.0.1", opts.Addr,
			l.Addr())
	}
	if at, ok := l.Addr().(*net.TCPAddr); !ok || !at.IP.IsLoopback() {
		if err := s.requireJail(ctx); err != nil {
			l.Close()
			return err
		}
	}
	l = listener{l, newDoors()}
	if opts.TLS != nil {
		l = tls.NewListener(l, opts.TLS)
	}
	hs := &http.Server{Handler: handler, ReadHeaderTimeout: headerTime, MaxHeaderBytes: headerBytes, IdleTimeout: idleTime,
		ConnState:   noteState,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return withDoor(withPeer(ctx, c), c) }}
	listening(l.Addr())
	failed := make(chan error, 1)
	go func() { failed <- hs.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	s.refuse()
	if opts.Drain == 0 {
		opts.Drain = defaultDrain
	}
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), opts.Drain)
	defer cancel()
	s.drain(timed)
	s.Close()
	short, cancelShort := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // session streams stay open
	defer cancelShort()
	if err := hs.Shutdown(short); errors.Is(err, context.DeadlineExceeded) {
		return hs.Close()
	}
	return nil
}

// drain waits until no run is in progress, or ctx ends.
func (s *Server) drain(ctx context.Context) {
	idle := make(chan struct{})
	go func() {
		s.runs.Wait()
		close(idle)
	}()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
