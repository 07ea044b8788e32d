package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// sessionServer is a real server of the API, with its callers' tokens.
type sessionServer struct {
	t   *testing.T
	url string
	api *Server
	// stop ends the server, and returns when everything has ended. It may be called again.
	stop func()
}

// newSessionServer serves the API for callers alice and mallory. vm tells whether it starts machines. Pages of the
// origins may call.
func newSessionServer(t *testing.T, vm bool, origins ...string) *sessionServer {
	t.Helper()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	if vm {
		testhome.Ready(t, base, image.Linux)
	}
	rt, err := unitask.Open(unitask.Options{Machines: unitask.Templates(), Home: testhome.New(t, base)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	ceiling, err := policy.ParseCeiling("test", []byte("allowNet = [\"allowed.example\"]\nsecrets = [\"API_TOKEN\"]\n"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := mcp.New(rt, mcp.Options{Ceiling: ceiling, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("alice "+tokenOf("alice")+"\nmallory "+tokenOf("mallory")+"\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := mcp.TokenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	own := New(Options{Runtime: rt, Shared: server, Version: "test", Log: log})
	ctx, stop := context.WithCancel(context.Background())
	at, over := make(chan net.Addr, 1), make(chan error, 1)
	go func() {
		over <- server.ServeHTTP(ctx, mcp.HTTPOptions{Addr: "127.0.0.1:0", Auth: tokens, Origins: origins,
			APIs: []mcp.API{own}}, func(addr net.Addr) { at <- addr })
	}()
	end := sync.OnceFunc(func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
		server.Close()
		own.Wait()
	})
	t.Cleanup(end)
	return &sessionServer{t, "http://" + (<-at).String(), own, end}
}

// tokenOf returns a caller's token.
func tokenOf(caller string) string { return caller + "-token-0123456789" }

// request sends a request of a caller. headers are pairs. A body that is no []byte and no io.Reader is sent as JSON.
func (s *sessionServer) request(ctx context.Context, caller, method, path string, body any, headers ...string,
) *http.Response {
	s.t.Helper()
	var from io.Reader
	kind := ""
	switch body := body.(type) {
	case nil:
	case []byte:
		from = bytes.NewReader(body)
	case io.Reader:
		from = body
	default:
		text, err := json.Marshal(body)
		if err != nil {
			s.t.Fatal(err)
		}
		from, kind = bytes.NewReader(text), jsonType
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, from)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+tokenOf(caller))
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return res
}

// send sends a request, and returns the answer with its whole body.
func (s *sessionServer) send(caller, method, path string, body any, headers ...string) (*http.Response, []byte) {
	s.t.Helper()
	res := s.request(s.t.Context(), caller, method, path, body, headers...)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	s.conforms(res, text)
	return res, text
}

// want sends a request of alice that must have a status, and returns the answer's JSON.
func (s *sessionServer) want(status int, method, path string, body any, headers ...string) (out object) {
	s.t.Helper()
	res, text := s.send("alice", method, path, body, headers...)
	if res.StatusCode != status {
		s.t.Fatalf("%s %s: got %d %.2000s, want %d", method, path, res.StatusCode, text, status)
	}
	_ = json.Unmarshal(text, &out)
	return out
}

// start starts a session of alice, and returns its path.
func (s *sessionServer) start(with object) string {
	s.t.Helper()
	in := object{"language": "python"}
	for name, value := range with {
		in[name] = value
	}
	return "/v1/sessions/" + s.want(201, "POST", "/v1/sessions", in)["id"].(string)
}

// shell runs a line of shell in a session, and returns what it printed.
func (s *sessionServer) shell(at, line string) string {
	s.t.Helper()
	out := s.want(200, "POST", at+"/commands", object{"args": []string{"sh", "-c", line}})
	if out["exitCode"] != 0.0 {
		s.t.Fatalf("%s: %+v", line, out)
	}
	return out["stdout"].(string)
}
