package mcp_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// withToken adds a bearer token to every request.
type withToken string

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(w))
	return http.DefaultTransport.RoundTrip(r)
}

func connect(t *testing.T, url, token string) *sdk.ClientSession {
	t.Helper()
	transport := &sdk.StreamableClientTransport{Endpoint: url + "/mcp"}
	if token != "" {
		transport.HTTPClient = &http.Client{Transport: withToken(token)}
	}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

// send sends a raw request, and returns the answer's status, headers and body.
func send(t *testing.T, method, url, body string, headers ...string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Add(name, value)
		}
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list",` +
		`"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{}}}}`
	revision = "Mcp-Protocol-Version: 2026-07-28"
	named    = "Mcp-Method: tools/list"
)

// Callers with tokens from a file: who has access, what each gets, and whose runs it sees.
func TestTokenFile(t *testing.T) {
	rt := open(t, unitask.PoolSize{})
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("# callers\nalice alice-token-0123456789\nbob bob-token-0123456789\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := mcp.TokenFile(tokens)
	if err != nil {
		t.Fatal(err)
	}
	ceiling, err := policy.ParseCeiling("c.toml",
		[]byte("memoryMb = 512\nsecrets = []\n[principals.bob]\nmemoryMb = 256\n"))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, rt, mcp.Options{Ceiling: ceiling, CallerPerMinute: 3})
	const reader = "reader-token-0123456789"
	url := serve(t, s, mcp.HTTPOptions{Auth: auth, MetricsToken: reader})
	for token, want := range map[string]int{"": 401, "Bearer": 401, "Bearer wrong-token-0123456789": 401,
		"Basic alice-token-0123456789": 401, "Bearer alice-token-0123456789x": 401, "Bearer alice": 401,
		"Bearer alice-token-0123456789": 200, "bearer bob-token-0123456789": 200} {
		headers := []string{revision, named}
		if token != "" {
			headers = append(headers, "Authorization: "+token)
		}
		if code, _, body := send(t, "POST", url+"/mcp", listTools, headers...); code != want {
			t.Errorf("%q: %d %s", token, code, body)
		}
		code, _, _ := send(t, "GET", url+"/metrics", "", headers...)
		attack.Check(t, "the metrics of all callers, read with "+strconv.Quote(token), "401", strconv.Itoa(code))
	}
	alice, bob := connect(t, url, "alice-token-0123456789"), connect(t, url, "bob-token-0123456789")
	_, out, _ := call(t, alice, "run_code", object{"language": "shell", "code": "echo mine"})
	id := out["runId"].(string)
	if rec, err := rt.Runs().Get(id); err != nil || rec.Owner != "alice" {
		t.Errorf("%+v %v", rec, err)
	}
	_, out, text := call(t, bob, "run_code", object{"language": "shell", "code": ":", "memoryMb": 300})
	if !strings.Contains(text, "not given: memoryMb 300") || granted(t, bob, out)["memoryMb"] != 256.0 {
		t.Errorf("%v %s", out, text)
	}
	if res, _, _ := call(t, alice, "inspect_run", object{"runId": id}); res.IsError {
		t.Error("alice does not see her run")
	}
	for _, ref := range []string{id, "last", id[:len(id)-1]} {
		if res, out, text := call(t, bob, "inspect_run", object{"runId": ref}); ref != "last" && !res.IsError ||
			ref == "last" && out["owner"] != "bob" {
			t.Errorf("bob sees %s: %s", ref, text)
		}
	}
	printed := &sdk.ReadResourceParams{URI: "unitask://runs/" + id + "/stdout"}
	if r, err := bob.ReadResource(t.Context(), printed); err == nil {
		t.Errorf("bob reads %+v", r)
	}
	if _, err := alice.ReadResource(t.Context(), printed); err != nil {
		t.Error(err)
	}
	for cs, want := range map[*sdk.ClientSession]int{alice: 1, bob: 1} {
		list, err := cs.ListResources(t.Context(), nil)
		_, out, _ := call(t, cs, "list_runs", object{})
		if err != nil || len(list.Resources) != want+2 || len(out["runs"].([]any)) != want {
			t.Errorf("%+v %v %v", list, out, err)
		}
	}
	// The third run in a minute is the last. On a slow host one more may become free in the meantime. Others' limits are
	// unchanged.
	runs := exceedRate(t, bob, alice)
	_, _, metrics := send(t, "GET", url+"/metrics", "", "Authorization: Bearer "+reader)
	for _, want := range []string{fmt.Sprintf(`unitask_runs_total{outcome="exited"} %d`, 2+runs),
		`unitask_denials_total{field="memoryMb"} 1`, "unitask_refused_busy_total 1", `unitask_run_start_seconds_count`,
		`unitask_output_bytes_total{stream="stdout"} 5`, "unitask_running 0"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in\n%s", want, metrics)
		}
	}
	if code, _, body := send(t, "GET", url+"/healthz", ""); code != 200 || body != "ok\n" {
		t.Errorf("%d %q", code, body)
	}
}

// exceedRate runs until the caller's rate is exceeded.
func exceedRate(t *testing.T, bob, alice *sdk.ClientSession) int {
	t.Helper()
	runs, refused := 1, ""
	for ; refused == "" && runs < 12; runs++ {
		if res, _, text := call(t, bob, "run_code", object{"language": "shell", "code": ":"}); res.IsError {
			refused = text
		}
	}
	runs--
	if runs < 3 || !strings.Contains(refused, "3 runs a minute") {
		t.Errorf("after %d: %s", runs, refused)
	}
	if res, _, text := call(t, alice, "run_code", object{"language": "shell", "code": ":"}); res.IsError {
		t.Errorf("%s", text)
	}
	return runs
}

// Access to the metrics and the health. Without a token only the server's user may read them. A web page may not, even
// by a name that resolves to this host.
func TestAttackMetrics(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("alice alice-token-0123456789\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := mcp.TokenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const reader, alice = "Bearer reader-token-0123456789", "Bearer alice-token-0123456789"
	for _, c := range []struct {
		name    string
		opts    mcp.HTTPOptions
		path    string
		host    string
		headers []string
		want    int
	}{
		{"a caller's token, on an address of others", mcp.HTTPOptions{Addr: "10.1.2.3:80", Auth: tokens}, "/metrics",
			"10.1.2.3", []string{alice}, 403},
		{"no token, on an address of others", mcp.HTTPOptions{Addr: "10.1.2.3:80", Auth: tokens}, "/metrics", "10.1.2.3", nil,
			403},
		{"an empty token, on an address of others", mcp.HTTPOptions{Addr: "10.1.2.3:80", Auth: tokens}, "/metrics",
			"10.1.2.3", []string{"Bearer "}, 403},
		{"a caller's token, in the place of the readers'",
			mcp.HTTPOptions{Addr: "10.1.2.3:80", Auth: tokens, MetricsToken: reader[7:]}, "/metrics", "10.1.2.3",
			[]string{alice}, 401},
		{"the readers' token", mcp.HTTPOptions{Addr: "10.1.2.3:80", Auth: tokens, MetricsToken: reader[7:]}, "/metrics",
			"10.1.2.3", []string{reader}, 200},
		{"the readers' token, twice", mcp.HTTPOptions{Addr: "10.1.2.3:80", Auth: tokens, MetricsToken: reader[7:]},
			"/metrics", "10.1.2.3", []string{reader, reader}, 400},
		{"the readers' token at the tools", mcp.HTTPOptions{Addr: "10.1.2.3:80", Auth: tokens, MetricsToken: reader[7:]},
			"/mcp", "10.1.2.3", []string{reader}, 401},
		{"a request that came by no connection of this user's, on loopback",
			mcp.HTTPOptions{Addr: "127.0.0.1:80", Auth: tokens}, "/metrics", "127.0.0.1", []string{alice}, 403},
		{"the metrics, by a name that is not ours", mcp.HTTPOptions{Addr: "127.0.0.1:80", Auth: tokens,
			MetricsToken: reader[7:]}, "/metrics", "evil.example", []string{reader}, 403},
		{"the health, by a name that is not ours", mcp.HTTPOptions{Addr: "127.0.0.1:80", Auth: tokens}, "/healthz",
			"evil.example", nil, 403},
		{"the health", mcp.HTTPOptions{Addr: "127.0.0.1:80", Auth: tokens}, "/healthz", "localhost:80", nil, 200},
	} {
		handler, err := newServer(t, rt, mcp.Options{}).Handler(c.opts)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", c.path, nil)
		r.Host = c.host
		for _, h := range c.headers {
			r.Header.Add("Authorization", h)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		attack.Check(t, "metrics and health: "+c.name, strconv.Itoa(c.want), strconv.Itoa(w.Code))
	}
}

func TestBadTokenFiles(t *testing.T) {
	name := filepath.Join(t.TempDir(), "tokens")
	for text, want := range map[string]string{"": "no token", "alice": "NAME TOKEN", "alice short": "16 characters",
		"a b c": "NAME TOKEN", "\n# x\n": "no token",
		"alice token-number-one-1\nAlice token-number-two-2": `names "alice" and "Alice" differ only in case`,
		"alice token-number-one-1\nbob token-number-one-1":   `"bob" has the same token as "alice"`} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := mcp.TokenFile(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.Chmod(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := mcp.TokenFile(name); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
	if _, err := mcp.TokenFile(name + "x"); err == nil {
		t.Error("a file that is not there")
	}
}

// Web pages and names of strangers, addresses that others reach, endless bodies.
func TestGuards(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	s := newServer(t, rt, mcp.Options{})
	url := serve(t, s, mcp.HTTPOptions{Origins: []string{"https://app.example"}, Hosts: []string{"box.local"}})
	host := strings.TrimPrefix(url, "http://")
	_, port, _ := strings.Cut(host, ":")
	for _, c := range []struct {
		headers string
		want    int
	}{
		{"", 200}, {"Host: localhost:" + port, 200}, {"Host: [::1]:" + port, 200}, {"Host: LOCALHOST:" + port, 200},
		{"Host: box.local", 200}, {"Host: box.local:80", 200},
		{"Host: evil.example", 403}, {"Host: evil.example:" + port, 403}, {"Host: 127.0.0.1.evil.example", 403},
		{"Host: localhost.evil.example:" + port, 403}, {"Host: 10.0.0.1:" + port, 403},
		{"Origin: http://" + host, 200}, {"Origin: https://app.example", 200}, {"Origin: http://evil.example", 403},
		{"Origin: null", 403}, {"Origin: http://app.example", 403},
		{"Origin: https://app.example.evil.example", 403}, {"Origin: http://localhost:1", 403}, {"Origin: ", 403},
	} {
		headers := []string{revision, named}
		if c.headers != "" {
			headers = append(headers, c.headers)
		}
		if code, _, body := send(t, "POST", url+"/mcp", listTools, headers...); code != c.want {
			t.Errorf("%s: %d %s, want %d", c.headers, code, body, c.want)
		}
	}
	if code, h, _ := send(t, "OPTIONS", url+"/mcp", "", "Origin: https://app.example"); code != 204 ||
		h.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("%d %v", code, h)
	}
	for addr, fine := range map[string]bool{"127.0.0.1:0": true, "[::1]:0": true, "localhost:0": true, "0.0.0.0:0": false,
		":0": false, "192.0.2.1:80": false, "nonsense": false} {
		if _, err := s.Handler(mcp.HTTPOptions{Addr: addr}); (err == nil) != fine {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if _, err := s.Handler(mcp.HTTPOptions{Addr: "127.0.0.1:0", Origins: []string{"app.example"}}); err == nil {
		t.Error("an origin without a scheme")
	}
	big := bytes.NewReader(append([]byte(`{"jsonrpc":"2.0","id":1,"method":"x","params":"`), make([]byte, 17<<20)...))
	r, err := http.NewRequestWithContext(t.Context(), "POST", url+"/mcp", big)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if res, err := http.DefaultClient.Do(r); err == nil {
		if res.Body.Close(); res.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%v", res.Status)
		}
	}
	for _, body := range []string{"", "{", "[]", "null", `"x"`, `{"jsonrpc":"2.0"}`, strings.Repeat("[", 100_000)} {
		if code, _, _ := send(t, "POST", url+"/mcp", body, revision); code < 400 || code > 499 {
			t.Errorf("%.20q: %d", body, code)
		}
	}
}

// Older revisions have a session, 2026-07-28 has none; with Stateless no client has one.
func TestRevisions(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	s := newServer(t, rt, mcp.Options{})
	url := serve(t, s, mcp.HTTPOptions{})
	code, h, body := send(t, "POST", url+"/mcp", initialize)
	session := h.Get("Mcp-Session-Id")
	if code != 200 || session == "" || !strings.Contains(body, `"protocolVersion":"2025-11-25"`) {
		t.Errorf("%d %v %s", code, h, body)
	}
	if code, _, _ := send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		"Mcp-Session-Id: "+session, "Mcp-Protocol-Version: 2025-11-25"); code != 202 {
		t.Errorf("%d", code)
	}
	if code, _, body := send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
		"Mcp-Session-Id: "+session, "Mcp-Protocol-Version: 2025-11-25"); code != 200 || !strings.Contains(body, "run_code") {
		t.Errorf("%d %s", code, body)
	}
	if code, _, _ := send(t, "DELETE", url+"/mcp", "", "Mcp-Session-Id: "+session); code != 204 && code != 200 {
		t.Errorf("%d", code)
	}
	if code, _, _ := send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
		"Mcp-Session-Id: "+session); code != 404 {
		t.Errorf("a session that has ended: %d", code)
	}
	code, h, body = send(t, "POST", url+"/mcp", listTools, revision, named)
	if code != 200 || h.Get("Mcp-Session-Id") != "" || !strings.Contains(body, "run_code") {
		t.Errorf("%d %v %s", code, h, body)
	}
	lone := serve(t, s, mcp.HTTPOptions{Stateless: true})
	for range 2 { // any server of several
		if code, h, body := send(t, "POST", lone+"/mcp", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
			"Mcp-Protocol-Version: 2025-06-18"); code != 200 || h.Get("Mcp-Session-Id") != "" ||
			!strings.Contains(body, "run_code") {
			t.Errorf("%d %v %s", code, h, body)
		}
	}
}

// writePair writes a test server's certificate and key as PEM.
func writePair(t *testing.T, dir string, s *httptest.Server) (cert, key string) {
	t.Helper()
	pair := s.TLS.Certificates[0]
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string][]byte{cert: encodePEM(t, "CERTIFICATE", pair.Certificate[0]),
		key: encodeKey(t, pair.PrivateKey)} {
		if err := os.WriteFile(name, block, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func TestStdioOnlyFlags(t *testing.T) {
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--token-file", "x"}, {"--pool", "x"}, {"--http", "0.0.0.0:1"},
		{"--http", "127.0.0.1:1", "--tls-cert", "x"}, {"--http", "127.0.0.1:1", "--jwks", "https://x.example"},
		{"--http", "127.0.0.1:1", "--jwks", "https://x.example", "--token-file", "y"}, {"--prompts", "/nonexistent"},
		{"--policy", "/nonexistent"}} {
		out, err := exec.Command(name, append([]string{"mcp"}, args...)...).CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n") // the log of the preparation comes first
		if err == nil || !strings.HasPrefix(lines[len(lines)-1], "unitask: ") {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
}

func encodePEM(t *testing.T, kind string, der []byte) []byte {
	t.Helper()
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(t *testing.T, key any) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return encodePEM(t, "PRIVATE KEY", der)
}

// Pages of other sites have a browser send requests without an origin: for a picture, a script or a frame. Where nobody
// needs a token they are refused. Links, the server's own pages, and programs are not.
func TestAttackForeignPage(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	s := newServer(t, rt, mcp.Options{})
	url := serve(t, s, mcp.HTTPOptions{Origins: []string{"https://app.example"}})
	for _, c := range []struct {
		headers []string
		want    string
	}{
		{nil, "200"}, {[]string{"Sec-Fetch-Site: none"}, "200"}, {[]string{"Sec-Fetch-Site: same-origin"}, "200"},
		{[]string{"Sec-Fetch-Site: cross-site"}, "403"}, {[]string{"Sec-Fetch-Site: same-site"}, "403"},
		{[]string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, "403"},
		{[]string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, "403"},
		{[]string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}, "200"},
		{[]string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Origin: https://app.example"}, "200"},
		{[]string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: cors", "Origin: https://evil.example"}, "403"},
	} {
		code, _, _ := send(t, "GET", url+"/healthz", "", c.headers...)
		attack.Check(t, "a request with "+strings.Join(c.headers, ", "), c.want, strconv.Itoa(code))
	}
}
