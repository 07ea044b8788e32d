package toolhost

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
)

// hostileServer returns a server that is a program of Python. It lists the tool "echo", then does what code says. The
// code can call send(object) and read().
func hostileServer(t testing.TB, code string) *policy.ToolServer {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("no python3")
	}
	file := filepath.Join(t.TempDir(), "server.py")
	text := `import json, os, sys, time
def send(o): sys.stdout.write(json.dumps({"jsonrpc": "2.0", **o}) + "\n"); sys.stdout.flush()
def read(): return json.loads(sys.stdin.buffer.readline() or os._exit(0))
def answer(m):
    if m.get("method") == "initialize":
        send({"id": m["id"], "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo":
            {"name": "x", "version": "1"}}})
    elif m.get("method") == "tools/list":
        send({"id": m["id"], "result": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}})
        return True
    elif "id" in m:
        send({"id": m["id"], "error": {"code": -32601, "message": "no such method"}})
while not answer(read()): pass
` + code
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &policy.ToolServer{Name: "test", Command: []string{"python3", file}, MaxCalls: 1000, MaxResult: 4 << 20,
		Timeout: time.Second}
	list, err := Fetch(t.Context(), p, os.Stderr, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Pin = list.Digest()
	return p
}

// within runs a function, and returns whether it ended in time.
func within(most time.Duration, do func()) string {
	done := make(chan struct{})
	go func() {
		do()
		close(done)
	}()
	select {
	case <-done:
		return "ended"
	case <-time.After(most):
		return "hangs"
	}
}

// A server that stops reading its input delays no call and no end of a run.
func TestAttackToolsUnread(t *testing.T) {
	r := newRig(t, hostileServer(t, "time.sleep(1000)"), nil)
	got := ""
	attack.Check(t, "a call", "ended", within(10*time.Second, func() {
		got = code(r.send(t, "POST", "/call/test/echo", `{"text":"`+strings.Repeat("x", 900<<10)+`"}`))
	}))
	attack.Check(t, "its answer", "timeout", got)
	attack.Check(t, "the end", "ended", within(10*time.Second, r.Close))
}

// An answer with a million brackets does not end the process.
func TestAttackToolsDeepAnswer(t *testing.T) {
	r := newRig(t, hostileServer(t, `
m = read()
begin = '{"jsonrpc":"2.0","id":%s,"result":{"content":[],"structuredContent":'
sys.stdout.write(begin % json.dumps(m["id"]) + "[" * 4000000 + "\n")
sys.stdout.flush(); time.sleep(1000)`), nil)
	attack.Check(t, "a call", "server", code(r.send(t, "POST", "/call/test/echo", `{}`)))
}

// A server that sends without end, beside its answers, is ended. Its requests do not pile up.
func TestAttackToolsFlood(t *testing.T) {
	r := newRig(t, hostileServer(t, `
n = 0
while True:
    n += 1
    send({"id": n, "method": "ping"})`), nil)
	r.servers["test"].Timeout = time.Minute
	attack.Check(t, "a call", "server", code(r.send(t, "POST", "/call/test/echo", `{}`)))
	attack.Check(t, "the end", "ended", within(10*time.Second, r.Close))
}

// A server that leaves its process group ends with the run.
func TestAttackToolsOtherGroup(t *testing.T) {
	r := newRig(t, hostileServer(t, "os.setpgid(0, os.getpgid(os.getppid())); time.sleep(1000)"), nil)
	attack.Check(t, "a call", "timeout", code(r.send(t, "POST", "/call/test/echo", `{}`)))
	attack.Check(t, "the end", "ended", within(10*time.Second, r.Close))
}

// Failures that the code causes do not fill the disk.
func TestAttackToolsRecordSize(t *testing.T) {
	r := newRig(t, hostileServer(t, "time.sleep(1000)"), nil)
	size, lines := int64(0), 0
	for range 60_000 {
		line := Call{Server: "test", Tool: strings.Repeat("\x01", 200), Code: "unknown",
			Error: strings.Repeat("<", maxKeptError)}
		if r.room(&line) {
			text, err := json.Marshal(line)
			if err != nil {
				t.Fatal(err)
			}
			size, lines = size+int64(len(text)), lines+1
		}
	}
	attack.Check(t, "the record's size", "true true", fmt.Sprint(size <= 2*maxKeptAll, lines > 10_000))
}

// shell runs the shell's client against a listener, and returns what it printed. wait replaces its patience in seconds.
func shell(t testing.TB, l net.Listener, wait string, args ...string) string {
	t.Helper()
	text, err := os.ReadFile("../../guest/tools/unitask-tool.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	script := strings.NewReplacer("host=10.0.2.3", "host=127.0.0.1", "$host/80", "$host/"+port, "-t 20", "-t "+wait).
		Replace(string(text))
	cmd := exec.CommandContext(t.Context(), "bash", append([]string{"-c", script, "unitask-tool"}, args...)...)
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// The shell's client waits for a slow call while the host gives signs of life, and for nothing else.
func TestAttackToolsShell(t *testing.T) {
	p, s := newServer(t)
	sdk.AddTool(s, &sdk.Tool{Name: "slow", Description: "does slow"},
		func(ctx context.Context, _ *sdk.CallToolRequest, in text) (*sdk.CallToolResult, any, error) {
			timed, cancel := context.WithTimeout(ctx, 2*beatTime+beatTime/2)
			defer cancel()
			<-timed.Done()
			return plain(in.Text), nil, nil
		})
	p.Timeout = time.Hour
	list, err := Fetch(t.Context(), p, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Pin = list.Digest()
	r := newRig(t, p, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
			go r.Serve(conn)
		}
	}()
	attack.Check(t, "a slow call", "a b\n", shell(t, l, "4", "test.slow", `{"text":"a b"}`))
	attack.Check(t, "arguments that do not fit", "true",
		fmt.Sprint(strings.HasPrefix(shell(t, l, "4", "test.slow", `{"text":1}`), "unitask-tool: arguments: ")))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	attack.Check(t, "a host that is gone", "true",
		fmt.Sprint(strings.Contains(shell(t, silent, "1", "test.slow", "{}"), "the call was cut off")))
}

// A number that a 64-bit float can't keep is refused, and not changed.
func TestAttackLargeNumbers(t *testing.T) {
	for text, want := range map[string]bool{
		`{"n": 9007199254740992}`: true, `{"n": -9007199254740991}`: true, `{"n": 1.5, "m": [0, 1e300, 0.1]}`: true,
		`{"n": 9007199254740993}`: false, `{"o": {"n": [-9007199254740993]}}`: false,
		`{"n": 1` + strings.Repeat("0", 400) + `}`: false, `{"9007199254740993": "9007199254740993"}`: true,
	} {
		_, err := decodeArguments([]byte(text))
		attack.Check(t, "arguments "+text[:min(len(text), 40)], fmt.Sprint(want), fmt.Sprint(err == nil))
	}
}
