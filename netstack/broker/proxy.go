package broker

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// proxy serves the requests of one connection.
type proxy struct {
	broker  *Broker
	to      Target
	up      *upstream
	reverse *httputil.ReverseProxy
	ruled   bool // some rule for the host is enforced

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	log     func(Exchange)
}

// close waits for the running requests; their contexts must have ended.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.running.Wait()
}

// overrides are header fields, folded, from which some servers take another method or path than the request's.
var overrides = []string{"x-http-method-override", "x-http-method", "x-method-override", "x-original-method",
	"x-forwarded-method",
	"x-original-url", "x-original-uri", "x-rewrite-url", "x-forwarded-uri", "x-forwarded-prefix", "x-waws-unencoded-url",
	"path-info", "script-name"}

// queryOverrides are query keys, folded, that some servers treat like overrides.
var queryOverrides = []string{"-method", "-httpmethod", "-httpheaders", "x-http-method-override"}

// folded returns a name in lower case, with a hyphen for every character that is not a letter or digit. CGI-like
// servers and PHP treat several of these characters as the same.
func folded(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'A' <= c && c <= 'Z':
			return c + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		}
		return '-'
	}, name)
}

// override returns the name of a field in overrides, or "".
func override(fields http.Header) string {
	for name := range fields {
		if slices.Contains(overrides, folded(name)) {
			return name
		}
	}
	return ""
}

// queryOverride returns a key in queryOverrides, or one that a lenient decoder of malformed queries may read as
// such, or "".
func queryOverride(query string) string {
	for pair := range strings.FieldsFuncSeq(query, func(c rune) bool { return c == '&' || c == ';' }) {
		key, _, _ := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(key)
		if err != nil {
			return key
		}
		whole, _, _ := strings.Cut(plain, "\x00")
		if slices.Contains(queryOverrides, folded(strings.TrimSpace(whole))) {
			return plain
		}
	}
	return ""
}

// ServeHTTP checks a request and sends it to the server.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.running.Add(1)
	p.mu.Unlock()
	defer p.running.Done()
	x := &exchange{Exchange: Exchange{Time: p.broker.cfg.Now().UTC(), Host: p.to.Host, Proto: r.Proto, Method: r.Method,
		Path: r.URL.EscapedPath()}, used: map[string]bool{}, streamed: map[string]bool{}}
	if r.TLS != nil {
		x.ALPN = r.TLS.NegotiatedProtocol
	}
	counting := &countingWriter{ResponseWriter: w, x: x, redact: func() redaction { return p.redaction(x, false) }}
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.Secrets, x.Redacted, x.BytesUp, x.BytesDown = slices.Sorted(maps.Keys(x.used)), x.redacted, x.up.Load(),
			x.down.Load()
		x.Exposed, x.Sent = x.exposed, x.sent.Load()
		x.DurationMs = p.broker.cfg.Now().Sub(x.Time).Milliseconds()
		if x.refused != nil {
			x.Allowed, x.Reason = false, x.refused.Error()
		}
		p.log(x.Exchange)
	}()
	if status, err := p.judge(x, r); err != nil {
		_ = x.refuse(err)
		answer(counting, status, err)
		return
	}
	if p.to.Ask != nil {
		why, err := p.to.Ask(r.Method, x.Path)
		if err != nil {
			answer(counting, http.StatusForbidden, x.refuse(err))
			return
		}
		x.Reason = cmp.Or(x.Reason, why)
	}
	counters := []*busy{&p.broker.requests, &p.broker.bodies}
	if r.ContentLength == 0 {
		counters = counters[:1]
	}
	for _, c := range counters {
		defer c.leave()
		if err := c.enter(); err != nil {
			answer(counting, http.StatusServiceUnavailable, x.refuse(err))
			return
		}
	}
	x.Allowed = true
	if !strings.EqualFold(r.Header.Get("Upgrade"), webSocket) {
		r.Header.Del("Upgrade") // a server may always ignore it (RFC 9110, 7.8)
		r.Header.Del("Http2-Settings")
	}
	counting.Header()["Content-Type"] = nil // a missing type is not guessed
	p.reverse.ServeHTTP(counting, r.WithContext(contextWith(r, x)))
}

// webSocket is the only protocol for upgrades: requests in another protocol, above all HTTP/2, would bypass the
// rules.
const webSocket = "websocket"

// judge decides whether a request is for this host, and allowed. Its error comes with the status for the guest.
func (p *proxy) judge(x *exchange, r *http.Request) (int, error) {
	if r.URL.Opaque != "" { // x:http://other/: it would be sent as http://other/
		return http.StatusBadRequest, fmt.Errorf("a request's target that is no path: %q", r.RequestURI)
	}
	host := strings.ToLower(strings.TrimSuffix(r.Host, ":"+strconv.Itoa(int(p.to.Port))))
	if strings.TrimSuffix(host, ".") != p.to.Host {
		return http.StatusMisdirectedRequest, fmt.Errorf("a request for %q on a connection to %s", r.Host, p.to.Host)
	}
	if r.Method == http.MethodConnect {
		return http.StatusForbidden, errors.New("CONNECT")
	}
	odd := cmp.Or(override(r.Header), queryOverride(r.URL.RawQuery))
	if odd == "" && r.Method != strings.ToUpper(r.Method) { // some servers treat it as upper case
		odd = "the method " + r.Method
	}
	if odd != "" && p.ruled {
		return http.StatusForbidden,
			fmt.Errorf("%s on a request to %s, for which there are rules by method and path: leave it out", odd, p.to.Host)
	}
	path := r.URL.EscapedPath()
	if r.Method == http.MethodOptions && r.URL.Path == "*" {
		path = "/"
	}
	d := decide(p.broker.cfg.Rules, p.to.Host, r.Method, path)
	x.Rule, x.Reason = d.rule, d.reason
	if odd != "" && d.rule != "" {
		x.Reason = cmp.Or(d.reason, odd+" on the request")
	}
	if !d.allowed {
		name := ""
		if d.rule != "" {
			name = fmt.Sprintf(" (%s)", d.rule)
		}
		if d.remedy != "" {
			name += ": " + strings.ReplaceAll(d.remedy, theRequest, r.Method+" "+p.to.Host+path)
		}
		return http.StatusForbidden, fmt.Errorf("%s %s%s: %s%s", r.Method, p.to.Host, path, d.reason, name)
	}
	return 0, nil
}

// refusedField marks an answer that comes from the broker and not from the server.
const refusedField = "Unitask-Refused"

// answer writes an answer of the broker itself.
func answer(w http.ResponseWriter, status int, err error) {
	text := strings.ToValidUTF8(strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return '.'
		}
		return c
	}, err.Error()), ".")
	w.Header().Set(refusedField, strconv.QuoteToASCII(text))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len("unitask: \n")+len(text)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "unitask: "+text+"\n")
}

func (p *proxy) newReverse(transport http.RoundTripper) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { p.rewrite(r) },
		Transport:      checked{transport},
		BufferPool:     &p.broker.buffers,
		FlushInterval:  -1,
		ModifyResponse: p.restore,
		ErrorHandler:   p.failed,
		ErrorLog:       silent,
	}
}

// checked sends no request that rewrite has refused.
type checked struct{ http.RoundTripper }

func (c checked) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r)
	x.mu.Lock()
	refused := x.refused
	x.mu.Unlock()
	if refused != nil {
		return nil, refused
	}
	return c.RoundTripper.RoundTrip(r)
}

// failed answers a request that could not be sent.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	x.mu.Lock()
	refused := x.refused
	x.mu.Unlock()
	var wrong *misdirected
	var signed *unsigned
	var gone *withdrawnError
	var exposed *exposedError
	switch {
	case errors.As(refused, &wrong), errors.As(refused, &signed), errors.As(refused, &gone):
		answer(w, http.StatusForbidden, refused)
	case errors.As(refused, &exposed):
		answer(w, http.StatusBadGateway, refused)
	case r.Context().Err() != nil: // the guest is gone, or the run is over
		_ = x.refuse(p.clean("given up: ", err))
		panic(http.ErrAbortHandler)
	default:
		answer(w, http.StatusBadGateway, x.refuse(p.clean(p.to.Host+" does not answer: ", err)))
	}
}

// clean redacts an error of the server's side: net/http's errors quote the server, which may return a value.
func (p *proxy) clean(before string, err error) error {
	text, _ := p.broker.redactor(p.to.Host, false, nil).all([]byte(before+err.Error()), nil)
	return errors.New(string(text))
}

// place returns the swapper for a place in a request to this host. It decides which secrets may be put there:
// TLS, the host, the place and the header field must all fit their bindings.
func (p *proxy) place(place Place, header string, written encoding) *swapper {
	key := swapperKey{written: written}
	for i := range p.broker.cfg.Secrets {
		s := &p.broker.cfg.Secrets[i]
		// Not without TLS: anyone on the network path could read the value.
		if p.to.TLS && s.boundTo(p.to.Host) && s.in(place) && (place != InHeader || s.header(header)) {
			key.put |= 1 << i
		}
	}
	return p.broker.swapper(key)
}

// printed percent-encodes everything in a query that HTTP/1 could not send: behind an HTTP/2 server there is
// often an HTTP/1 server.
func printed(query string) string {
	if strings.IndexFunc(query, func(c rune) bool { return c <= ' ' || c > '~' || c == '#' }) < 0 {
		return query
	}
	var b strings.Builder
	for _, c := range []byte(query) {
		if c <= ' ' || c > '~' || c == '#' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// rewrite puts the secrets into a request.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	x := exchangeOf(r.In)
	scheme, port := "https", p.to.Port
	if !p.to.TLS {
		scheme = "http"
	}
	out := r.Out
	// A fixed form: a server may map other spellings of the name to no site, or to another one.
	if out.Host = p.to.Host; strings.Contains(r.In.Host, ":") {
		out.Host = net.JoinHostPort(p.to.Host, strconv.Itoa(int(port)))
	}
	out.URL.Scheme, out.URL.Host = scheme, net.JoinHostPort(p.to.Host, strconv.Itoa(int(port)))
	// ReverseProxy serves as a server's front end, so it removes fields that describe other proxies.
	out.URL.RawQuery = printed(r.In.URL.RawQuery)
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[name]; ok {
			out.Header[name] = v
		}
	}
	found := func(where string) func(*pair) error {
		return func(f *pair) error {
			if f.refuse {
				return x.refuse(&misdirected{p.broker.cfg.Secrets, f.secret, p.to.Host, where, !p.to.TLS})
			}
			return p.use(x, f.secret)
		}
	}
	if len(p.broker.cfg.Secrets) == 0 {
		p.body(x, out, r.In, nil, nil)
		return
	}
	for name, values := range out.Header {
		if p.swapHeader(name, values, found("header")) != nil {
			return
		}
	}
	query, err := p.place(InQuery, "", asForm).all([]byte(out.URL.RawQuery), found("query"))
	if err != nil {
		return
	}
	out.URL.RawQuery = string(query)
	path, err := p.place(InPath, "", asPath).all([]byte(out.URL.EscapedPath()), found("path"))
	if err != nil {
		return
	}
	if plain, err := url.PathUnescape(string(path)); err == nil {
		out.URL.Path, out.URL.RawPath = plain, string(path)
	}
	if p.broker.searches(p.to.Host) {
		readable(out.Header)
	}
	body := p.place(InBody, "", bodyEncoding(r.In.Header))
	if len(x.used) > 0 || body.puts() {
		for _, name := range pieces {
			out.Header.Del(name)
		}
	}
	if p.sign(x, out, r.In) != nil {
		return
	}
	p.body(x, out, r.In, body, found("body"))
}

// use notes that a request carries a value, or returns an error if the secret was withdrawn.
func (p *proxy) use(x *exchange, secret *Secret) error {
	if err := p.broker.withdrawn(secret.Name); err != nil {
		return x.refuse(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.used[secret.Name] = true
	return nil
}

// swapHeader puts the secrets into one field.
func (p *proxy) swapHeader(name string, values []string, found func(*pair) error) error {
	s := p.place(InHeader, name, asIs)
	for i, v := range values {
		if scheme, code, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "Basic") {
			plain, err := base64.StdEncoding.DecodeString(strings.TrimSpace(code))
			if err == nil {
				swapped, err := s.all(plain, found)
				if err != nil {
					return err
				}
				values[i] = scheme + " " + base64.StdEncoding.EncodeToString(swapped)
				continue
			}
		}
		swapped, err := s.all([]byte(v), found)
		if err != nil {
			return err
		}
		values[i] = string(swapped)
	}
	return nil
}

// notInTrailer are the fields for routing and framing (RFC 9110, 6.5.1): a server that treats trailers as header
// fields must not find them.
var notInTrailer = []string{"Host", "Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Te", "Trailer"}

// body puts the secrets into a body while it is sent, and into its trailers.
func (p *proxy) body(x *exchange, out, in *http.Request, s *swapper, found func(*pair) error) {
	if out.Body == nil || out.Body == http.NoBody {
		return
	}
	if in.ProtoMajor == 2 {
		// ReverseProxy hides Close from the transport. The transport needs it to end a Read while the guest waits
		// for an answer: 417 to Expect: 100-continue.
		out.Body = in.Body
	}
	out.Body = &countingReader{out.Body, &x.up}
	routes := func(name string) bool {
		return slices.Contains(notInTrailer, name) || p.ruled && override(http.Header{name: nil}) != ""
	}
	atEOF := func() {
		for name, values := range in.Trailer {
			if routes(name) {
				delete(out.Trailer, name)
				continue
			}
			values = slices.Clone(values)
			if len(p.broker.cfg.Secrets) == 0 || p.swapHeader(name, values, found) == nil {
				out.Trailer[name] = values
			}
		}
	}
	if len(in.Trailer) == 0 {
		atEOF = func() {}
	} else {
		out.Trailer = in.Trailer.Clone()
		maps.DeleteFunc(out.Trailer, func(name string, _ []string) bool { return routes(name) })
	}
	if s == nil {
		out.Body = &eofReader{out.Body, sync.OnceFunc(atEOF)}
		return
	}
	for i := range s.pairs {
		if f := &s.pairs[i]; !f.refuse && len(f.put) != len(f.find) && out.ContentLength >= 0 {
			out.ContentLength = -1
			out.Header.Del("Content-Length")
		}
	}
	for i := range s.pairs {
		if f := &s.pairs[i]; !f.refuse {
			x.streamed[f.secret.Name] = true
		}
	}
	body := newSwapReader(out.Body, s, found, atEOF)
	if !s.puts() { // what is put in must be complete
		body.s.hurry = hurry
	}
	out.Body = body
}
