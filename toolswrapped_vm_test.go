package unitask_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/session"
)

// pinnedWrapped returns a ceiling whose tables are reviewed. Their servers start in machines.
func pinnedWrapped(t *testing.T, rt *unitask.Runtime, text string, names ...string) *policy.Ceiling {
	t.Helper()
	return pinned(t, text, func(c *policy.Ceiling) toolhost.Wrap {
		return func(ctx context.Context, s *policy.ToolServer, stderr io.Writer) (*toolhost.Process, error) {
			return session.Starter(rt.NewSessionFor).ToolServer(ctx, c, s, stderr)
		}
	}, names...)
}

// Servers of npm and PyPI work in machines of their own, and keep what they know during a run.
func TestToolsWrapped(t *testing.T) {
	needVM(t)
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("packages are installed in machines for minutes: make long (UNITASK_TEST_LONG=1)")
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	ceiling := pinnedWrapped(t, rt, `packages = ["npm:*", "pip:*"]
[tools.memory]
command = ["npx", "-y", "@modelcontextprotocol/server-memory@2026.8.31"]
env = { MEMORY_FILE_PATH = "/tmp/memory.json" }
wrap = true
[tools.clock]
command = ["uvx", "mcp-server-time@2026.10.19", "--local-timezone", "UTC"]
wrap = true
`, "memory", "clock")
	res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, unitask.Request{Language: "js",
		Kernel: unitask.Linux, Tools: []string{"memory", "clock"}, Code: `import { memory, clock } from "unitask:tools";
for (const name of ["a", "b"])
  await memory.create_entities({ entities: [{ name, entityType: "t", observations: ["o"] }] });
console.log((await memory.read_graph({})).entities.length);
const zones = { source_timezone: "UTC", target_timezone: "Asia/Tokyo" };
console.log((await clock.convert_time({ ...zones, time: "12:00" })).time_difference);`}, unitask.IO{})
	if err != nil || string(res.Stdout) != "2\n+9.0h\n" {
		t.Errorf("%v %s%s", err, res.Stdout, res.Stderr)
	}
}

// wrappedServer is an MCP server whose one tool evaluates Python.
const wrappedServer = `import json, os, socket, sys
def send(m, **what): print(json.dumps({"jsonrpc": "2.0", "id": m["id"], **what}), flush=True)
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        r = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
        r["serverInfo"] = {"name": "x", "version": "1"}
    elif m.get("method") == "tools/list":
        r = {"tools": [{"name": "eval", "inputSchema": {"type": "object"}}]}
    elif m.get("method") == "tools/call":
        try: text = repr(eval(m["params"]["arguments"]["code"]))
        except BaseException as e: text = type(e).__name__
        r = {"content": [{"type": "text", "text": text}]}
    elif "id" in m:
        send(m, error={"code": -32601, "message": "no such method"})
        continue
    if "id" in m: send(m, result=r)
`

// wrappedFolders returns a folder with the server's folder, its, and another one.
func wrappedFolders(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	for name, text := range map[string]string{"its/server.py": wrappedServer, "other/note": "of the host"} {
		at := filepath.Join(dir, name)
		err = errors.Join(err, os.Mkdir(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// A server in a machine of its own has the host's files, variables and network only as its table says. The table gives
// it no more than its file allows. Its machine ends with the run.
func TestAttackToolsWrapped(t *testing.T) {
	needVM(t)
	dir := wrappedFolders(t)
	host, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	t.Setenv("WRAPPED_TOKEN", "token-of-the-server")
	t.Setenv("WRAPPED_OTHER", "another-of-the-host")
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	table := fmt.Sprintf("secrets = [\"WRAPPED_TOKEN\"]\ndirsUnder = [%q]\nallowNet = []\n[tools.it]\nwrap = true\n"+
		"command = [\"python3\", %q]\ndirs = [%q]\npassEnv = [\"WRAPPED_TOKEN\"]\n",
		dir+"/its", dir+"/its/server.py", dir+"/its")
	ceiling := pinnedWrapped(t, rt, table, "it")
	rows := [][3]string{
		{"a folder of its table", fmt.Sprintf("open(%q).read()[:11]", dir+"/its/server.py"), "'import json'"},
		{"a write to it", fmt.Sprintf("open(%q, 'w')", dir+"/its/server.py"), "PermissionError"},
		{"another folder of the host", fmt.Sprintf("open(%q).read()", dir+"/other/note"), "FileNotFoundError"},
		{"a variable of its table", "len(os.environ['WRAPPED_TOKEN'])", "19"},
		{"its value in an answer", "os.environ['WRAPPED_TOKEN']", "[redacted]"},
		{"another variable of the host", "os.environ.get('WRAPPED_OTHER')", "None"},
		{"a port of the host", fmt.Sprintf("socket.create_connection(('127.0.0.1', %d), 5)",
			host.Addr().(*net.TCPAddr).Port), "ConnectionRefusedError"},
		{"the network", "socket.create_connection(('example.com', 443), 5)", "gaierror"},
	}
	code, want := "", ""
	for _, row := range rows {
		code += fmt.Sprintf("print(it.eval(code=%q))\n", row[1])
		want += strings.Trim(row[2], "'") + "\n"
	}
	call := func(c *policy.Ceiling, code string) *unitask.Result {
		res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: c}, unitask.Request{Language: "python",
			Kernel: unitask.Linux, Tools: []string{"it"}, Code: "from unitask_tools import it, ToolError\n" + code},
			unitask.IO{})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	res := call(ceiling, code)
	got := strings.Split(strings.ReplaceAll(string(res.Stdout), "'", ""), "\n")
	for i, row := range rows {
		attack.Check(t, "a wrapped server: "+row[0], strings.Trim(row[2], "'"), got[min(i, len(got)-1)])
	}
	if string(res.Stderr) != "" {
		t.Logf("%s", res.Stderr)
	}
	last, err := rt.Runs().Find("last")
	attack.Check(t, "its machine after the run", "[] <nil> "+res.RunID, fmt.Sprint(livingServers(t, rt), err, " ", last))
	for _, more := range []string{`allowNet = ["example.com"]`, `dirs = ["/etc:/work/etc"]`,
		`passEnv = ["WRAPPED_OTHER"]`} {
		key, _, _ := strings.Cut(more, " ")
		text := strings.Split(table, "\n")
		for i, line := range text {
			if i > 3 && strings.HasPrefix(line, key+" ") {
				text[i] = ""
			}
		}
		pin := "pin = \"" + ceiling.ToolServer("it").Pin + "\"\n"
		wide, err := policy.ParseCeiling("test", []byte(strings.Join(text, "\n")+pin+more+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		res := call(wide, `try: it.eval(code="1")
except ToolError as e: print(e.code, "may not have" in str(e))`)
		attack.Check(t, "a table beyond its file: "+more, "server True\n", string(res.Stdout))
	}
}

// wrappedSession starts a session whose code has the tools of the server it, which works in a machine of its own. more
// are lines for the ceiling, and for the server's table.
func wrappedSession(t *testing.T, more, ofTable string) (*unitask.Runtime, *unitask.Session) {
	t.Helper()
	needVM(t)
	dir := wrappedFolders(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	ceiling := pinnedWrapped(t, rt, fmt.Sprintf("dirsUnder = [%[1]q]\n%[3]s[tools.it]\nwrap = true\n"+
		"command = [\"python3\", %[2]q]\ndirs = [%[1]q]\n%[4]s", dir+"/its", dir+"/its/server.py", more, ofTable), "it")
	s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: ceiling}, unitask.SessionRequest{
		Request: unitask.Request{Language: "python", Tools: []string{"it"}}})
	if err != nil {
		t.Fatal(err)
	}
	return rt, s
}

// The machine of a server in use is not paused when it is idle: a slow answer arrives, and nothing stays on the disk.
func TestToolsWrappedIdle(t *testing.T) {
	rt, s := wrappedSession(t, "sessionIdleSeconds = 1\n", "timeoutSeconds = 15\n")
	res, err := s.Run(t.Context(), unitask.Step{Code: `from unitask_tools import it
print(it.eval(code="__import__('time').sleep(6)"))`})
	if err != nil || string(res.Stdout) != "None\n" {
		t.Fatalf("a slow answer: %v %s", err, res.Stderr)
	}
	rt.Close()
	if left := livingServers(t, rt); left != nil {
		t.Errorf("not ended: %q", left)
	}
}

// A server that ends does not leave its machine behind, also if its session goes on.
func TestToolsWrappedEnds(t *testing.T) {
	rt, s := wrappedSession(t, "", "")
	res, err := s.Run(t.Context(), unitask.Step{Code: `from unitask_tools import it, ToolError
try: it.eval(code="os._exit(3)")
except ToolError as e: print(e.code)`})
	if err != nil || string(res.Stdout) != "server\n" {
		t.Fatalf("%v %s%s", err, res.Stdout, res.Stderr)
	}
	testwait.Until(t, "the end of the server's machine", func() bool { return livingServers(t, rt) == nil })
	res, err = s.Run(t.Context(), unitask.Step{Code: `print(it.eval(code="1+1"))`})
	if err != nil || string(res.Stdout) != "2\n" {
		t.Errorf("a new start: %v %s%s", err, res.Stdout, res.Stderr)
	}
}

// livingServers returns the records of wrapped servers that have not ended.
func livingServers(t *testing.T, rt *unitask.Runtime) (living []string) {
	t.Helper()
	ids, err := rt.Runs().IDs()
	for _, id := range ids {
		rec, e := rt.Runs().Get(id)
		if err = errors.Join(err, e); e == nil && rec.Via == record.ViaTools && rec.Finished == nil {
			living = append(living, id)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return living
}
