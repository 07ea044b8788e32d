package mcp_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/mcp"
)

// On a signal, the server lets runs end and accepts no others. Tested with the real program, with TLS.
func TestDrain(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert := httptest.NewTLSServer(nil)
	cert.Close()
	certFile, keyFile := writePair(t, dir, cert)
	cmd := exec.Command(name, "mcp", "--http", "127.0.0.1:0", "--pool", "0", "--tls-cert", certFile, "--tls-key", keyFile,
		"--log-json")
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+testhome.New(t, base))
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	lines := bufio.NewScanner(errs)
	url := ""
	for url == "" && lines.Scan() {
		if m := regexp.MustCompile(`serving (https://\S+)/mcp`).FindStringSubmatch(lines.Text()); m != nil {
			url = m[1]
		}
	}
	go func() {
		for lines.Scan() {
		}
	}()
	client := cert.Client()
	begun := make(chan struct{}, 1)
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"},
		&sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			if strings.Contains(r.Params.Message, "begun") {
				begun <- struct{}{}
			}
		}}).Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url + "/mcp", HTTPClient: client}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		params := &sdk.CallToolParams{Name: "run_code",
			Arguments: js("console.log('begun'); setTimeout(() => console.log('done'), 1500)")}
		params.SetProgressToken("p")
		res, err := cs.CallTool(t.Context(), params)
		if err != nil || res.IsError || res.StructuredContent.(object)["stdout"] != "begun\ndone\n" {
			t.Errorf("%+v %v", res, err)
		}
	})
	<-begun
	begin := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for status := 0; status != http.StatusServiceUnavailable; { // until the server has handled the signal
		r, err := http.NewRequestWithContext(ctx, "GET", url+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(r)
		if err != nil {
			t.Fatalf("after %d: %v", status, err)
		}
		res.Body.Close()
		status = res.StatusCode
	}
	if res, err := cs.CallTool(ctx, &sdk.CallToolParams{Name: "run_code", Arguments: js("1")}); err == nil &&
		!res.IsError {
		t.Errorf("%+v", res)
	}
	group.Wait()
	if err := cmd.Wait(); err != nil || time.Since(begin) > 10*time.Second {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
}

// endless is a call without an end.
const endless = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"run_code",` +
	`"arguments":{"language":"js","code":"setInterval(() => {}, 1e6)"}%s}}`

// newMeta is what a client of 2026-07-28 adds to a call.
const newMeta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientCapabilities":{}}`

// A call cancelled over HTTP, a client that disconnects, and an ended session leave no machine.
func TestHTTPCancel(t *testing.T) {
	started := make(chan struct{}, 10)
	progress := mcp.NewProgress(func(e unitask.Event) {
		if e.Kind == unitask.EventStarted {
			started <- struct{}{}
		}
	})
	rt := openWith(t, unitask.Options{Events: progress.Event})
	home := rt.Images().Home()
	s := newServer(t, rt, mcp.Options{Progress: progress})
	url := serve(t, s, mcp.HTTPOptions{})
	begun := func() {
		t.Helper()
		select {
		case <-started:
		case <-time.After(30 * time.Second):
			t.Fatal("nothing runs")
		}
	}
	ended := func(t *testing.T) {
		t.Helper()
		queueIs(t, s, 0, 0, time.Second)
		noMachines(t, home)
	}
	post := func(ctx context.Context, body string, headers ...string) {
		r, err := http.NewRequestWithContext(ctx, "POST", url+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", "application/json, text/event-stream")
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		if res, err := http.DefaultClient.Do(r); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	t.Run("the client's context", func(t *testing.T) {
		cs := connect(t, url, "")
		ctx, cancel := context.WithCancel(t.Context())
		group.Go(func() {
			_, _ = cs.CallTool(ctx, &sdk.CallToolParams{Name: "run_code", Arguments: js("setInterval(() => {}, 1e6)")})
		})
		begun()
		cancel()
		ended(t)
	})
	t.Run("a client of 2026-07-28 hangs up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		group.Go(func() {
			post(ctx, strings.Replace(endless, "%s", newMeta, 1), revision, "Mcp-Method: tools/call", "Mcp-Name: run_code")
		})
		begun()
		cancel()
		ended(t)
	})
	for name, end := range map[string]func(session string){
		"an older client's notification": func(session string) {
			post(t.Context(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`,
				"Mcp-Session-Id: "+session)
		},
		"an older session is ended": func(session string) { send(t, "DELETE", url+"/mcp", "", "Mcp-Session-Id: "+session) },
	} {
		t.Run(name, func(t *testing.T) {
			_, h, _ := send(t, "POST", url+"/mcp", initialize)
			session := h.Get("Mcp-Session-Id")
			send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, "Mcp-Session-Id: "+session)
			group.Go(func() { post(t.Context(), strings.Replace(endless, "%s", "", 1), "Mcp-Session-Id: "+session) })
			begun()
			end(session)
			ended(t)
		})
	}
}

// An older client whose connection breaks gets the rest of its stream, including the result, when it reconnects.
func TestResume(t *testing.T) {
	rt := open(t, unitask.PoolSize{})
	url := serve(t, newServer(t, rt, mcp.Options{}), mcp.HTTPOptions{})
	_, h, _ := send(t, "POST", url+"/mcp", initialize)
	session := "Mcp-Session-Id: " + h.Get("Mcp-Session-Id")
	send(t, "POST", url+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", url+"/mcp",
		strings.NewReader(
			`{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"_meta":{"progressToken":"p"},"name":"run_code",`+
				`"arguments":{"language":"js","code":"console.log('first'); setTimeout(() => console.log('last'), 1000)"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{session, "Content-Type: application/json",
		"Accept: application/json, text/event-stream"} {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	id := ""
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			id = v
		}
		if strings.Contains(lines.Text(), "first") {
			break
		}
	}
	cancel() // the connection breaks
	res.Body.Close()
	code, rest := 0, ""
	for begin := time.Now(); code != 200 && time.Since(begin) < 10*time.Second; { // until the server has noticed the break
		code, _, rest = send(t, "GET", url+"/mcp", "", session, "Last-Event-ID: "+id)
	}
	if code != 200 || !strings.Contains(rest, `"id":9`) || !strings.Contains(rest, `"stdout":"first\nlast\n"`) {
		t.Errorf("%d after event %q:\n%s", code, id, rest)
	}
}
