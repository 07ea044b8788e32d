package netstack

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
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testcert"
	"github.com/unitask/unitask/netstack/broker"
)

// secureServer is a server with its own certificate for names.
func secureServer(t testing.TB, handler http.HandlerFunc, names ...string) (*httptest.Server, *x509.CertPool) {
	t.Helper()
	cert := testcert.For(t, names...)
	s := httptest.NewUnstartedServer(handler)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, testcert.Roots(cert)
}

// A server's error is explained in words, since the guest did not cause it.
func TestBrokerCause(t *testing.T) {
	server, _ := secureServer(t, func(http.ResponseWriter, *http.Request) {}, "api.example")
	net1 := &internet{names: map[string][]string{"api.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:443": server.Listener.Addr().String()}}
	b, err := broker.New(broker.Config{Roots: x509.NewCertPool(), Secrets: []broker.Secret{
		{Name: "KEY", Value: "sk-0123456789abcdef", Hosts: []broker.Host{"api.example"}}}})
	if err != nil {
		t.Fatal(err)
	}
	g := newGuest(t, Config{Rules: []Rule{hostRule("api.example")}, Upstream: net1.upstream(), Broker: b})
	d := g.decision(func() {
		conn, err := g.dial("api.example", 443)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_ = tls.Client(conn, &tls.Config{ServerName: "api.example", RootCAs: x509.NewCertPool()}).Handshake()
	})
	if !strings.Contains(d.Cause(), "certificate") || d.Cause() != d.Reason {
		t.Errorf("got %q of %q, want what is wrong with the certificate", d.Cause(), d.Reason)
	}
}

// throughBroker reports whether a request had the key, and the response did not quote it.
func throughBroker(d Decision) bool {
	return d.Name == "api.example" && d.Addr == "198.18.0.1" && d.Dialled == "93.184.216.34:443" &&
		d.Rule == "api.example" && d.Port == 443 && d.Verdict == Allowed && d.Method == "POST" && d.Path == "/" &&
		d.Status == 200 && d.BytesUp == 4 && d.Redacted == 1 && strings.Join(d.Secrets, "") == "KEY"
}

// A guest's connections to a host with a bound secret go through the broker, others directly.
func TestBroker(t *testing.T) {
	const value = "sk-0123456789abcdef"
	server, roots := secureServer(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		verdict := "without the key"
		if r.Header.Get("Authorization") == "Bearer "+value {
			verdict = "with the key " + value
		}
		fmt.Fprint(w, r.Proto, " ", r.Host, " ", len(body), " ", verdict)
		if r.URL.Path == "/close" {
			w.Header().Set("Connection", "close")
		}
	}, "api.example", "plain.example")
	net1 := &internet{names: map[string][]string{"api.example": {"93.184.216.34"}, "plain.example": {"93.184.216.34"},
		"inside.example": {"10.0.0.1"}},
		servers: map[string]string{"93.184.216.34:443": server.Listener.Addr().String(),
			"10.0.0.1:443": server.Listener.Addr().String()}}
	asked := make(chan Decision, 100)
	b, err := broker.New(broker.Config{Roots: roots,
		Secrets: []broker.Secret{{Name: "KEY", Value: value, Hosts: []broker.Host{"api.example", "inside.example"}}}})
	if err != nil {
		t.Fatal(err)
	}
	g := newGuest(t, Config{Rules: []Rule{hostRule("api.example"), hostRule("plain.example"), hostRule("inside.example")},
		Upstream: net1.upstream(), Broker: b, Limits: Limits{BytesUp: 1 << 20}, Log: func(d Decision) {
			if d.Proto == "http" {
				asked <- d
			}
		}})
	trusted := roots.Clone()
	trusted.AppendCertsFromPEM(b.CA())
	client := func(h2 bool) *http.Client {
		tr := &http.Transport{ForceAttemptHTTP2: h2, TLSClientConfig: &tls.Config{RootCAs: trusted},
			DialContext: func(_ context.Context, _, to string) (net.Conn, error) {
				name, _, err := net.SplitHostPort(to)
				if err != nil {
					return nil, err
				}
				return g.dial(name, 443)
			}}
		if !h2 {
			tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
		}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: 10 * time.Second}
	}
	ask := func(c *http.Client, at, body string) (string, error) {
		req, err := http.NewRequest("POST", at, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+b.Placeholder("KEY"))
		res, err := c.Do(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		return string(text), err
	}
	sendThroughBroker(t, client, ask, b)
	alpn := map[string]int{}
	for range 6 {
		d := <-asked
		alpn[d.ALPN]++
		if !throughBroker(d) {
			t.Errorf("%+v", d)
		}
	}
	if alpn["h2"] != 3 || alpn[""] != 3 { // the HTTP/1 client offers none
		t.Error(alpn)
	}
	if len(asked) != 0 {
		t.Errorf("%d more: %+v", len(asked), <-asked)
	}
	if len(net1.dialled) != 4 {
		t.Errorf("dialled %v", net1.dialled)
	}
	// Limits and the cut apply.
	cutBroker(t, g, client, ask)
}

// sendThroughBroker sends requests through the broker in both versions of HTTP.
func sendThroughBroker(
	t *testing.T, client func(h2 bool) *http.Client,
	ask func(c *http.Client, at string, body string) (string, error), b *broker.Broker,
) {
	t.Helper()
	for proto, c := range map[string]*http.Client{"HTTP/1.1": client(false), "HTTP/2.0": client(true)} {
		for range 3 {
			if text, err := ask(c, "https://api.example/", "body"); err != nil ||
				text != proto+" api.example 4 with the key "+b.Placeholder("KEY") {
				t.Errorf("%q %v", text, err)
			}
		}
		if text, err := ask(c, "https://plain.example/", "body"); err != nil ||
			text != proto+" plain.example 4 without the key" {
			t.Errorf("%q %v", text, err)
		}
		if _, err := ask(c, "https://inside.example/", ""); err == nil {
			t.Error("a host that leads inside is served")
		}
		c.CloseIdleConnections()
	}
}

// cutBroker checks that the limit of bytes, and a cut, apply to the broker's traffic.
func cutBroker(
	t *testing.T, g *guestOS, client func(h2 bool) *http.Client,
	ask func(c *http.Client, at string, body string) (string, error),
) {
	t.Helper()
	d := g.decision(func() {
		c := client(false)
		if text, err := ask(c, "https://api.example/", strings.Repeat("x", 2<<20)); err == nil {
			t.Errorf("beyond the limit: %q", text)
		}
	})
	for d.Verdict == Allowed { // earlier decisions may still come
		d = g.decision(func() {})
	}
	if !strings.Contains(d.Reason, "limit of 1048576 bytes up") {
		t.Errorf("%+v", d)
	}
	conn, err := g.dial("api.example", 443)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	g.n.Cut()
	_ = conn.SetReadDeadline(time.Now().Add(guestPatience))
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the cut left a connection")
	}
}

// A connection that the broker refuses fails in the guest, and is in the netlog.
func TestBrokerRefuses(t *testing.T) {
	server, _ := secureServer(t, func(w http.ResponseWriter, r *http.Request) {}, "api.example")
	net1 := &internet{names: map[string][]string{"api.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:443": server.Listener.Addr().String()}}
	b, err := broker.New(broker.Config{Roots: x509.NewCertPool(), Rules: []broker.Rule{{Name: "r", Host: "api.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	g := newGuest(t, Config{Rules: []Rule{hostRule("api.example")}, Upstream: net1.upstream(), Broker: b})
	for name, c := range map[string]struct{ say, reason string }{
		"a server that nobody vouches for": {records(clientHello(serverNames("api.example")), 1<<14),
			"signed by unknown authority"},
		"another name": {records(clientHello(serverNames("evil.example")), 1<<14),
			"TLS for evil.example"},
		"another protocol": {"\x00\x01", "this is not HTTP or TLS: --allow-tcp"},
	} {
		d := g.decision(func() { g.sayAndEnd("api.example", 443, c.say) })
		if d.Verdict != Denied || !strings.Contains(d.Reason, c.reason) || d.Dialled != "93.184.216.34:443" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// Requests to an inspected host can't use a connection for another name, or for an address, of the same server.
func TestAttackRoundTheBroker(t *testing.T) {
	server := newScripted(t, "", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	net1 := &internet{names: map[string][]string{"api.good.example": {"93.184.216.34"},
		"free.good.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:443": server.addr, "93.184.216.34:80": server.addr}}
	b, err := broker.New(broker.Config{Rules: []broker.Rule{{Name: "r", Host: "api.good.example",
		Methods: []string{"GET"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, to string
		port     uint16
		say      string
		rule     Rule
		want     string
	}{
		{"TLS for it, by another name", "free.good.example", 443,
			records(clientHello(serverNames("api.good.example")), 1<<14), Rule{Text: "w", Host: "good.example", Wildcard: true},
			"refused"},
		{"TLS for the other name", "free.good.example", 443, records(clientHello(serverNames("free.good.example")), 1<<14),
			Rule{Text: "w", Host: "good.example", Wildcard: true}, "sent"},
		{"HTTP for it, by another name", "free.good.example", 80,
			"PUT / HTTP/1.1\r\nHost: api.good.example\r\nContent-Length: 0\r\n\r\n",
			Rule{Text: "w", Host: "good.example", Wildcard: true}, "refused"},
		{"TLS for it, by its address", "93.184.216.34", 443, records(clientHello(serverNames("api.good.example")), 1<<14),
			Rule{Text: "any", Any: true}, "refused"},
		{"TLS for nobody, by its address", "93.184.216.34", 443, records(clientHello(), 1<<14), Rule{Text: "any", Any: true},
			"refused"},
		{"TLS for an empty list of names, by its address", "93.184.216.34", 443, records(clientHello(serverNames()), 1<<14),
			Rule{Text: "any", Any: true}, "refused"},
		{"TLS for nobody, by an address that a rule names", "93.184.216.34", 443, records(clientHello(), 1<<14),
			Rule{Text: "addr", Addr: netip.MustParseAddr("93.184.216.34")}, "sent"},
		{"HTTP for it, by its address", "93.184.216.34", 80,
			"PUT / HTTP/1.1\r\nHost: api.good.example\r\nContent-Length: 0\r\n\r\n", Rule{Text: "any", Any: true}, "refused"},
	} {
		g := newGuest(t, Config{Rules: []Rule{c.rule}, Upstream: net1.upstream(), Broker: b})
		before := len(server.received())
		d := g.decision(func() { g.sayAndEnd(c.to, c.port, c.say) })
		got := "refused"
		if d.Verdict == Allowed || len(server.received()) > before {
			got = "sent"
		}
		attack.Check(t, "round the broker: "+c.name, c.want, got)
	}
}

// A rule for everything allows TLS without a server name to an address, unless other rules are about names. It also
// allows it if a rule names the address.
func TestAttackTLSForNobody(t *testing.T) {
	server := newScripted(t, "", "\x15\x03\x03\x00\x02\x02\x28")
	net1 := &internet{servers: map[string]string{"93.184.216.34:443": server.addr}}
	b, err := broker.New(broker.Config{Rules: []broker.Rule{{Name: "r", Host: "api.example", Methods: []string{"GET"}}}})
	if err != nil {
		t.Fatal(err)
	}
	everything := Rule{Text: "any", Any: true}
	address := Rule{Text: "addr", Addr: netip.MustParseAddr("93.184.216.34")}
	elsewhere, other := denyRule("no.example"), Rule{Text: "other", Addr: netip.MustParseAddr("93.184.216.35")}
	elsewhere.Port = 8443
	for _, c := range []struct {
		name   string
		rules  []Rule
		broker *broker.Broker
		want   string
	}{
		{"nothing else", []Rule{everything}, nil, "sent"},
		{"a name that is denied", []Rule{everything, denyRule("no.example")}, nil, "refused"},
		{"names that are denied", []Rule{everything, {Text: "deny *.example", Host: "example", Wildcard: true, Deny: true}},
			nil, "refused"},
		{"a name that is denied at another port", []Rule{everything, elsewhere}, nil, "sent"},
		{"another address that is denied", []Rule{everything, {Text: "deny", Addr: other.Addr, Deny: true}}, nil, "sent"},
		{"a broker", []Rule{everything}, b, "refused"},
		{"a broker, and a rule that names another address", []Rule{everything, other}, b, "refused"},
		{"a broker, and a rule that names the address", []Rule{everything, address}, b, "sent"},
		{"a name that is denied, and a rule that names the address", []Rule{everything, address, denyRule("no.example")}, nil,
			"sent"},
	} {
		g := newGuest(t, Config{Rules: c.rules, Upstream: net1.upstream(), Broker: c.broker})
		before := len(server.received())
		d := g.decision(func() { g.sayAndEnd("93.184.216.34", 443, records(clientHello(), 1<<14)) })
		got := "sent"
		if d.Verdict != Allowed {
			got = "refused"
			if !strings.Contains(d.Reason, "without a server name") ||
				!strings.Contains(d.Reason, "--allow-net may name 93.184.216.34") {
				t.Errorf("%s: %+v", c.name, d)
			}
		}
		if (len(server.received()) > before) != (got == "sent") {
			t.Errorf("%s: %s, and the server got %d bytes", c.name, got, len(server.received())-before)
		}
		attack.Check(t, "TLS for nobody, by an address, beside "+c.name, c.want, got)
	}
}

// rulesInTheClearRows are the cases of TestAttackRulesInTheClear.
var rulesInTheClearRows = []struct {
	name, host string
	port       uint16
	say, want  string
	log        string // of the request, or of the connection
}{
	{"allowed", "api.example", 80, "GET /ok", "200", "http allowed GET /ok 200 by GET api.example/ok: "},
	{
		name: "another path",
		host: "api.example",
		port: 80,
		say:  "GET /no",
		want: "403",
		log: "http denied GET /no 403 by GET api.example/ok: GET api.example/no: " +
			"no rule allows this method and path (GET api.example/ok)",
	},
	{
		name: "another method",
		host: "api.example",
		port: 80,
		say:  "PUT /ok",
		want: "403",
		log: "http denied PUT /ok 403 by GET api.example/ok: PUT api.example/ok: " +
			"no rule allows this method and path (GET api.example/ok)",
	},
	{"raw, allowed", "inside.example", 8080, "GET /ok", "200", "http allowed GET /ok 200 by GET inside.example/ok: "},
	{
		name: "raw, another path",
		host: "inside.example",
		port: 8080,
		say:  "GET /no",
		want: "403",
		log: "http denied GET /no 403 by GET inside.example/ok: GET inside.example/no: " +
			"no rule allows this method and path (GET inside.example/ok)",
	},
	{
		name: "raw, another protocol",
		host: "inside.example",
		port: 8080,
		say:  "\x00GET /ok",
		log: "tcp denied   0 by tcp inside.example:8080: the first byte is 0x0: this is not HTTP or TLS: " +
			"--allow-tcp allows other protocols",
	},
	{"raw, without rules", "free.example", 8080, "PUT /no", "200", "tcp allowed   0 by tcp free.example:8080: "},
}

// Rules by method and path apply without TLS as with it. They also apply on a connection that a raw rule allows,
// wherever it leads: only HTTP is then allowed there.
func TestAttackRulesInTheClear(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, r.Method, " ", r.URL.Path)
	}))
	defer server.Close()
	net1 := &internet{names: map[string][]string{"api.example": {"93.184.216.34"}, "inside.example": {"10.0.0.1"},
		"free.example": {"10.0.0.1"}},
		servers: map[string]string{"93.184.216.34:80": server.Listener.Addr().String(),
			"10.0.0.1:8080": server.Listener.Addr().String()}}
	var rules []broker.Rule
	for _, name := range []broker.Host{"api.example", "inside.example"} {
		rules = append(rules, broker.Rule{Name: "GET " + string(name) + "/ok", Host: name, Methods: []string{"GET"},
			Path: "/ok"})
	}
	b, err := broker.New(broker.Config{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan Decision, 10)
	g := newGuest(t, Config{Broker: b, Upstream: net1.upstream(), Log: func(d Decision) { asked <- d },
		Rules: []Rule{hostRule("api.example"), {Text: "tcp inside.example:8080", Host: "inside.example", Port: 8080,
			Raw: true}, {Text: "tcp free.example:8080", Host: "free.example", Port: 8080, Raw: true}}})
	for _, c := range rulesInTheClearRows {
		conn, err := g.dial(c.host, c.port)
		if err != nil {
			t.Fatal(c.name, err)
		}
		_ = conn.SetDeadline(time.Now().Add(guestPatience))
		at := c.host
		if c.port != 80 {
			at += fmt.Sprint(":", c.port)
		}
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", c.say, at)
		answer, _ := io.ReadAll(conn)
		conn.Close()
		_, got, _ := strings.Cut(string(answer), " ")
		got, _, _ = strings.Cut(got, " ")
		attack.Check(t, "rules in the clear: "+c.name, c.want, got)
		proto, _, _ := strings.Cut(c.log, " ")
		lines := map[string]string{}
		for lines["tcp"] == "" || lines[proto] == "" { // the connection's line, too, which may be late
			d := <-asked
			lines[d.Proto] = fmt.Sprint(d.Proto, " ", d.Verdict, " ", d.Method, " ", d.Path, " ", d.Status, " by ", d.Rule, ": ",
				d.Reason)
		}
		if lines[proto] != c.log {
			t.Errorf("%s: %s, want %s", c.name, lines[proto], c.log)
		}
	}
}
