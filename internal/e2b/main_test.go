package e2b

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"connectrpc.com/connect"

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
	t   *testing.T
	url string
	rt  *unitask.Runtime
	e2b *Server
}

// newAPI serves the API beside MCP. callers have tokens NAME-token-0123456789; without any, the user of this process
// needs none. vm tells whether it starts machines.
func newAPI(t *testing.T, vm bool, callers ...string) *api {
	t.Helper()
	opts := unitask.Options{Machines: unitask.Templates()}
	if vm {
		testhome.Ready(t, base, image.Linux)
	}
	opts.Home = testhome.New(t, base)
	rt, err := unitask.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	server, err := mcp.New(rt, mcp.Options{Ceiling: &policy.Ceiling{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	hs := httptest.NewUnstartedServer(nil)
	with := mcp.HTTPOptions{Addr: hs.Listener.Addr().String()}
	if len(callers) > 0 {
		file, text := filepath.Join(t.TempDir(), "tokens"), ""
		for _, name := range callers {
			text += name + " " + name + "-token-0123456789\n"
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if with.Auth, err = mcp.TokenFile(file); err != nil {
			t.Fatal(err)
		}
	}
	a := &api{t: t, url: hs.URL, rt: rt, e2b: New(Options{Runtime: rt, Caller: server.Caller, Admit: server.Admit,
		Hide: server.Hide, Tokens: len(callers) > 0,
		Domain: "boxes.test", Log: slog.New(slog.NewTextHandler(io.Discard, nil))})}
	with.APIs, with.Hosts = []mcp.API{a.e2b}, []string{"boxes.test"}
	if hs.Config.Handler, err = server.Handler(with); err != nil {
		t.Fatal(err)
	}
	hs.Start()
	a.url = hs.URL
	t.Cleanup(hs.CloseClientConnections)
	t.Cleanup(hs.Close)
	return a
}

// headers of a request, in pairs.
type headers []string

// send sends a request, and returns the answer's status and body.
func (a *api) send(method, path string, body any, with headers) (status int, text []byte) {
	a.t.Helper()
	var from io.Reader
	switch body := body.(type) {
	case nil:
	case []byte:
		from = bytes.NewReader(body)
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
	for i := 0; i < len(with); i += 2 {
		if req.Header.Set(with[i], with[i+1]); with[i] == "Host" {
			req.Host = with[i+1]
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	if text, err = io.ReadAll(res.Body); err != nil {
		a.t.Fatal(err)
	}
	return res.StatusCode, text
}

// object is JSON.
type object = map[string]any

// want sends a request that must have a status, and returns the answer's JSON.
func (a *api) want(status int, method, path string, body any, with ...string) (out object) {
	a.t.Helper()
	got, text := a.send(method, path, body, with)
	if got != status {
		a.t.Fatalf("%s %s: got %d %s, want %d", method, path, got, text, status)
	}
	_ = json.Unmarshal(text, &out)
	return out
}

// box is a sandbox as its owner sees it.
type box struct {
	*api
	id, token, traffic string
	key                headers // of its owner
}

// create makes a sandbox of the image python.
func (a *api) create(key headers, more object) *box {
	a.t.Helper()
	in := object{"templateID": "python", "timeout": 300}
	for name, value := range more {
		in[name] = value
	}
	out := a.want(http.StatusCreated, "POST", "/v2/sandboxes", in, key...)
	b := &box{api: a, id: out["sandboxID"].(string), token: fmt.Sprint(out["envdAccessToken"]),
		traffic: fmt.Sprint(out["trafficAccessToken"]), key: key}
	a.t.Cleanup(func() {
		if box := a.e2b.find(b.id); box != nil {
			_ = a.e2b.kill(box)
		}
	})
	return b
}

// headers returns those of a request to a port of the sandbox.
func (b *box) headers(port int, more ...string) headers {
	return append(headers{idHeader, b.id, portHeader, fmt.Sprint(port), tokenHeader, b.token}, more...)
}

// as is the header of a request for a user of the sandbox.
func as(user string) (name, value string) {
	return "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"))
}

// call calls a unary method of the sandbox's daemon, in the binary form.
func call[In, Out any](b *box, method string, in *In, with ...string) (*Out, error) {
	c := connect.NewClient[In, Out](http.DefaultClient, b.url+method, connect.WithCodec(binaryCodec{}))
	req := connect.NewRequest(in)
	for i, all := 0, append(b.headers(daemonPort), with...); i < len(all); i += 2 {
		req.Header().Set(all[i], all[i+1])
	}
	res, err := c.CallUnary(b.t.Context(), req)
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// stream calls a method that streams, in the JSON form.
func stream[In, Out any](ctx context.Context, b *box, method string, in *In, with ...string) (
	*connect.ServerStreamForClient[Out], error) {
	c := connect.NewClient[In, Out](http.DefaultClient, b.url+method, connect.WithCodec(jsonCodec{"json"}))
	req := connect.NewRequest(in)
	for i, all := 0, append(b.headers(daemonPort), with...); i < len(all); i += 2 {
		req.Header().Set(all[i], all[i+1])
	}
	return c.CallServerStream(ctx, req)
}
