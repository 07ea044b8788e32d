package httpapi

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// Answers of a hostile server in a machine reach the client, but not its browser's origin.
func TestAttackPorts(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	redirects := map[string]string{ // where they lead to below the port's path
		"/v1/sessions": "/v1/sessions", "../../../../../../v1/sessions": "/v1/sessions", "//evil.example/x": "",
		"/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/v1/sessions": "/v1/sessions", "https://127.0.0.1:8200/": "",
		"HOST/v1/sessions": "", "http://evil.example/": "", "http://a@127.0.0.1:8200/": "", "javascript:alert(1)": "",
		"http://127.0.0.1:8200/x?a#b": "/x?a#b", `\..\..\x`: `/%5C..%5C..%5Cx`, "": "/to",
		"/..%2f..%2f..%2f..%2f..%2fv1": "/v1", "http:/v1/x": ""}
	answers := object{
		"/headers": "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nSet-Cookie: a=b\r\nset-cookie2: a=b\r\n" +
			"Access-Control-Allow-Origin: *\r\nACCESS-CONTROL-ALLOW-CREDENTIALS: true\r\nClear-Site-Data: \"*\"\r\n" +
			"Content-Security-Policy: default-src *\r\nService-Worker-Allowed: /\r\nAlt-Svc: h2=\":1\"\r\n" +
			"Refresh: 0; url=/v1/sessions\r\nLink: </x>; rel=preload\r\nWWW-Authenticate: Basic realm=x\r\n" +
			"X-Content-Type-Options: sniff\r\nCross-Origin-Opener-Policy: unsafe-none\r\nContent-Length: 2\r\n\r\nok",
		"/early": "HTTP/1.1 103 Early Hints\r\nSet-Cookie: a=b\r\nLink: </x>\r\n\r\n" +
			"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
		"/trailer": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Set-Cookie, X-T\r\n\r\n2\r\nok\r\n0\r\n" +
			"Set-Cookie: a=b\r\nX-T: t\r\nAccess-Control-Allow-Origin: *\r\n\r\n",
		"/split": "HTTP/1.1 200 OK\r\nX-A: a\rSet-Cookie: a=b\r\nX-B: b\n Set-Cookie: a=b\r\nContent-Length: 2\r\n\r\nok",
		"/two": "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\n" +
			"Content-Length: 4\r\n\r\nmore",
		"/switch": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSet-Cookie: a=b\r\n\r\n",
		"/long":   "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("x", 200_000) + "\r\n\r\n",
		"/noise":  "noise\r\n\r\n", "/none": ""}
	n := 0
	paths := map[string]string{}
	for to := range redirects {
		n++
		paths[to] = fmt.Sprintf("/redirect%d", n)
		answers[paths[to]] = "HTTP/1.1 307 Temporary Redirect\r\nLocation: " + strings.Replace(to, "HOST", s.url, 1) +
			"\r\nContent-Length: 0\r\n\r\n"
	}
	proxy := s.serveIn(at, "8200", answers)
	for to, want := range redirects {
		res, _ := s.send("alice", "GET", proxy+paths[to], nil)
		if want = proxy + want; want == proxy {
			want = ""
		}
		if to == "" {
			want = proxy + paths[to]
		}
		attack.Check(t, "a redirect to "+to, want, res.Header.Get("Location"))
	}
	for _, path := range []string{"headers", "early", "trailer", "split", "two", "switch", "long", "noise", "none"} {
		s.answersLikeStranger(t, proxy, path)
	}
}

// answersLikeStranger checks what arrives of a hostile answer, byte by byte.
func (s *sessionServer) answersLikeStranger(t *testing.T, proxy, path string) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nConnection: close\r\n\r\n",
		proxy, path, tokenOf("alice"))
	var all strings.Builder
	if _, err := bufio.NewReader(conn).WriteTo(&all); err != nil {
		t.Fatal(err)
	}
	got := strings.ToLower(all.String())
	found := ""
	for _, bad := range []string{"\nset-cookie", "\rset-cookie", "access-control", "clear-site-data",
		"service-worker", "alt-svc", "refresh:", "link:",
		"www-authenticate", "default-src *", "nosniff\r\nx-content-type-options: sniff", "cross-origin",
		"http/1.1 103", "http/1.1 101", "\r\nx-t:", "more"} {
		if strings.Contains(got, bad) {
			found += fmt.Sprintf("%q ", bad)
		}
	}
	attack.Check(t, "a hostile answer: "+path, "", found)
	if strings.HasPrefix(got, "http/1.1 200") && (!strings.Contains(got, "content-security-policy: sandbox") ||
		!strings.Contains(got, "x-content-type-options: nosniff") || !strings.Contains(got, "ok")) ||
		strings.Count(got, "http/1.1 ") != 1 {
		t.Errorf("%s: %.1000q", path, got)
	}
}

// A server in a machine learns nothing of the client's credentials, or of another machine.
func TestAttackPortsTokens(t *testing.T) {
	s := newSessionServer(t, true)
	at := s.start(nil)
	proxy := s.serveIn(at, "8300", object{})
	own := strings.TrimPrefix(s.url, "http://")
	with := []string{"Cookie", "session=secret-cookie", "Proxy-Authorization", "Basic secret-proxy", "Origin", s.url,
		"Referer", s.url + "/?secret-referer", "X-Api-Key", "secret-key", "X-Access-Token", "secret-access",
		"Mcp-Session-Id", "secret-session", "Idempotency-Key", "secret-idempotency", "X-Forwarded-For", "10.9.8.7",
		"Forwarded", "for=10.9.8.7", "X-Mine", "kept", "E2b-Traffic-Access-Token", "secret-traffic"}
	_, text := s.send("alice", "POST", proxy+"/x", []byte("body"), with...)
	for _, secret := range []string{tokenOf("alice"), "bearer", "secret-", "10.9.8.7", own, "127.0.0.1:0"} {
		attack.Check(t, "what the machine's server sees of "+secret, "nothing", map[bool]string{false: "nothing",
			true: string(text)}[strings.Contains(strings.ToLower(string(text)), strings.ToLower(secret))])
	}
	if !strings.Contains(string(text), `"x-mine": "kept"`) {
		t.Errorf("%s", text)
	}
	for name, c := range map[string]struct {
		method, path string
		with         []string
		want         int
	}{
		"a page of another origin":    {"GET", proxy + "/x", []string{"Origin", "https://evil.example"}, 403},
		"a page of a machine":         {"GET", proxy + "/x", []string{"Origin", "null"}, 403},
		"a page's terminal":           {"GET", at + "/terminal", []string{"Origin", "null", "Upgrade", "websocket"}, 403},
		"another upgrade":             {"GET", proxy + "/x", []string{"Connection", "Upgrade", "Upgrade", "h2c"}, 400},
		"a preflight":                 {"OPTIONS", proxy + "/x", nil, 405},
		"a path that leads out":       {"GET", proxy + "/../../../../sessions", nil, 404},
		"a path that leads out by %":  {"GET", proxy + "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/about", nil, 404},
		"a port that is none":         {"GET", at + "/ports/65536/", nil, 400},
		"a port that is no number":    {"GET", at + "/ports/0x50/", nil, 400},
		"a request without its token": {"GET", proxy + "/x", []string{"Authorization", "Bearer wrong"}, 401},
	} {
		res, _ := s.send("alice", c.method, c.path, nil, c.with...)
		attack.Check(t, "a port through "+name, fmt.Sprint(c.want), fmt.Sprint(res.StatusCode))
	}
}
