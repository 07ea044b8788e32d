package unitask_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testregistry"
	unitaskmcp "github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// countTokens prints the number of tokens of each text of a JSON list, by the encoding o200k_base.
const countTokens = `const { getEncoding } = require("js-tiktoken")
const e = getEncoding("o200k_base")
console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0)).map((text) => e.encode(text, "all").length)))`

// tokensOf returns the tokens of texts.
func tokensOf(t *testing.T, texts ...string) (counts []int) {
	t.Helper()
	dir := testregistry.NPM(t, baseHome, "tokens", "js-tiktoken@1.0.21")
	cmd := exec.CommandContext(t.Context(), "node", "-e", countTokens)
	in, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Dir, cmd.Stdin, cmd.Stderr = dir, bytes.NewReader(in), os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &counts)
	}
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// toolClient connects to a server of a ceiling as an agent does, and returns its list of tools as JSON.
func toolClient(t *testing.T, s *policy.ToolServer) (*mcp.ClientSession, string) {
	t.Helper()
	cmd := exec.Command(s.Command[0], s.Command[1:]...)
	cmd.Env = os.Environ()
	for name, value := range s.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(),
		&mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cs.Close() })
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list.Tools)
	if err != nil {
		t.Fatal(err)
	}
	return cs, string(text)
}

// twentySteps reads 16 files, converts 3 times of day, and writes a summary: 20 calls.
const twentySteps = `import { fs, clock } from "unitask:tools";
const text = (r) => r.content ?? r;
let total = 0;
for (let i = 1; i <= 16; i++) {
  const log = text(await fs.read_text_file({ path: "DIR/day" + i }));
  total += log.split("\n").filter((line) => line.includes("ERROR")).length;
}
const at = [];
for (const target_timezone of ["Asia/Tokyo", "Europe/Berlin", "America/Lima"])
  at.push((await clock.convert_time({ source_timezone: "UTC", time: "12:00", target_timezone })).time_difference);
const summary = total + " errors; the report is due at " + at.join(", ");
await fs.write_file({ path: "DIR/summary", content: summary });
console.log(summary);
`

// spent is what a model reads and writes for a task.
type spent struct {
	texts []string // the definitions, then in turn what the model writes and what it reads
	calls int
}

// byCalls does the task of twentySteps by calls of the tools. The model's text is each call.
func byCalls(t *testing.T, ceiling *policy.Ceiling, at string) (s spent) {
	t.Helper()
	fs, fsTools := toolClient(t, ceiling.ToolServer("fs"))
	clock, clockTools := toolClient(t, ceiling.ToolServer("clock"))
	s.texts = []string{fsTools + clockTools}
	call := func(cs *mcp.ClientSession, tool string, arguments map[string]any) string {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil || res.IsError {
			t.Fatal(tool, err, res)
		}
		asked, err := json.Marshal(map[string]any{"name": tool, "arguments": arguments})
		if err != nil {
			t.Fatal(err)
		}
		text := res.Content[0].(*mcp.TextContent).Text
		s.texts = append(s.texts, string(asked), text)
		s.calls++
		return text
	}
	total := 0
	for i := 1; i <= 16; i++ {
		total += strings.Count(call(fs, "read_text_file", map[string]any{"path": fmt.Sprintf("%s/day%d", at, i)}), "ERROR")
	}
	var due []string
	for _, zone := range []string{"Asia/Tokyo", "Europe/Berlin", "America/Lima"} {
		text := call(clock, "convert_time",
			map[string]any{"source_timezone": "UTC", "time": "12:00", "target_timezone": zone})
		var said struct {
			Difference string `json:"time_difference"`
		}
		if err := json.Unmarshal([]byte(text), &said); err != nil {
			t.Fatal(err)
		}
		due = append(due, said.Difference)
	}
	call(fs, "write_file", map[string]any{"path": at + "/summary",
		"content": fmt.Sprintf("%d errors; the report is due at %s", total, strings.Join(due, ", "))})
	return s
}

// agentOf connects to the MCP server of a runtime, and returns its list of tools as JSON.
func agentOf(t *testing.T, rt *unitask.Runtime, ceiling *policy.Ceiling) (*mcp.ClientSession, string) {
	t.Helper()
	server, err := unitaskmcp.New(rt, unitaskmcp.Options{Ceiling: ceiling})
	if err != nil {
		t.Fatal(err)
	}
	itsIn, in := io.Pipe()
	out, itsOut := io.Pipe()
	done := make(chan struct{})
	go func() {
		_ = server.ServeStdio(context.WithoutCancel(t.Context()), itsIn, itsOut)
		close(done)
	}()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, nil).Connect(t.Context(),
		&mcp.IOTransport{Reader: out, Writer: in}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cs.Close()
		<-done
		server.Close()
	})
	list, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(list.Tools)
	if err != nil {
		t.Fatal(err)
	}
	return cs, string(text)
}

// byCode does the task by code over MCP: it reads the types of three tools, then runs the code. It returns the id of
// the last run.
func byCode(t *testing.T, rt *unitask.Runtime, ceiling *policy.Ceiling, code string) (s spent, id string) {
	t.Helper()
	agent, list := agentOf(t, rt, ceiling)
	s.texts = []string{list}
	for _, arguments := range []map[string]any{{"language": "shell", "tools": []string{"fs", "clock"},
		"code": "cd /tools; cat fs/read_text_file.d.ts fs/write_file.d.ts clock/convert_time.d.ts"},
		{"language": "js", "tools": []string{"fs", "clock"}, "code": code}} {
		res, err := agent.CallTool(t.Context(), &mcp.CallToolParams{Name: "run_code", Arguments: arguments})
		if err != nil || res.IsError {
			t.Fatal(err, res.Content[0])
		}
		asked, err := json.Marshal(map[string]any{"name": "run_code", "arguments": arguments})
		if err != nil {
			t.Fatal(err)
		}
		s.texts = append(s.texts, string(asked), res.Content[0].(*mcp.TextContent).Text)
		s.calls++
		id = res.StructuredContent.(map[string]any)["runId"].(string)
	}
	return s, id
}

// count returns the tokens of the definitions, of what the model writes and of what it reads. all is what the model is
// given in all turns, if each turn has one call and begins with all of the text before.
func (s spent) count(t *testing.T) (definitions, writes, reads, all int) {
	counts := tokensOf(t, s.texts...)
	context := counts[0]
	for i := 1; i < len(counts); i += 2 {
		all += context
		context += counts[i] + counts[i+1]
		writes += counts[i]
		reads += counts[i+1]
	}
	return counts[0], writes, reads, all + context // the last turn is the answer
}

// The same task of 20 steps by calls and by code, with real servers: the code needs fewer tokens. A replay of the code
// starts no server, and is the same, byte for byte.
func TestCodeModeTokens(t *testing.T) {
	needVM(t)
	at, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at = filepath.Join(at, "logs")
	if err := errors.Join(os.Mkdir(at, 0o700), writeLogs(at)); err != nil {
		t.Fatal(err)
	}
	ceiling := toolCeiling(t, at)
	calls := byCalls(t, ceiling, at)
	want, err := os.ReadFile(at + "/summary")
	if err != nil || calls.calls != 20 {
		t.Fatal(err, calls.calls)
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	code, id := byCode(t, rt, ceiling, strings.ReplaceAll(twentySteps, "DIR", at))
	if got, err := os.ReadFile(at + "/summary"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v %q instead of %q", err, got, want)
	}
	if err := os.RemoveAll(at); err != nil { // a server that was asked would fail
		t.Fatal(err)
	}
	replayed(t, rt, ceiling, id)
	table := "| | definitions | the model writes | it reads | all turns |\n| --- | --- | --- | --- | --- |\n"
	var all [2]int
	for i, one := range []spent{calls, code} {
		definitions, writes, reads, turns := one.count(t)
		all[i] = turns
		table += fmt.Sprintf("| %d calls by %s | %d | %d | %d | %d |\n", one.calls, []string{"tools", "code"}[i], definitions,
			writes, reads, turns)
	}
	t.Logf("tokens of o200k_base:\n%s", table)
	if all[1]*2 > all[0] {
		t.Errorf("the code needs %d tokens, and the calls %d", all[1], all[0])
	}
}

// writeLogs writes the files that the task reads.
func writeLogs(at string) (err error) {
	for i := 1; i <= 16; i++ {
		var log strings.Builder
		for line := range 40 {
			kind := []string{"INFO", "INFO", "WARN", "ERROR"}[(line*i)%4]
			fmt.Fprintf(&log, "2026-11-%02dT%02d:%02d:07Z %s worker %d: request %d took %d ms\n", i, line/2, line, kind, line%5,
				1000*i+line, 7*line)
		}
		err = errors.Join(err, os.WriteFile(fmt.Sprintf("%s/day%d", at, i), []byte(log.String()), 0o600))
	}
	return err
}

// replayed replays a run, and compares what it printed and the answers of its 20 calls.
func replayed(t *testing.T, rt *unitask.Runtime, ceiling *policy.Ceiling, id string) {
	t.Helper()
	req, err := rt.History().Request(id, "")
	if err != nil {
		t.Fatal(err)
	}
	res, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: ceiling}, req, unitask.IO{ToolsOf: id})
	if err != nil {
		t.Fatal(err)
	}
	printed, err := os.ReadFile(rt.Runs().Path(id, record.StdoutFile))
	if err != nil || !bytes.Equal(printed, res.Stdout) || len(printed) == 0 {
		t.Errorf("a replay printed %q instead of %q (%v)", res.Stdout, printed, err)
	}
	first, err := rt.History().ToolCalls(id)
	again, e := rt.History().ToolCalls(res.RunID)
	if err != nil || e != nil || len(first) != 20 || len(again) != 20 {
		t.Fatal(err, e, len(first), len(again))
	}
	for i, c := range first {
		if a := again[i]; !a.Replayed || a.Tool != c.Tool || !bytes.Equal(a.Arguments, c.Arguments) ||
			!bytes.Equal(a.Result, c.Result) {
			t.Errorf("call %d: %+v instead of %+v", i, a, c)
		}
	}
}
