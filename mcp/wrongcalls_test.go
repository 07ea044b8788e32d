package mcp_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// The list of tools costs every client at most about 4000 tokens of a model, of 4.1 bytes each (o200k_base).
func TestToolsAreShort(t *testing.T) {
	cs := inMemory(t, newServer(t, bare(t), mcp.Options{}), nil)
	tools, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(tools.Tools)
	if err != nil || len(text) > 16_400 {
		t.Errorf("%d bytes %v", len(text), err)
	}
	for _, tool := range tools.Tools {
		if a := tool.Annotations; a.ReadOnlyHint && a.DestructiveHint != nil && *a.DestructiveHint {
			t.Errorf("%s is read-only and destructive", tool.Name)
		}
	}
}

// python are the language and code of a call.
const python = `"language":"python","code":"import sys\nprint(sys.argv)"`

// wrongCalls are arguments of run_code as models send them, and the expected answer: "works" and the requests, or part
// of an error.
var wrongCalls = map[string]string{
	// Which language it is.
	`{"code":"import os\nprint(os.getcwd())"}`:             "the code is in, python by its looks",
	`{"code":"console.log(1);"}`:                           "the code is in, js by its looks",
	`{"code":"1"}`:                                         "language is missing",
	`{"code":"1","language":null}`:                         "language is missing",
	`{"code":"1","language":""}`:                           "language is missing",
	`{"code":"1","lang":"python"}`:                         `no argument "lang": did you mean language?`,
	`{"code":"1","language":"Python"}`:                     "works python",
	`{"code":"1","language":"PYTHON3"}`:                    "works python3",
	`{"code":"1","language":"py"}`:                         "works py",
	`{"code":"1","language":"JavaScript"}`:                 "works javascript",
	`{"code":"1","language":"node"}`:                       "works node",
	`{"code":"1","language":"TypeScript"}`:                 "works typescript",
	`{"code":"1","language":"bash"}`:                       "works bash",
	`{"code":"1","language":"sh"}`:                         "works sh",
	`{"code":"1","language":"Golang"}`:                     "works golang",
	`{"code":"1","language":"cobol"}`:                      "python",
	`{"language":"python"}`:                                "code",
	`{"code":"1","language":"python","filename":"app.py"}`: "works python path=app.py",
	`{"code":"1","language":"python","filename":"app.js"}`: "app.js",
	`{"code":"1","language":"python","filename":"/"}`:      "path",
	`{"language":"python","code":""}`:                      "code is empty",
	`{"language":"python","source":"1"}`:                   `no argument "source"`,
	`{"language":"python","script":"print(1)"}`:            `no argument "script"`,
	`{"language":"python","code":["print(1)"]}`:            "code",
	`{"language":"python","code":{"text":"print(1)"}}`:     "code",
	// Lists.
	`{` + python + `,"args":"one"}`:                                   "works python args=[one]",
	`{` + python + `,"args":["1",2]}`:                                 "args",
	`{` + python + `,"allowNet":"a.example"}`:                         "works python net=[a.example]",
	`{` + python + `,"allowNet":"[\"a.example\",\"b.example\"]"}`:     "works python net=[a.example b.example]",
	`{` + python + `,"allowNet":["https://a.example"]}`:               "works python net=[a.example:443]",
	`{` + python + `,"allowNet":["https://a.example/v1/things?x=1"]}`: "\"a.example\" grants all of the host",
	`{` + python + `,"allowNet":["http://a.example:8080/"]}`:          "works python net=[a.example:8080]",
	`{` + python + `,"allowNet":[]}`:                                  "works python",
	`{` + python + `,"allowNet":null}`:                                "works python",
	`{` + python + `,"allowNet":""}`:                                  "works python",
	`{` + python + `,"allow_net":["a.example"]}`:                      `did you mean allowNet?`,
	`{` + python + `,"network":true}`:                                 `no argument "network"`,
	`{` + python + `,"allowNet":true}`:                                "allowNet",
	`{` + python + `,"allowNet":["*"]}`:                               "allowNet",
	`{` + python + `,"env":"{\"A\":\"b\"}"}`:                          "works python env=map[A:b]",
	`{` + python + `,"env":{"A":1}}`:                                  "env",
	`{` + python + `,"files":{"name":"a.py","content":"x = 1"}}`:      "works python files=1",
	`{` + python + `,"files":[{"name":"a.py","text":"x = 1"}]}`:       "files",
	`{` + python + `,"files":[{"path":"a.py","content":"x = 1"}]}`:    "files",
	// Numbers and booleans.
	`{` + python + `,"timeoutSeconds":"30"}`:   "works python timeout=30s",
	`{` + python + `,"timeoutSeconds":30.0}`:   "works python timeout=30s",
	`{` + python + `,"timeout":30}`:            "did you mean timeoutSeconds?",
	`{` + python + `,"timeout_seconds":30}`:    "did you mean timeoutSeconds?",
	`{` + python + `,"timeoutMs":30000}`:       `no argument "timeoutMs"`,
	`{` + python + `,"timeoutSeconds":0}`:      "timeoutSeconds",
	`{` + python + `,"timeoutSeconds":"fast"}`: "timeoutSeconds",
	`{` + python + `,"memoryMb":"256"}`:        "works python memory=256",
	`{` + python + `,"memory":256}`:            "did you mean memoryMb?",
	`{` + python + `,"memoryMb":1}`:            "memoryMb",
	`{` + python + `,"check":"true"}`:          "works python check",
	`{` + python + `,"check":"yes"}`:           "check",
	`{` + python + `,"maxOutput":"1000"}`:      "works python",
	`{` + python + `,"stdin":5}`:               "stdin",
	`{` + python + `,"unknown":1}`:             `no argument "unknown"`,
}

// First calls of models that differ from the schema work, or the answer says how to call.
func TestWrongCalls(t *testing.T) {
	var got *unitask.Request
	cs := onFleet(t, mcp.Options{}, func(_ context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
		got = &run.Request
		return &unitask.Result{Outcome: unitask.OutcomeExited}, nil
	})
	for arguments, want := range wrongCalls {
		got = nil
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code", Arguments: json.RawMessage(arguments)})
		if err != nil {
			t.Errorf("%s: %v", arguments, err)
			continue
		}
		said := res.Content[0].(*sdk.TextContent).Text
		if got != nil && !res.IsError {
			said = "works " + asked(got)
		}
		said, _, _ = strings.Cut(said, "\nrun_code takes:") // every error about arguments contains it
		if works := strings.HasPrefix(want, "works"); works && said != want || !works && !strings.Contains(said, want) {
			t.Errorf("%s\n got %s\nwant %s", arguments, said, want)
		}
	}
}

// asked returns what a request asks for beyond code.
func asked(r *unitask.Request) string {
	text := r.Language
	for name, value := range map[string]any{"args": r.Args, "path": r.Path, "net": r.AllowNet, "env": r.Env} {
		if shown := fmt.Sprint(value); shown != "[]" && shown != "map[]" && shown != "" {
			text += fmt.Sprintf(" %s=%s", name, shown)
		}
	}
	if n := len(r.InlineFiles); n > 0 {
		text += fmt.Sprintf(" files=%d", n)
	}
	if r.Timeout > 0 && r.Timeout != policy.DefaultTimeout {
		text += fmt.Sprintf(" timeout=%s", r.Timeout)
	}
	if r.MemoryMB > 0 && r.MemoryMB != 512 {
		text += fmt.Sprintf(" memory=%d", r.MemoryMB)
	}
	if r.Check {
		text += " check"
	}
	return text
}

// Names that tools had in earlier releases still work.
func TestFormerNames(t *testing.T) {
	cs := inMemory(t, newServer(t, bare(t), mcp.Options{}), nil)
	for name, args := range map[string]object{"session": {"op": "list"},
		"files": {"session": "x", "op": "view", "path": "/"},
		"wait":  {"run": "x"}, "doctor": {"deep": true}, "run_command": {"session": "x", "command": "true"}} {
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if text := res.Content[0].(*sdk.TextContent).Text; strings.Contains(text, "unknown tool") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
