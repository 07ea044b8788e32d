package broker

import (
	"compress/gzip"
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

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
	log     func(Exchange)
}

// close waits for the requests that run; their contexts must have ended.
func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.running.Wait()
}

// overrides are fields by which some servers take another method or path than the
// request's.
var overrides = []string{"X-Http-Method-Override", "X-Http-Method", "X-Method-Override", "X-Original-Url", "X-Rewrite-Url"}

// ServeHTTP judges a request and sends it on.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.running.Add(1)
	p.mu.Unlock()
	defer p.running.Done()
	x := &exchange{Exchange: Exchange{Time: p.broker.cfg.Now().UTC(), Host: p.to.Host, Proto: r.Proto, Method: r.Method, Path: r.URL.EscapedPath()}, used: map[string]bool{}}
	counting := &countingWriter{ResponseWriter: w, x: x, redact: p.broker.redactor}
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.Secrets, x.Redacted, x.BytesUp, x.BytesDown = slices.Sorted(maps.Keys(x.used)), x.redacted, x.up.Load(), x.down.Load()
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
	x.Allowed = true
	counting.Header()["Content-Type"] = nil // what the server does not say is not guessed
	p.reverse.ServeHTTP(counting, r.WithContext(contextWith(r, x)))
}

// judge says whether a request is for this host, and allowed.
func (p *proxy) judge(x *exchange, r *http.Request) (int, error) {
	host := strings.ToLower(strings.TrimSuffix(r.Host, ":"+strconv.Itoa(int(p.to.Port))))
	if strings.TrimSuffix(host, ".") != p.to.Host {
		return http.StatusMisdirectedRequest, fmt.Errorf("a request for %q on a connection to %s", r.Host, p.to.Host)
	}
	if r.Method == http.MethodConnect {
		return http.StatusForbidden, errors.New("CONNECT")
	}
	if slices.ContainsFunc(p.broker.cfg.Rules, func(rule Rule) bool { return rule.Host.covers(p.to.Host) }) {
		for _, name := range overrides {
			if len(r.Header[name]) > 0 {
				return http.StatusForbidden, fmt.Errorf("%s on a request to %s, for which there are rules by method and path", name, p.to.Host)
			}
		}
	}
	path := r.URL.EscapedPath()
	if r.Method == http.MethodOptions && r.URL.Path == "*" {
		path = "/"
	}
	d := decide(p.broker.cfg.Rules, p.to.Host, r.Method, path)
	x.Rule, x.Reason = d.rule, d.reason
	if !d.allowed {
		name := ""
		if d.rule != "" {
			name = fmt.Sprintf(" (rule %q)", d.rule)
		}
		return http.StatusForbidden, fmt.Errorf("%s %s%s: %s%s", r.Method, p.to.Host, path, d.reason, name)
	}
	return 0, nil
}

// refusedField marks an answer that is ours and not the server's.
const refusedField = "Unitask-Refused"

// answer is one of our own.
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
		FlushInterval:  -1,
		ModifyResponse: p.restore,
		ErrorHandler:   p.failed,
		ErrorLog:       silent,
	}
}

// checked sends nothing that rewrite has refused.
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

// failed answers what could not be sent.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	x.mu.Lock()
	refused := x.refused
	x.mu.Unlock()
	var wrong *misdirected
	switch {
	case errors.As(refused, &wrong):
		answer(w, http.StatusForbidden, refused)
	case r.Context().Err() != nil: // the guest is gone, or the run is over
		_ = x.refuse(fmt.Errorf("given up: %w", err))
		panic(http.ErrAbortHandler)
	default:
		answer(w, http.StatusBadGateway, x.refuse(fmt.Errorf("%s does not answer: %w", p.to.Host, err)))
	}
}

// place returns the swapper for a place in a request to this host.
func (p *proxy) place(place Place, header string, written encoding) *swapper {
	key := swapperKey{written: written}
	for i := range p.broker.cfg.Secrets {
		s := &p.broker.cfg.Secrets[i]
		// Not in the clear: whoever is on the way would read it.
		if p.to.TLS && s.boundTo(p.to.Host) && s.in(place) && (place != InHeader || s.header(header)) {
			key.put |= 1 << i
		}
	}
	return p.broker.swapper(key)
}

// rewrite puts the secrets into a request.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	x := exchangeOf(r.In)
	scheme, port := "https", p.to.Port
	if !p.to.TLS {
		scheme = "http"
	}
	out := r.Out
	out.Host = r.In.Host
	out.URL.Scheme, out.URL.Host = scheme, net.JoinHostPort(p.to.Host, strconv.Itoa(int(port)))
	// ReverseProxy is one for servers, and takes away what says who else is on the way.
	out.URL.RawQuery = r.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v, ok := r.In.Header[name]; ok {
			out.Header[name] = v
		}
	}
	found := func(where string) func(*pair) error {
		return func(f *pair) error {
			if f.refuse {
				return x.refuse(&misdirected{f.secret, p.to.Host, where})
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.used[f.secret.Name] = true
			return nil
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
	out.Header.Set("Accept-Encoding", "identity") // an answer must be readable for values in it
	out.Header.Del("Sec-Websocket-Extensions")    // compression among them
	p.body(x, out, r.In, p.place(InBody, "", bodyEncoding(r.In.Header)), found("body"))
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

// body has the secrets put into a body while it is sent, and into its trailers.
func (p *proxy) body(x *exchange, out, in *http.Request, s *swapper, found func(*pair) error) {
	if out.Body == nil || out.Body == http.NoBody {
		return
	}
	if in.ProtoMajor == 2 {
		// ReverseProxy hides Close from the transport, which needs it to end a Read that
		// waits for a guest that waits for the answer: 417 to Expect: 100-continue.
		out.Body = in.Body
	}
	out.Body = &countingReader{out.Body, &x.up}
	atEOF := func() {
		for name, values := range in.Trailer {
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
	out.Body = newSwapReader(out.Body, s, found, atEOF)
}

// restore puts placeholders back in place of values in an answer.
func (p *proxy) restore(res *http.Response) error {
	x := exchangeOf(res.Request)
	if p.broker.redactor == nil {
		return nil
	}
	x.redactHeader(res.Header, p.broker.redactor)
	if res.StatusCode == http.StatusSwitchingProtocols || res.Body == nil || res.Body == http.NoBody {
		return nil
	}
	switch coding := strings.ToLower(strings.TrimSpace(res.Header.Get("Content-Encoding"))); {
	case res.Request.Method == http.MethodHead:
		return nil
	case coding == "" || coding == "identity":
	case coding == "gzip" || coding == "x-gzip":
		unpacked, err := gzip.NewReader(res.Body)
		if err != nil {
			return fmt.Errorf("a gzip body: %w", err)
		}
		res.Body = &readCloser{unpacked, res.Body}
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	default:
		return fmt.Errorf("Content-Encoding %q, where identity was asked for", coding)
	}
	if p.broker.resizes {
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	}
	res.Body = newSwapReader(res.Body, p.broker.redactor, x.count, func() { x.redactHeader(res.Trailer, p.broker.redactor) })
	return nil
}
