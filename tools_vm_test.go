package unitask_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testregistry"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/policy"
)

// toolCeiling returns a ceiling with published MCP servers: two from npm, and one from PyPI. Their lists of tools are
// reviewed.
func toolCeiling(t *testing.T, at string) *policy.Ceiling {
	t.Helper()
	base := baseHome
	npm := testregistry.NPM(t, base, "tools", "@modelcontextprotocol/server-filesystem@2026.8.31",
		"@modelcontextprotocol/server-everything@2026.8.31")
	pip := testregistry.Pip(t, base, "tools", "mcp-server-time==2026.10.19")
	node := func(name string) string {
		return filepath.Join(npm, "node_modules/@modelcontextprotocol", name, "dist/index.js")
	}
	text := fmt.Sprintf(`[tools.fs]
command = ["node", %q, %q]
allow = ["read_*", "write_*"]
[[tools.fs.where]]
tool = "write_file"
argument = "path"
matches = %q
[tools.every]
command = ["node", %q, "stdio"]
approve = true
allow = ["echo"]
[tools.more]
command = ["node", %q, "stdio"]
allow = ["echo"]
[tools.clock]
command = ["python3", "-m", "mcp_server_time"]
env = { PYTHONPATH = %q }
`, node("server-filesystem"), at, at+"/[a-z]*", node("server-everything"), node("server-everything"), pip)
	return pinned(t, text, func(*policy.Ceiling) toolhost.Wrap { return nil }, "fs", "every", "more", "clock")
}

// pinned returns the ceiling of a text, with the lists of these servers' tools reviewed.
func pinned(t *testing.T, text string, wrap func(*policy.Ceiling) toolhost.Wrap, names ...string) *policy.Ceiling {
	t.Helper()
	for _, name := range names {
		c, err := policy.ParseCeiling("test", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		list, err := toolhost.Fetch(t.Context(), c.ToolServer(name), os.Stderr, wrap(c))
		if err != nil {
			t.Fatal(name, err)
		}
		reviewed, err := policy.WithPin("test", []byte(text), name, list.Digest())
		if err != nil {
			t.Fatal(err)
		}
		text = string(reviewed)
	}
	c, err := policy.ParseCeiling("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// programs call the same tools in three languages. The results are the same, too.
var toolPrograms = map[string]string{
	"js": `import { fs, clock, more, ToolError } from "unitask:tools";
await fs.write_file({ path: "DIR/a", content: "hello" });
console.log((await fs.read_text_file({ path: "DIR/a" })).content ?? await fs.read_text_file({ path: "DIR/a" }));
const zones = { source_timezone: "UTC", target_timezone: "Asia/Tokyo" };
console.log((await clock.convert_time({ ...zones, time: "12:00" })).time_difference);
console.log(await more.echo({ message: "third" }));
for (const call of [() => fs.write_file({ path: "/etc/x", content: "" }), () => fs.list_directory({ path: "DIR" }),
  () => clock.convert_time({})])
  await call().catch((e) => console.log(e instanceof ToolError && e.code));`,
	"python": `from unitask_tools import fs, clock, more, ToolError
fs.write_file(path="DIR/a", content="hello")
said = fs.read_text_file(path="DIR/a")
print(said if isinstance(said, str) else said["content"])
print(clock.convert_time(source_timezone="UTC", target_timezone="Asia/Tokyo", time="12:00")["time_difference"])
print(more.echo(message="third"))
for call in (lambda: fs.write_file(path="/etc/x", content=""), lambda: fs.list_directory(path="DIR"),
             clock.convert_time):
    try: call()
    except ToolError as e: print(e.code)`,
	"shell": `unitask-tool fs.write_file '{"path":"DIR/a","content":"hello"}' >&2
unitask-tool fs.read_text_file '{"path":"DIR/a"}' | grep -o hello
zones='"source_timezone":"UTC","target_timezone":"Asia/Tokyo"'
unitask-tool clock.convert_time "{$zones,\"time\":\"12:00\"}" | jq -r .time_difference
unitask-tool more.echo '{"message":"third"}'
{ unitask-tool fs.write_file '{"path":"/etc/x","content":""}'; unitask-tool fs.list_directory '{"path":"DIR"}'
  unitask-tool clock.convert_time; } 2>&1 | cut -d: -f2 | tr -d ' '`,
}

// Code calls published MCP servers, within the ceiling. A replay gives the same answers without them.
func TestAttackTools(t *testing.T) {
	needVM(t)
	at, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ceiling, where := toolCeiling(t, at), newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: where})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const want = "hello\n+9.0h\nEcho: third\ndenied\ndenied\narguments\n"
	rows := [][2]string{{"js", "linux"}, {"python", "linux"}, {"shell", "linux"}}
	if slices.Contains(kernels(t), image.Nanos) {
		rows = append(rows, [2]string{"js", "nanos"}, [2]string{"python", "nanos"})
	}
	for _, row := range rows {
		language, kernel := row[0], row[1]
		req := unitask.Request{Code: strings.ReplaceAll(toolPrograms[language], "DIR", at), Language: language,
			Kernel: unitask.Kernel(kernel), Tools: []string{"fs", "clock", "more", "other"}}
		res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, req, unitask.IO{})
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "tools in "+language+" on "+kernel, want, string(res.Stdout))
		if res.Stderr = res.Stderr[:min(len(res.Stderr), 2000)]; string(res.Stdout) != want {
			t.Logf("%s", res.Stderr)
		}
		attack.Check(t, "tools that no ceiling has", "[other]", fmt.Sprint(denied(res, "tools")))
		if language != "python" || kernel != "linux" {
			continue
		}
		again, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, req, unitask.IO{ToolsOf: res.RunID})
		if err != nil {
			t.Fatal(err)
		}
		calls, err := rt.History().ToolCalls(again.RunID)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a replay", want+" 7 calls", fmt.Sprintf("%s %d calls", again.Stdout, len(calls)))
	}
}

func denied(res *unitask.Result, field string) (list []string) {
	for _, d := range res.Policy.Denials {
		if d.Field == field {
			list = append(list, d.Requested)
		}
	}
	return list
}

// The machine is stopped while somebody is asked about a call. Without a ceiling there are no tools.
func TestAttackToolApproval(t *testing.T) {
	needVM(t)
	ceiling := toolCeiling(t, t.TempDir())
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	req := unitask.Request{Language: "shell", Kernel: unitask.Linux, Tools: []string{"every"},
		Code: `for text in a b; do unitask-tool every.echo "{\"message\":\"$text\"}" 2>&1 | cut -c1-60; done`}
	var asked []string
	res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, req, unitask.IO{
		Approve: func(_ context.Context, q unitask.Question) unitask.Verdict {
			asked = append(asked, q.Wants())
			return map[bool]unitask.Verdict{true: unitask.AllowOnce, false: unitask.Deny}[len(asked) == 1]
		}})
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "questions", `[to call the tool every.echo with {"message":"a"} (tools.every.approve) `+
		`to call the tool every.echo with {"message":"b"} (tools.every.approve)]`, fmt.Sprint(asked))
	attack.Check(t, "answers", "Echo: a\nunitask-tool: denied: the call was not approved: the call of\n",
		string(res.Stdout))
	_, err = rt.RunFor(t.Context(), unitask.Caller{}, req, unitask.IO{})
	attack.Check(t, "tools without a ceiling", "true",
		fmt.Sprint(err != nil && strings.Contains(err.Error(), "[tools.every]")))
}

// Code calls functions of the program that embeds unitask. A replay does not need that program.
func TestOwnTools(t *testing.T) {
	needVM(t)
	type order struct {
		Number int `json:"number"`
	}
	type total struct {
		Cents int `json:"cents"`
	}
	shop := mcp.NewServer(&mcp.Implementation{Name: "shop"}, nil)
	asked := 0
	mcp.AddTool(shop, &mcp.Tool{Name: "total", Description: "Returns an order's total."},
		func(_ context.Context, _ *mcp.CallToolRequest, in order) (*mcp.CallToolResult, total, error) {
			asked++
			return nil, total{100 * in.Number}, nil
		})
	where := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: where})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	req := unitask.Request{Path: "sum.mjs", Code: `import { shop } from "unitask:tools";
let sum = 0;
for (let number = 1; number <= 20; number++) sum += (await shop.total({ number })).cents;
console.log(sum);`, Kernel: unitask.Linux}
	res, err := rt.Run(t.Context(), req, unitask.IO{Tools: map[string]*mcp.Server{"shop": shop}})
	if err != nil || string(res.Stdout) != "21000\n" || asked != 20 {
		t.Fatalf("%v %s%s, %d calls", err, res.Stdout, res.Stderr, asked)
	}
	if log, err := os.ReadFile(filepath.Join(where, "audit", "log.jsonl")); err != nil ||
		!strings.Contains(string(log), `"clientTools":["shop"]`) {
		t.Errorf("the audit log does not have the functions: %v", err)
	}
	again, err := rt.Run(t.Context(), req, unitask.IO{ToolsOf: res.RunID})
	if err != nil || string(again.Stdout) != "21000\n" || asked != 20 {
		t.Errorf("a replay: %v %s%s, %d calls", err, again.Stdout, again.Stderr, asked)
	}
}

// A ceiling forbids functions of the caller before anything runs.
func TestAttackOwnToolsForbidden(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	own := map[string]*mcp.Server{"shop": mcp.NewServer(&mcp.Implementation{Name: "shop"}, nil)}
	for name, text := range map[string]string{"a file": "clientTools = false",
		"a principal": "clientTools = true\n[principals.a]\nclientTools = false"} {
		c, err := policy.ParseCeiling("test", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		caller := unitask.Caller{Ceiling: c.For("a")}
		_, run := rt.RunFor(t.Context(), caller, unitask.Request{Language: "shell", Code: "true"}, unitask.IO{Tools: own})
		_, session := rt.NewSessionFor(t.Context(), caller, unitask.SessionRequest{OwnTools: own})
		for _, err := range []error{run, session} {
			attack.Check(t, "functions that "+name+" forbids", "true",
				fmt.Sprint(err != nil && strings.Contains(err.Error(), "key clientTools")))
		}
	}
}
