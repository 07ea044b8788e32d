package broker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	host  = "api.example.com"
	key   = "sk-live/+4f9a?&=\"<é>0123456789abcdef" // every encoding writes it in another way
	plain = "ghp_0123456789abcdefghijklmnopqrstuvwx"
)

// origin is a real server behind the broker, with a CA of its own.
type origin struct {
	server *httptest.Server
	roots  *x509.CertPool

	mu       sync.Mutex
	requests []string // heads as they came, and bodies
}

type originConfig struct {
	names   []string
	expired bool
	http1   bool
}

func newOrigin(t testing.TB, cfg originConfig, handler http.HandlerFunc) *origin {
	t.Helper()
	o := &origin{roots: x509.NewCertPool()}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.names == nil {
		cfg.names = []string{host}
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: cfg.names, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	if cfg.expired {
		template.NotAfter = time.Now().Add(-time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	o.roots.AddCert(cert)
	o.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.requests = append(o.requests, r.Proto+" "+r.Method+" "+r.Host+r.RequestURI)
		o.mu.Unlock()
		handler(w, r)
	}))
	o.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	o.server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: private}}}
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

// rig is a guest's way to an origin.
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

// dial is a new connection of the guest.
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

// client is the guest's, which trusts the run's CA alone.
func (r *rig) client(h2 bool) *http.Client {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(r.CA()) {
		r.t.Fatal("the CA is no certificate")
	}
	tr := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return r.dial() },
		TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: h2, DisableCompression: true, ExpectContinueTimeout: 5 * time.Second,
	}
	if !h2 {
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	r.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// last is the last request of the log, which has at least one.
func (r *rig) last() Exchange { return r.logged(1) }

// logged is the last request once so many are in the log: they come there after the guest
// has its answer.
func (r *rig) logged(n int) Exchange {
	for range 30_000 {
		r.mu.Lock()
		if have := len(r.log); have >= n {
			x := r.log[have-1]
			r.mu.Unlock()
			return x
		}
		r.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	r.t.Fatal("nothing was logged")
	return Exchange{}
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

// seen is what an origin saw of a request.
type seen struct {
	URL     string
	Header  http.Header
	Body    string
	Trailer http.Header
	Length  int64
	Count   int // of requests until now
}

// recorder keeps what it sees, and answers nothing of it.
func recorder(t testing.TB, cfg originConfig) (*origin, func() seen) {
	var mu sync.Mutex
	var last seen
	o := newOrigin(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil { // given up in its middle
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

// The value is where the placeholder was, written as it must be there.
func TestPutIn(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, saw := recorder(t, originConfig{})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}, In: everywhere}, {Name: "TOKEN", Value: plain, Hosts: []Host{"*.example.com"}, In: everywhere}}})
		c, p, q := r.client(h2), r.Placeholder("KEY"), r.Placeholder("TOKEN")
		if len(p) != len(key) || len(q) != len(plain) || p == q || r.Placeholder("none") != "" {
			t.Fatalf("placeholders %q %q", p, q)
		}
		at := "https://" + host
		do(t, c, "GET", at+"/v1/"+p+"/x?a=1&key="+p+"&t="+q, http.Header{"Authorization": {"Bearer " + p}, "X-Two": {q + " and " + p, "none"}, "Cookie": {"s=" + q}}, "")
		s := saw()
		if s.URL != "/v1/"+url.PathEscape(key)+"/x?a=1&key="+url.QueryEscape(key)+"&t="+plain || s.Header.Get("Authorization") != "Bearer "+key ||
			s.Header["X-Two"][0] != plain+" and "+key || s.Header["X-Two"][1] != "none" || s.Header.Get("Cookie") != "s="+plain {
			t.Errorf("%+v", s)
		}
		if x := r.last(); !x.Allowed || strings.Join(x.Secrets, " ") != "KEY TOKEN" || x.Status != 200 || strings.Contains(fmt.Sprint(x), plain) || x.Path != "/v1/"+p+"/x" {
			t.Errorf("%+v", x)
		}
		basic := func(s string) http.Header {
			return http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(s))}}
		}
		do(t, c, "GET", at+"/", basic("user:"+p), "")
		if got := saw().Header.Get("Authorization"); got != basic("user:"+key).Get("Authorization") {
			t.Errorf("Basic: %q", got)
		}
		for kind, want := range map[string]string{
			"application/json":                  `{"key":"` + string(jsonText(key)) + `","t":"` + plain + `"}`,
			"application/vnd.api+json; x=1":     `{"key":"` + string(jsonText(key)) + `","t":"` + plain + `"}`,
			"application/x-www-form-urlencoded": `{"key":"` + url.QueryEscape(key) + `","t":"` + plain + `"}`,
			"text/plain":                        `{"key":"` + key + `","t":"` + plain + `"}`,
		} {
			do(t, c, "POST", at+"/", http.Header{"Content-Type": {kind}}, `{"key":"`+p+`","t":"`+q+`"}`)
			if s := saw(); s.Body != want || s.Length >= 0 && s.Length != int64(len(want)) {
				t.Errorf("%s: %q (%d), want %q", kind, s.Body, s.Length, want)
			}
		}
		// A value that is written as it is keeps the body's length known.
		one := newRig(t, o, Config{Secrets: []Secret{{Name: "TOKEN", Value: plain, Hosts: []Host{host}, In: []Place{InBody}}}})
		body := strings.Repeat("x", 100_000) + one.Placeholder("TOKEN")
		do(t, one.client(h2), "POST", at+"/", nil, body)
		if s := saw(); s.Length != int64(len(body)) || !strings.HasSuffix(s.Body, plain) {
			t.Errorf("length %d of %d", s.Length, len(body))
		}
	})
}

// Trailers are swapped, and reach the other side.
func TestTrailers(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		var got http.Header
		o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Answer")
			_, _ = io.Copy(io.Discard, r.Body)
			got = r.Trailer.Clone()
			fmt.Fprint(w, "body")
			w.Header().Set("X-Answer", "the key is "+plain)
		})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "TOKEN", Value: plain, Hosts: []Host{host}}}})
		req, _ := http.NewRequest("POST", "https://"+host+"/", io.NopCloser(strings.NewReader("body")))
		req.Trailer = http.Header{"X-Token": {r.Placeholder("TOKEN")}}
		res, err := r.client(h2).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.ReadAll(res.Body)
		res.Body.Close()
		if got.Get("X-Token") != plain {
			t.Errorf("the server has %v", got)
		}
		if v := res.Trailer.Get("X-Answer"); v != "the key is "+r.Placeholder("TOKEN") {
			t.Errorf("the guest has %q", v)
		}
	})
}

// Where a secret is not put, its placeholder is refused in words, and the connection
// goes on.
func TestMisdirected(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, saw := recorder(t, originConfig{})
		secrets := []Secret{{Name: "MINE", Value: plain, Hosts: []Host{host}, Headers: []string{"authorization"}}, {Name: "OTHERS", Value: key, Hosts: []Host{"other.example.com"}, In: everywhere}}
		r := newRig(t, o, Config{Secrets: secrets})
		c, at := r.client(h2), "https://"+host+"/"
		mine, others := r.Placeholder("MINE"), r.Placeholder("OTHERS")
		long := strings.Repeat("x", 300_000)
		for name, q := range map[string]struct {
			method, at string
			header     http.Header
			body, want string
		}{
			"in another field":           {"GET", at, http.Header{"X-Key": {mine}}, "", "MINE is in the header"},
			"in the query":               {"GET", at + "?k=" + mine, nil, "", "MINE is in the query"},
			"in the path":                {"GET", at + mine, nil, "", "MINE is in the path"},
			"in the body":                {"POST", at, nil, "k=" + mine, "MINE is in the body"},
			"at the end of a long body":  {"POST", at, nil, long + mine, "MINE is in the body"},
			"another host's":             {"GET", at, http.Header{"Authorization": {"Bearer " + others}}, "", "OTHERS is in the header of a request to " + host + "; the secret is for other.example.com"},
			"another host's, Basic":      {"GET", at, http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+others))}}, "", "OTHERS is in the header"},
			"in base64":                  {"POST", at, nil, `{"x":"` + base64.StdEncoding.EncodeToString([]byte("a"+others+"b")) + `"}`, "OTHERS is in the body"},
			"in base64 for URLs":         {"GET", at + "?x=" + base64.RawURLEncoding.EncodeToString([]byte("ab"+others)), nil, "", "OTHERS is in the query"},
			"in hexadecimal":             {"POST", at, nil, hex.EncodeToString([]byte(others)), "OTHERS is in the body"},
			"in hexadecimal, upper case": {"POST", at, nil, fmt.Sprintf("%X", others), "OTHERS is in the body"},
		} {
			before := saw().Count
			res, text := do(t, c, q.method, q.at, q.header, q.body)
			if res.StatusCode != http.StatusForbidden || !strings.Contains(text, q.want) || res.Header.Get(refusedField) == "" {
				t.Errorf("%s: %d %q", name, res.StatusCode, text)
			}
			if saw().Count != before {
				t.Errorf("%s: reached the server", name)
			}
		}
		if s := saw(); strings.Contains(fmt.Sprint(s), plain) || strings.Contains(fmt.Sprint(s), mine) {
			t.Errorf("the server has %+v", s)
		}
		if res, _ := do(t, c, "GET", at, http.Header{"Authorization": {"Bearer " + mine}}, ""); res.StatusCode != 200 || saw().Header.Get("Authorization") != "Bearer "+plain {
			t.Errorf("afterwards: %d", res.StatusCode)
		}
		// By Pass it goes out as it is, and is worth nothing.
		secrets[1].Misdirected = Pass
		r = newRig(t, o, Config{Secrets: secrets})
		p := r.Placeholder("OTHERS")
		if res, _ := do(t, r.client(h2), "POST", at, nil, "quoting "+p); res.StatusCode != 200 || saw().Body != "quoting "+p {
			t.Errorf("passed: %d %q", res.StatusCode, saw().Body)
		}
	})
}

// A secret that goes to several hosts in different places is one placeholder, and each host
// gets it in its own places alone.
func TestPlacesByHost(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, saw := recorder(t, originConfig{})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}, In: []Place{InQuery}}, {Name: "KEY", Value: plain, Hosts: []Host{"*.example.com"}, In: []Place{InHeader}, Headers: []string{"x-key"}},
			{Name: "KEY", Value: plain, Hosts: []Host{"other.example"}, In: []Place{InBody}}, {Name: "TOKEN", Value: key, Hosts: []Host{"other.example"}, Misdirected: Pass}}})
		c, p, q := r.client(h2), r.Placeholder("KEY"), r.Placeholder("TOKEN")
		at := "https://" + host + "/"
		do(t, c, "POST", at+"?k="+p, http.Header{"X-Key": {p}}, "quoting "+q)
		if s := saw(); s.URL != "/?k="+plain || s.Header.Get("X-Key") != plain || s.Body != "quoting "+q {
			t.Errorf("%+v", s)
		}
		for name, a := range map[string]struct {
			at, body string
			header   http.Header
		}{
			"in another host's place": {at, "k=" + p, nil}, "in the path": {at + p, "", nil}, "in another field": {at, "", http.Header{"Authorization": {"Bearer " + p}}},
		} {
			res, text := do(t, c, "POST", a.at, a.header, a.body)
			if res.StatusCode != 403 || !strings.Contains(text, host+" in query; *.example.com in header x-key; other.example in body") {
				t.Errorf("%s: %d %s", name, res.StatusCode, text)
			}
		}
		if x := r.logged(4); x.Allowed || x.Status != 403 || !strings.Contains(x.Reason, "the placeholder of KEY") || strings.Contains(x.Reason, p) {
			t.Errorf("%+v", x)
		}
	})
	for _, second := range []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}, {Name: "KEY", Value: plain, Hosts: []Host{host}, Misdirected: Pass}} {
		if _, err := New(Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}, second}}); err == nil || !strings.Contains(err.Error(), `"KEY" is there twice`) {
			t.Errorf("%+v: %v", second, err)
		}
	}
}

// An origin that gives back what it was sent, in every way, gives back placeholders.
func TestEcho(t *testing.T) {
	value := key
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		got := r.Header.Get("X-Key")
		if got != value {
			http.Error(w, "the value did not come", 500)
			return
		}
		switch r.URL.Path {
		case "/body":
			fmt.Fprintf(w, "<%s>", got)
		case "/header":
			w.Header().Set("X-Echo", got)
		case "/split":
			for _, c := range []byte(got) {
				_, _ = w.Write([]byte{c})
				_ = http.NewResponseController(w).Flush()
			}
		case "/base64":
			for before := range 4 {
				fmt.Fprintln(w, base64.StdEncoding.EncodeToString([]byte(strings.Repeat("a", before)+got+"b")), base64.RawURLEncoding.EncodeToString([]byte(strings.Repeat("a", before)+got)))
			}
		case "/hex":
			fmt.Fprintf(w, "%x %X", got, got)
		case "/json":
			_ = json.NewEncoder(w).Encode(map[string]string{"key": got})
		case "/percent":
			fmt.Fprintln(w, url.QueryEscape(got), url.PathEscape(got), strings.ToLower(url.QueryEscape(got)))
		case "/gzip":
			if r.Header.Get("Accept-Encoding") != "identity" {
				http.Error(w, "asked for "+r.Header.Get("Accept-Encoding"), 500)
			}
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprintf(z, "<%s>", got)
			z.Close()
		case "/early":
			w.Header().Set("Link", got)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("Link")
			fmt.Fprint(w, "<>")
		case "/redirect":
			w.Header().Set("Location", "https://elsewhere.example/?k="+url.QueryEscape(got))
			w.WriteHeader(http.StatusFound)
		}
	})
	both(t, func(t *testing.T, h2 bool) {
		for _, v := range []string{key, plain} {
			value = v
			r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: v, Hosts: []Host{host}}}})
			c := r.client(h2)
			for i, path := range []string{"/body", "/header", "/split", "/base64", "/hex", "/json", "/percent", "/gzip", "/early", "/redirect"} {
				all := ""
				trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error { all += fmt.Sprint(h); return nil }}
				req, _ := http.NewRequestWithContext(httptrace.WithClientTrace(t.Context(), trace), "GET", "https://"+host+path, nil)
				req.Header.Set("X-Key", r.Placeholder("KEY"))
				req.Header.Set("Accept-Encoding", "gzip, br")
				res, err := c.Do(req)
				if err != nil {
					t.Fatal(path, err)
				}
				body, err := io.ReadAll(res.Body)
				if err != nil {
					t.Fatal(path, err)
				}
				res.Body.Close()
				all += fmt.Sprint(res.Header) + string(body)
				if res.StatusCode >= 400 || len(all) < 20 {
					t.Errorf("%s: %d %q", path, res.StatusCode, all)
				}
				if r.logged(i+1).Redacted == 0 {
					t.Errorf("%s: nothing was found in %q", path, all)
				}
				middle := v[3 : len(v)-3] // base64 keeps what it shares with its neighbours
				for form, text := range map[string]string{"as it is": v, "hex": hex.EncodeToString([]byte(v)), "HEX": fmt.Sprintf("%X", v), "query": url.QueryEscape(v), "path": url.PathEscape(v), "JSON": string(jsonText(v)),
					"base64 0": base64.RawStdEncoding.EncodeToString([]byte(middle))[:8], "base64 1": base64.RawStdEncoding.EncodeToString([]byte(v[4:]))[:8], "base64 2": base64.RawStdEncoding.EncodeToString([]byte(v[5:]))[:8]} {
					if strings.Contains(all, text) {
						t.Errorf("%s: the value is there, %s: %q", path, form, all)
					}
				}
			}
		}
	})
}

// What can't be read is not passed on.
func TestEncodedAnswer(t *testing.T) {
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "br")
		fmt.Fprint(w, "no one can tell what this is")
	})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}}})
	if res, text := do(t, r.client(true), "GET", "https://"+host+"/", nil, ""); res.StatusCode != http.StatusBadGateway || !strings.Contains(text, `Content-Encoding "br"`) {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	// Without a secret it is nobody's matter.
	r = newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	if res, text := do(t, r.client(true), "GET", "https://"+host+"/", nil, ""); res.StatusCode != 200 || !strings.HasPrefix(text, "no one") {
		t.Errorf("%d %q", res.StatusCode, text)
	}
}

func TestRules(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		o, _ := recorder(t, originConfig{})
		r := newRig(t, o, Config{Rules: []Rule{{Name: "read", Host: host, Methods: []string{"GET"}, Path: "/repos/acme/*"}, {Name: "no hooks", Host: host, Path: "/repos/acme/hooks", Deny: true}}})
		c, at := r.client(h2), "https://"+host
		for _, q := range []struct {
			method, path string
			header       http.Header
			status       int
			text         string
		}{
			{"GET", "/repos/acme/x", nil, 200, "ok"},
			{"HEAD", "/repos/acme/x", nil, 200, ""},
			{"GET", "/repos/acme/x?page=2", nil, 200, "ok"},
			{"POST", "/repos/acme/x", nil, 403, "POST api.example.com/repos/acme/x: no rule allows this method and path (read)"},
			{"GET", "/repos/other/x", nil, 403, "no rule allows"},
			{"GET", "/repos/acme/hooks", nil, 403, "the rule denies it (no hooks)"},
			{"GET", "/repos/acme/%68ooks", nil, 403, "the rule denies it"},
			{"GET", "/repos/acme/..%2fother", nil, 403, "which servers read in different ways"},
			{"GET", "/repos/acme/x", http.Header{"X-Http-Method-Override": {"DELETE"}}, 403, "X-Http-Method-Override"},
			{"GET", "/repos/acme/x", http.Header{"X-Original-Url": {"/admin"}}, 403, "X-Original-Url"},
		} {
			before := len(o.got())
			res, text := do(t, c, q.method, at+q.path, q.header, "")
			if res.StatusCode != q.status || !strings.Contains(text, q.text) {
				t.Errorf("%s %s: %d %q", q.method, q.path, res.StatusCode, text)
			}
			if reached := len(o.got()) > before; reached != (q.status == 200) {
				t.Errorf("%s %s: reached the server: %v", q.method, q.path, reached)
			}
		}
		// Host is the connection's, in HTTP/2 too.
		req, _ := http.NewRequest("GET", at+"/repos/acme/x", nil)
		req.Host = "front.example.com"
		res, err := c.Do(req)
		if err != nil || res.StatusCode != http.StatusMisdirectedRequest {
			t.Fatalf("%v %v", res, err)
		}
		res.Body.Close()
	})
}

// A server whose certificate is not good fails the guest's handshake, as without us.
func TestServerCertificate(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  originConfig
		want string
	}{
		"expired":        {originConfig{expired: true}, "expired"},
		"for other name": {originConfig{names: []string{"other.example.com"}}, "not " + host},
	} {
		o := newOrigin(t, c.cfg, func(http.ResponseWriter, *http.Request) {})
		r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
		if _, err := r.client(true).Get("https://" + host + "/"); err == nil || !strings.Contains(err.Error(), "tls:") {
			t.Errorf("%s: %v", name, err)
		}
		r.served.Wait()
		if r.errs[0] == nil || !strings.Contains(r.errs[0].Error(), c.want) || len(o.got()) != 0 {
			t.Errorf("%s: %v, %v", name, r.errs[0], o.got())
		}
	}
	o := newOrigin(t, originConfig{}, func(http.ResponseWriter, *http.Request) {})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	r.cfg.Roots = x509.NewCertPool() // nobody vouches for it
	if _, err := r.client(false).Get("https://" + host + "/"); err == nil {
		t.Error("an unknown CA is trusted")
	}
}

func TestHandshakes(t *testing.T) {
	o, _ := recorder(t, originConfig{})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}, {Name: "below", Host: "*.wild.example"}}})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	for name, c := range map[string]struct {
		cfg   *tls.Config
		proto string
		fails bool
	}{
		"without ALPN":      {&tls.Config{ServerName: host}, "", false},
		"TLS 1.2":           {&tls.Config{ServerName: host, MaxVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, "http/1.1", false},
		"HTTP/2":            {&tls.Config{ServerName: host, NextProtos: []string{"h2", "http/1.1"}}, "h2", false},
		"HTTP/1 and others": {&tls.Config{ServerName: host, NextProtos: []string{"acme", "http/1.1"}}, "http/1.1", false},
		"nothing we speak":  {&tls.Config{ServerName: host, NextProtos: []string{"imap"}}, "", true},
		"another name":      {&tls.Config{ServerName: "a.wild.example"}, "", true},
		"no name":           {&tls.Config{InsecureSkipVerify: true}, "", true},
		"TLS 1.1":           {&tls.Config{ServerName: host, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "", true},
	} {
		c.cfg.RootCAs = roots
		conn, err := r.dial()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		secured := tls.Client(conn, c.cfg)
		err = secured.Handshake()
		if (err != nil) != c.fails || secured.ConnectionState().NegotiatedProtocol != c.proto {
			t.Errorf("%s: %v, %q", name, err, secured.ConnectionState().NegotiatedProtocol)
		}
		if err == nil && c.proto != "h2" {
			fmt.Fprintf(secured, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
			if answer, err := io.ReadAll(secured); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
				t.Errorf("%s: %q %v", name, answer, err)
			}
		}
		conn.Close()
	}
	// The CA is good for its hosts and nothing else.
	for name, good := range map[string]bool{host: true, "x.wild.example": true, "evil.example": false, "example.com": false} {
		leaf, err := r.ca.leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(leaf.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
	}
	if conn, err := r.dial(); err != nil {
		t.Fatal(err)
	} else { // a hello in pieces of one byte
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if err := tls.Client(slowly{conn}, &tls.Config{ServerName: host, RootCAs: roots}).Handshake(); err != nil {
			t.Error(err)
		}
		conn.Close()
	}
}

type slowly struct{ net.Conn }

func (s slowly) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := s.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// A server without HTTP/2 makes the guest speak HTTP/1 too.
func TestHTTP1Server(t *testing.T) {
	o, saw := recorder(t, originConfig{http1: true})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}}})
	res, _ := do(t, r.client(true), "GET", "https://"+host+"/", http.Header{"Authorization": {r.Placeholder("KEY")}}, "")
	if res.ProtoMajor != 1 || saw().Header.Get("Authorization") != key {
		t.Errorf("%s %+v", res.Proto, saw())
	}
}

// Without TLS rules hold, and no value goes out.
func TestInTheClear(t *testing.T) {
	plainServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Host, r.Header["Authorization"]) }))
	defer plainServer.Close()
	o := &origin{server: plainServer}
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}}, Rules: []Rule{{Name: "get", Host: host, Methods: []string{"GET"}}}})
	r.to = Target{Host: host, Port: 80}
	c := r.client(false)
	if res, text := do(t, c, "GET", "http://"+host+"/", nil, ""); res.StatusCode != 200 || text != host+"[]" {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	if res, text := do(t, c, "PUT", "http://"+host+"/", nil, ""); res.StatusCode != 403 {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	if res, text := do(t, c, "GET", "http://"+host+"/", http.Header{"Authorization": {r.Placeholder("KEY")}}, ""); res.StatusCode != 403 || !strings.Contains(text, "KEY is in the header") {
		t.Errorf("%d %q", res.StatusCode, text)
	}
}

// What programs use: events that come at once, 100 Continue, WebSocket, a large body
// both ways, many at once, HEAD, an answer without a body.
func TestProtocols(t *testing.T) {
	release := make(chan struct{})
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: first\n\n")
			_ = http.NewResponseController(w).Flush()
			<-release
			fmt.Fprint(w, "data: second\n\n")
		case "/digest":
			h := sha256.New()
			n, _ := io.Copy(h, r.Body)
			fmt.Fprintf(w, "%d %x", n, h.Sum(nil))
		case "/large":
			b := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
			for range 1 << 8 {
				_, _ = w.Write(b)
			}
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		case "/refuses":
			http.Error(w, "no", http.StatusExpectationFailed)
		case "/upgrade":
			if r.Header.Get("X-Key") != plain || r.Header.Get("Sec-Websocket-Extensions") != "" {
				http.Error(w, "no", 400)
				return
			}
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Echo: "+plain+"\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(conn, rw)
		}
	})
	secrets := []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}, In: everywhere}}
	both(t, func(t *testing.T, h2 bool) {
		r := newRig(t, o, Config{Secrets: secrets})
		c, at := r.client(h2), "https://"+host
		release = make(chan struct{})
		res, err := c.Get(at + "/events")
		if err != nil {
			t.Fatal(err)
		}
		events := bufio.NewReader(res.Body)
		if first, err := events.ReadString('\n'); err != nil || first != "data: first\n" {
			t.Errorf("%q %v", first, err)
		}
		close(release)
		rest, _ := io.ReadAll(events)
		res.Body.Close()
		if string(rest) != "\ndata: second\n\n" || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%q %v", rest, res.Header)
		}
		body := strings.Repeat("0123456789abcdef", 1<<20)
		if _, text := do(t, c, "POST", at+"/digest", http.Header{"Expect": {"100-continue"}}, body); text != fmt.Sprintf("%d %x", len(body), sha256.Sum256([]byte(body))) {
			t.Errorf("%q", text)
		}
		if res, _ := do(t, c, "POST", at+"/refuses", http.Header{"Expect": {"100-continue"}}, body); res.StatusCode != http.StatusExpectationFailed {
			t.Errorf("%d", res.StatusCode)
		}
		if _, text := do(t, c, "GET", at+"/large", nil, ""); len(text) != 1<<24 {
			t.Errorf("%d bytes", len(text))
		}
		if res, text := do(t, c, "GET", at+"/none", nil, ""); res.StatusCode != 204 || text != "" || res.Header.Get("Content-Type") != "" {
			t.Errorf("%d %q", res.StatusCode, text)
		}
		var group sync.WaitGroup
		for i := range 50 {
			group.Go(func() {
				want := fmt.Sprint(i)
				if _, text := do(t, c, "POST", at+"/digest", nil, want); text != fmt.Sprintf("%d %x", len(want), sha256.Sum256([]byte(want))) {
					t.Errorf("%d: %q", i, text)
				}
			})
		}
		group.Wait()
	})
	r := newRig(t, o, Config{Secrets: secrets})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	conn, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	secured := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"http/1.1"}})
	_ = secured.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(secured, "GET /upgrade HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\nX-Key: %s\r\n\r\n", host, r.Placeholder("KEY"))
	in := bufio.NewReader(secured)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 101 || res.Header.Get("X-Echo") != r.Placeholder("KEY") {
		t.Fatalf("%v %v", res, err)
	}
	_, _ = io.WriteString(secured, "\x81\x85mask!")
	echo := make([]byte, 7)
	if _, err := io.ReadFull(in, echo); err != nil || string(echo) != "\x81\x85mask!" {
		t.Errorf("%q %v", echo, err)
	}
	secured.Close()
	r.served.Wait() // the end of the guest is the end of it all
}

// A guest that gives up is the end of the request at the server, on one connection
// thousands follow each other, and nothing is left when all is over.
func TestEnds(t *testing.T) {
	runtime.GC()
	before := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		both(t, func(t *testing.T, h2 bool) {
			begun, ended := make(chan struct{}, 1), make(chan struct{})
			o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/" {
					return
				}
				_, _ = io.WriteString(w, "begun")
				_ = http.NewResponseController(w).Flush()
				begun <- struct{}{}
				<-r.Context().Done()
				close(ended)
			})
			r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
			c := r.client(h2)
			for range 300 {
				if res, _ := do(t, c, "GET", "https://"+host+"/", nil, ""); res.StatusCode != 200 {
					t.Fatal(res.Status)
				}
			}
			if r.dialed != 1 {
				t.Errorf("%d connections to the server", r.dialed)
			}
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "GET", "https://"+host+"/wait", nil)
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			<-begun
			cancel()
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Error("the server was not told")
			}
			res.Body.Close()
		})
	})
	for i := 0; runtime.NumGoroutine() > before && i < 200; i++ {
		time.Sleep(10 * time.Millisecond)
	}
	if now := runtime.NumGoroutine(); now > before {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before\n%s", now, before, buf[:runtime.Stack(buf, true)])
	}
}

// The end of the run ends what is under way, on both sides.
func TestCancelled(t *testing.T) {
	begun := make(chan struct{}, 1)
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
	})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	ctx, cancel := context.WithCancel(t.Context())
	r.ctx = ctx
	failed := make(chan error)
	c := r.client(true)
	go func() {
		_, err := c.Get("https://" + host + "/")
		failed <- err
	}()
	<-begun
	cancel()
	if err := <-failed; err == nil {
		t.Error("the request ended well")
	}
	r.served.Wait()
}

func TestConfig(t *testing.T) {
	ok := Secret{Name: "A", Value: plain, Hosts: []Host{host}}
	with := func(edit func(*Secret)) Config {
		s := ok
		edit(&s)
		return Config{Secrets: []Secret{s}}
	}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no name":           {with(func(s *Secret) { s.Name = "" }), "no name"},
		"short":             {with(func(s *Secret) { s.Value = "1234567" }), "7 bytes"},
		"long":              {with(func(s *Secret) { s.Value = strings.Repeat("x", maxSecret+1) }), "8193 bytes"},
		"no host":           {with(func(s *Secret) { s.Hosts = nil }), "no host"},
		"an address":        {with(func(s *Secret) { s.Hosts = []Host{"10.0.0.1"} }), "an address"},
		"all hosts":         {with(func(s *Secret) { s.Hosts = []Host{"*"} }), "not a host name"},
		"upper case":        {with(func(s *Secret) { s.Hosts = []Host{"A.example"} }), "not a host name"},
		"a place":           {with(func(s *Secret) { s.In = []Place{"cookie"} }), "place"},
		"a newline":         {with(func(s *Secret) { s.Value = "-----BEGIN\nKEY" }), "control character"},
		"too many":          {Config{Secrets: make([]Secret, maxSecrets+1)}, "65 secrets"},
		"a rule's host":     {Config{Rules: []Rule{{Name: "x", Host: "*."}}}, "not a host name"},
		"a rule's method":   {Config{Rules: []Rule{{Name: "x", Host: host, Methods: []string{"get"}}}}, "method"},
		"a rule's path":     {Config{Rules: []Rule{{Name: "x", Host: host, Path: "repos"}}}, "path"},
		"a rule's encoding": {Config{Rules: []Rule{{Name: "x", Host: host, Path: "/%41"}}}, "path"},
		"a rule's stars":    {Config{Rules: []Rule{{Name: "x", Host: host, Path: "/**/x"}}}, "last segment"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b, err := New(Config{Secrets: []Secret{ok, {Name: "PEM", Value: "-----BEGIN\nKEY", Hosts: []Host{"*.w.example"}, In: []Place{InBody}}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{host: true, "x.w.example": true, "w.example": false, "xw.example": false, "evil.example": false, "": false} {
		if b.Concerns(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	server, client := net.Pipe()
	if err := b.Serve(t.Context(), server, Target{Host: "evil.example", Port: 443, TLS: true}, nil, nil); err == nil {
		t.Error("served a host that is not its own")
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
