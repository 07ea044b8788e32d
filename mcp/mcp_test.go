package mcp_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testprogram"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

var base = func() string {
	home, err := testhome.Base()
	if err != nil {
		panic(err)
	}
	return home
}()

// program builds the unitask command, once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "unitask-mcp-")
	if err != nil {
		return "", err
	}
	return testprogram.Build(dir)
})

func TestMain(m *testing.M) {
	if how := os.Getenv(stranger); how != "" {
		os.Exit(callAsStranger(how))
	}
	code := m.Run()
	if name, err := program(); err == nil {
		os.RemoveAll(filepath.Dir(name))
	}
	os.Exit(code)
}

// open returns a runtime on its own home.
func open(t *testing.T, pool unitask.PoolSize) *unitask.Runtime {
	t.Helper()
	return openWith(t, unitask.Options{Machines: unitask.Pool(pool, unitask.MachineClass{})})
}

func openWith(t *testing.T, opts unitask.Options) *unitask.Runtime {
	t.Helper()
	testhome.Ready(t, base, image.Linux)
	opts.Home = testhome.New(t, base)
	rt, err := unitask.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt
}

// bare returns a runtime on an empty home.
func bare(t *testing.T) *unitask.Runtime {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt
}

// noMachine is a ceiling for an empty home. Under it, a call gets as far as its record but not to a machine, because
// the only allowed kernel is not vendored.
func noMachine() *policy.Ceiling {
	c, err := policy.ParseCeiling("test",
		[]byte("kernel = \"nanos\"\nfilesUnder = []\ndirsUnder = []\nsecrets = []\nallowTcp = []"))
	if err != nil {
		panic(err)
	}
	return c
}

func newServer(t *testing.T, rt *unitask.Runtime, opts mcp.Options) *mcp.Server {
	t.Helper()
	if testing.Verbose() {
		opts.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	s, err := mcp.New(rt, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// serve serves over HTTP, and returns the URL.
func serve(t *testing.T, s *mcp.Server, opts mcp.HTTPOptions) string {
	t.Helper()
	hs := httptest.NewUnstartedServer(nil)
	opts.Addr = hs.Listener.Addr().String()
	h, err := s.Handler(opts)
	if err != nil {
		t.Fatal(err)
	}
	hs.Config.Handler = h
	hs.Start()
	t.Cleanup(hs.CloseClientConnections)
	t.Cleanup(hs.Close)
	return hs.URL
}

// stdio starts the real program, as a client does.
func stdio(t *testing.T, home, dir string, opts *sdk.ClientOptions, args ...string) *sdk.ClientSession {
	t.Helper()
	return logged(t, home, dir, opts, io.Discard, args...)
}

// logged is stdio that also writes the client's input and output to wire, in the order of the pipe.
func logged(t *testing.T, home, dir string, opts *sdk.ClientOptions, wire io.Writer,
	args ...string) *sdk.ClientSession {
	t.Helper()
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, append([]string{"mcp", "--pool", "0"}, args...)...)
	cmd.Env, cmd.Dir, cmd.Stderr = append(os.Environ(), "UNITASK_HOME="+home, "A_SECRET=do-not-tell"), dir, os.Stderr
	transport := &sdk.LoggingTransport{Transport: &sdk.CommandTransport{Command: cmd}, Writer: wire}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	return cs
}

type object = map[string]any

// js returns a call of run_code with JavaScript.
func js(code string) object { return object{"language": "js", "code": code} }

// call calls a tool, and sends its arguments unchanged.
func call(t *testing.T, cs *sdk.ClientSession, tool string, args any) (*sdk.CallToolResult, object, string) {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	text := ""
	for _, c := range res.Content {
		if c, ok := c.(*sdk.TextContent); ok {
			text += c.Text
		}
	}
	structured, _ := res.StructuredContent.(object)
	return res, structured, text
}

// The code's output comes while it runs. A cancelled call, and a client that disconnects, leave no machine.
func TestLive(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	home := testhome.New(t, base)
	progress, wire := make(chan string, 100), &bytes.Buffer{}
	last := 0.0
	cs := logged(t, home, t.TempDir(), &sdk.ClientOptions{ProgressNotificationHandler: func(_ context.Context,
		r *sdk.ProgressNotificationClientRequest) {
		if r.Params.Progress <= last {
			t.Errorf("progress went from %v to %v", last, r.Params.Progress)
		}
		last = r.Params.Progress
		progress <- r.Params.Message
	}}, wire)
	params := &sdk.CallToolParams{Name: "run_code",
		Arguments: js("let n = 0; const t = setInterval(() => { console.log('tick', n, 'ü'); " +
			"if (++n == 4) clearInterval(t) }, 250)")}
	params.SetProgressToken("p")
	res, err := cs.CallTool(t.Context(), params)
	if err != nil || res.IsError {
		t.Fatalf("%+v %v", res, err)
	}
	// All output was sent before the result. The SDK's client calls its progress handler concurrently, so the handler may
	// receive the last output after the call has returned.
	if all := wire.String(); strings.LastIndex(all, "notifications/progress") > strings.Index(all, "structuredContent") {
		t.Errorf("progress came after the result:\n%s", all)
	}
	const want = "tick 0 ü\ntick 1 ü\ntick 2 ü\ntick 3 ü\n"
	all, parts := "", 0
	for late := time.After(10 * time.Second); len(all) < len(want); parts++ {
		select {
		case text := <-progress:
			all += text
		case <-late:
			t.Fatalf("%d parts: %q", parts, all)
		}
	}
	if parts < 3 || all != want {
		t.Errorf("%d parts: %q", parts, all)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for text := range progress {
			if strings.Contains(text, "up") {
				cancel()
				return
			}
		}
	}()
	params = &sdk.CallToolParams{Name: "run_code",
		Arguments: js("console.log('up'); setInterval(() => {}, 1e6)")}
	params.SetProgressToken("q")
	last = 0
	if _, err := cs.CallTool(ctx, params); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for begin := time.Now(); ; {
		_, out, _ := call(t, cs, "inspect_run", object{"runId": "last"})
		if out["status"] != "running" {
			break
		}
		if time.Since(begin) > time.Second {
			t.Fatalf("still there after a second: %v", out)
		}
	}
	noMachines(t, home)
}

// queueIs waits until this number of calls wait and this number of runs are in progress.
func queueIs(t *testing.T, s *mcp.Server, waiting, running int, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := mcp.QueueIs(ctx, s, waiting, running); err != nil {
		t.Fatalf("after %s it is not so that %d calls wait and %d run: %v", within, waiting, running, err)
	}
}

// Fifty calls at once on few machines: each gets its own answer.
func TestConcurrentCalls(t *testing.T) {
	rt := openWith(t, unitask.Options{Machines: unitask.Pool(unitask.PoolSize{Min: 1, Max: 2},
		unitask.MachineClass{Image: "shell"})})
	s := newServer(t, rt, mcp.Options{MaxConcurrent: 2, MaxQueue: 100})
	url := serve(t, s, mcp.HTTPOptions{})
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(),
		&sdk.StreamableClientTransport{Endpoint: url + "/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code",
				Arguments: object{"language": "shell", "code": fmt.Sprintf("echo $((%d * 2))", i)}})
			if err != nil || res.IsError || res.StructuredContent.(object)["stdout"] != fmt.Sprintf("%d\n", i*2) {
				t.Errorf("%d: %+v %v", i, res, err)
			}
		})
	}
	group.Wait()
}

// Without room, a call gets an error at once.
func TestBackPressure(t *testing.T) {
	rt := open(t, unitask.PoolSize{})
	s := newServer(t, rt, mcp.Options{MaxConcurrent: 1, MaxQueue: 1})
	cs := inMemory(t, s, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	for range 2 { // one runs, one waits
		group.Go(func() {
			_, _ = cs.CallTool(ctx, &sdk.CallToolParams{Name: "run_code",
				Arguments: js("setInterval(() => {}, 1e6)")})
		})
	}
	queueIs(t, s, 1, 1, 20*time.Second)
	res, _, text := call(t, cs, "run_code", js("1"))
	if !res.IsError || !strings.Contains(text, "busy: 1 runs are under way and 1 wait") {
		t.Errorf("%q", text)
	}
	full := 0
	err := rt.Audit().Read(func(_ int64, line []byte) error {
		if strings.Contains(string(line), `"kind":"queue.full"`) &&
			strings.Contains(string(line), "busy: 1 runs are under way and 1 wait") {
			full++
		}
		return nil
	})
	if err != nil || full != 1 {
		t.Errorf("%d entries in the audit log, %v", full, err)
	}
}

// inMemory connects a client without a network.
func inMemory(t *testing.T, s *mcp.Server, opts *sdk.ClientOptions) *sdk.ClientSession {
	t.Helper()
	a, b := sdk.NewInMemoryTransports()
	ss, err := mcp.SDK(s).Connect(t.Context(), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close(); _ = ss.Wait() })
	return cs
}

// Whatever the arguments are, the answer is the tool's, and not a protocol error.
func FuzzArguments(f *testing.F) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(f)})
	if err != nil {
		f.Fatal(err)
	}
	// No run gets as far as a machine: the only allowed kernel is not vendored.
	ceiling, err := policy.ParseCeiling("c.toml",
		[]byte("kernel = \"nanos\"\nfilesUnder = []\ndirsUnder = []\nsecrets = []"))
	if err != nil {
		f.Fatal(err)
	}
	s, err := mcp.New(rt, mcp.Options{Dir: f.TempDir(), Ceiling: ceiling})
	if err != nil {
		f.Fatal(err)
	}
	a, b := sdk.NewInMemoryTransports()
	if _, err := mcp.SDK(s).Connect(context.Background(), a, nil); err != nil {
		f.Fatal(err)
	}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "fuzz", Version: "1"}, nil).Connect(context.Background(), b, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("run_code", `{"language":"js","code":"1","allowNet":["a.com"],"memoryMb":512}`)
	f.Add("run_code", `{"language":"js","code":"1","files":["/etc/passwd:/x"],"secrets":["PATH"],"env":{"a":"b"}}`)
	f.Add("run_code", `{"language":"js","code":"1","files":[{"name":"a/b.js","content":"1"},"x",{"name":"../x",`+
		`"content":""}]}`)
	f.Add("inspect_run", `{"runId":"../x"}`)
	f.Add("list_runs", `{"limit":-1}`)
	f.Fuzz(func(t *testing.T, tool, args string) {
		if !json.Valid([]byte(args)) || !strings.HasPrefix(args, "{") ||
			(tool != "run_code" && tool != "inspect_run" && tool != "list_runs") {
			return
		}
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(args)})
		if err != nil {
			t.Fatalf("%s %s: %v", tool, args, err)
		}
		if tool == "run_code" && !res.IsError {
			t.Errorf("%s ran", args)
		}
	})
}
