package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

var base string

func TestMain(m *testing.M) {
	var err error
	if base, err = testhome.Base(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// api is a server of the API, with its callers' tokens.
type api struct {
	t    *testing.T
	url  string
	home string
	rt   *unitask.Runtime
	own  *Server
	stop func()
}

// setup configures a test's server.
type setup struct {
	vm      bool // it starts machines
	home    string
	ceiling *policy.Ceiling
	most    int      // runs of a caller at once; 0 means no limit
	callers []string // with tokens NAME-token-0123456789; without any, the user of this process needs none
}

// newAPI serves the API beside MCP, as unitask serve does.
func newAPI(t *testing.T, with setup) *api {
	t.Helper()
	a := &api{t: t, home: with.home}
	if with.vm {
		testhome.Ready(t, base, image.Linux)
	}
	if a.home == "" {
		a.home = testhome.New(t, base)
	}
	var err error
	if a.rt, err = unitask.Open(unitask.Options{Home: a.home, Machines: unitask.Templates()}); err != nil {
		t.Fatal(err)
	}
	if with.ceiling == nil {
		with.ceiling = &policy.Ceiling{}
	}
	server, err := mcp.New(a.rt, mcp.Options{Ceiling: with.ceiling, CallerConcurrent: with.most})
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewUnstartedServer(nil)
	opts := mcp.HTTPOptions{Addr: hs.Listener.Addr().String()}
	if len(with.callers) > 0 {
		file, text := filepath.Join(t.TempDir(), "tokens"), ""
		for _, name := range with.callers {
			text += name + " " + name + "-token-0123456789\n"
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if opts.Auth, err = mcp.TokenFile(file); err != nil {
			t.Fatal(err)
		}
	}
	a.own = New(Options{Runtime: a.rt, Shared: server, Version: "1", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	opts.APIs = []mcp.API{a.own}
	if hs.Config.Handler, err = server.Handler(opts); err != nil {
		t.Fatal(err)
	}
	hs.Start()
	a.url = hs.URL
	stopped := false
	a.stop = func() {
		if !stopped {
			stopped = true
			hs.CloseClientConnections()
			server.Close()
			hs.Close()
			a.rt.Close()
		}
	}
	t.Cleanup(a.stop)
	return a
}

// headers of a request, in pairs.
type headers []string

// as is the header of a caller.
func as(name string) headers { return headers{"Authorization", "Bearer " + name + "-token-0123456789"} }

// object is JSON.
type object = map[string]any

// do sends a request; the caller closes the answer's body.
func (a *api) do(method, path string, body any, with headers) *http.Response {
	a.t.Helper()
	var from io.Reader
	switch body := body.(type) {
	case nil:
	case io.Reader:
		from = body
	default:
		data, err := json.Marshal(body)
		if err != nil {
			a.t.Fatal(err)
		}
		from = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, from)
	if err != nil {
		a.t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(with); i += 2 {
		req.Header.Set(with[i], with[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	return res
}

// send sends a request, and returns the answer and its body.
func (a *api) send(method, path string, body any, with ...string) (*http.Response, []byte) {
	a.t.Helper()
	res := a.do(method, path, body, with)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return res, text
}

// want sends a request that must have a status, and returns the answer's JSON.
func (a *api) want(status int, method, path string, body any, with ...string) (out object) {
	a.t.Helper()
	res, text := a.send(method, path, body, with...)
	if res.StatusCode != status {
		a.t.Fatalf("%s %s: got %d %s, want %d", method, path, res.StatusCode, text, status)
	}
	_ = json.Unmarshal(text, &out)
	return out
}

// refused sends a request that must be refused with a status and a code.
func (a *api) refused(status int, code, method, path string, body any, with ...string) object {
	a.t.Helper()
	res, text := a.send(method, path, body, with...)
	var p object
	_ = json.Unmarshal(text, &p)
	if res.StatusCode != status || p["code"] != code || p["status"] != float64(status) || p["detail"] == "" ||
		res.Header.Get("Content-Type") != "application/problem+json" {
		a.t.Errorf("%s %s: got %d %s, want %d %s", method, path, res.StatusCode, text, status, code)
	}
	return p
}

// python is the request of a run.
func python(code string) object {
	return object{"language": "python", "code": code, "timeoutSeconds": 60}
}

// testContext returns a context that a test ends.
func testContext(t *testing.T) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	return ctx, cancel
}
