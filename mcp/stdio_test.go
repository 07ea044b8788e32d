package mcp_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
)

// stdioFiles are the files of a folder with snippets.
var stdioFiles = map[string]string{
	"data.csv": "a,b\n1,2\n", "prompts/sum.js": "/* +++\ndescription = \"Add two numbers\"\n[arguments.A]\n" +
		"description = \"one\"\nrequired = true\n[arguments.B]\n+++ */\n" +
		"console.log(Number(process.env.A) + Number(process.env.B ?? 1))\n",
	"prompts/plain.ts": "const s: string = 'typed'; console.log(s)", "prompts/README.md": "no snippet",
}

// The tools over stdio, with the real program.
func TestStdio(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	home, dir := testhome.New(t, base), t.TempDir()
	prompts := filepath.Join(dir, "prompts")
	for name, text := range stdioFiles {

		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755),
			os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	cs := stdio(t, home, dir, nil, "--prompts", prompts)
	tools, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]*sdk.Tool{}
	for _, tool := range tools.Tools {
		names[tool.Name] = tool
		if tool.Description == "" || tool.Annotations == nil || tool.InputSchema == nil {
			t.Errorf("%+v", tool)
		}
	}
	if len(names) != 8 || !names["inspect_run"].Annotations.ReadOnlyHint || names["run_code"].Annotations.ReadOnlyHint ||
		!*names["run_code"].Annotations.OpenWorldHint || *names["run_code"].Annotations.DestructiveHint {
		t.Errorf("%v", names)
	}
	res, out, text := call(t, cs, "run_code",
		object{"language": "js", "code": "console.log('hello', process.argv[2], require('fs').readFileSync(0, 'utf8'), " +
			"process.env.X); console.error('err')", "args": []string{"arg"}, "stdin": "in", "env": object{"X": "y"}})
	if res.IsError || out["stdout"] != "hello arg in y\n" || out["stderr"] != "err\n" || out["exitCode"] != 0.0 ||
		out["outcome"] != "exited" || !strings.Contains(text, "exit code 0") || !strings.Contains(text, "hello arg in y") {
		t.Errorf("%v %q", out, text)
	}
	id := out["runId"].(string)
	res, out, text = call(t, cs, "run_code",
		object{"code": "const n: number = 1; console.log(n); process.exit(3)", "language": "typescript"})
	if !res.IsError || out["exitCode"] != 3.0 || out["stdout"] != "1\n" {
		t.Errorf("%v %q", out, text)
	}
	res, out, text = call(t, cs, "run_code", object{"language": "js", "code": "for(;;);", "timeoutSeconds": 0.5})
	if !res.IsError || out["outcome"] != "timeout" || !strings.Contains(text, "time limit") {
		t.Errorf("%v %q", out, text)
	}
	// The built-in ceiling: files of this folder, no secret, no raw TCP.
	res, out, text = call(t, cs, "run_code",
		object{"language": "js", "code": "const fs = require('fs'); " +
			"console.log(fs.readFileSync('data.csv', 'utf8').length, fs.existsSync('/work/hosts'), process.env.A_SECRET)",
			"files": []string{"data.csv", "/etc/hosts:/work/hosts"}, "secrets": []string{"A_SECRET"},
			"allowTcp": []string{"127.0.0.1:1"}})
	if res.IsError || out["stdout"] != "8 false undefined\n" || !strings.Contains(text, "not given: files /etc/hosts") ||
		!strings.Contains(text, "not given: secrets A_SECRET") || !strings.Contains(text, "not given: allowTcp") {
		t.Errorf("%v %q", out, text)
	}
	bringFiles(t, cs)
	// Artifacts, including a picture.
	readArtifacts(t, cs, id)
	listed := 0
	for r, err := range cs.Resources(t.Context(), nil) {
		if err != nil || !strings.HasPrefix(r.URI, "unitask://runs/") && r.URI != "unitask://images" &&
			r.URI != "unitask://stats" {
			t.Errorf("%+v %v", r, err)
		}
		listed++
	}
	_, out, _ = call(t, cs, "list_runs", object{"status": "timeout"})
	if runs := out["runs"].([]any); len(runs) != 1 || listed != 8 {
		t.Errorf("%v, %d resources", runs, listed)
	}
	_, out, _ = call(t, cs, "inspect_run", object{"runId": id})
	if out["stdout"] != "hello arg in y\n" || out["status"] != "done" {
		t.Errorf("%v", out)
	}
	usePrompts(t, cs, id)
	readHints(t, cs)
	refuseCalls(t, cs)
}

// bringFiles calls with inline files, and files of the host.
func bringFiles(t *testing.T, cs *sdk.ClientSession) {
	res, out, text := call(t, cs, "run_code",
		object{"language": "js", "code": "const fs = require('fs'); " +
			"console.log(require('./lib/helper').f(20), fs.readFileSync('data.csv', 'utf8').length)",
			"files": []any{object{"name": "lib/helper.js", "content": "exports.f = (n) => n + require('./more.cjs')"},
				object{"name": "lib/more.cjs", "content": "module.exports = 1"}, "data.csv"}})
	if res.IsError || out["stdout"] != "21 8\n" {
		t.Errorf("%v %q", out, text)
	}
	for _, part := range []string{"inlineFiles", "neighbours"} { // its old name, for this release
		beside := "unitask://runs/" + out["runId"].(string) + "/" + part
		r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: beside})
		if err != nil || !strings.Contains(r.Contents[0].Text, "module.exports = 1") {
			t.Errorf("%s: %+v %v", part, r, err)
		}
	}
}

// readArtifacts checks the resources of a run.
func readArtifacts(t *testing.T, cs *sdk.ClientSession, id string) {
	t.Helper()
	var res *sdk.CallToolResult
	var out object
	res, out,
		_ = call(t, cs, "run_code",
		js("const fs = require('fs'); fs.writeFileSync('/out/a b.png', Buffer.from('89504e470d0a1a0a', 'hex')); "+
			"fs.mkdirSync('/out/d'); fs.writeFileSync('/out/d/t.txt', 'text')"))
	var links []string
	images := 0
	for _, c := range res.Content {
		switch c := c.(type) {
		case *sdk.ResourceLink:
			links = append(links, c.URI)
		case *sdk.ImageContent:
			images++
		}
	}
	slices.Sort(links)
	at := "unitask://runs/" + out["runId"].(string) + "/artifacts/"
	if images != 1 || !slices.Equal(links, []string{at + "a%20b.png", at + "d/t.txt"}) {
		t.Errorf("%d %v", images, links)
	}
	for uri, want := range map[string]string{at + "d/t.txt": "text",
		"unitask://runs/" + id + "/stdout": "hello arg in y\n", "unitask://runs/" + id + "/stderr": "err\n",
		"unitask://runs/" + id: `"stdin"`} {
		r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri})
		if err != nil || len(r.Contents) != 1 || (want != r.Contents[0].Text &&
			!strings.Contains(r.Contents[0].Text, `"schemaVersion"`)) {
			t.Errorf("%s: %+v %v", uri, r, err)
		}
	}
	if r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: at + "a%20b.png"}); err != nil ||
		len(r.Contents[0].Blob) != 8 || r.Contents[0].MIMEType != "image/png" {
		t.Errorf("%+v %v", r, err)
	}
	for _, uri := range []string{"unitask://runs/none", "unitask://runs/" + id + "/lock",
		"unitask://runs/" + id + "/inlineFiles", "unitask://runs/" + id + "/artifacts/none", "unitask://runs/../x",
		"unitask://runs/" + id + "/artifacts/../stdout",
		"unitask://runs/" + id + "/artifacts/%2e%2e/stdout", "unitask://runs/%2e%2e/stdout", "file:///etc/passwd"} {
		if r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("%s: %+v", uri, r)
		}
	}
}

// usePrompts checks prompts, snippets and completions.
func usePrompts(t *testing.T, cs *sdk.ClientSession, id string) {
	t.Helper()
	var out object
	completed, err := cs.Complete(t.Context(), &sdk.CompleteParams{Ref: &sdk.CompleteReference{Type: "ref/resource",
		URI: "unitask://runs/{id}/{part}"}, Argument: sdk.CompleteParamsArgument{Name: "id", Value: id[:10]}})
	if err != nil || !slices.Contains(completed.Completion.Values, id) {
		t.Errorf("%+v %v", completed, err)
	}
	// Prompts, and snippets by name.
	got, err := cs.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "sum", Arguments: map[string]string{"A": "41"}})
	if err != nil || !strings.Contains(got.Messages[0].Content.(*sdk.TextContent).Text,
		`{"snippet":"sum","env":{"A":"41"}}`) {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := cs.GetPrompt(t.Context(), &sdk.GetPromptParams{Name: "sum"}); err == nil {
		t.Error("a prompt without its argument")
	}
	if _, out, _ = call(t, cs, "run_code", object{"snippet": "sum", "env": object{"A": "41"}}); out["stdout"] != "42\n" {
		t.Errorf("%v", out)
	}
	if _, out, _ = call(t, cs, "run_code", object{"snippet": "plain"}); out["stdout"] != "typed\n" {
		t.Errorf("%v", out)
	}
}

// refuseCalls makes wrong calls: the tool's error says what to send.
func refuseCalls(t *testing.T, cs *sdk.ClientSession) {
	t.Helper()
	for _, c := range []struct {
		args any
		want string
	}{
		{object{}, "code is empty"}, {object{"language": "js", "code": 5}, "run_code takes: code, snippet"},
		{object{"code": "1", "cod": "x"}, "run_code takes"}, {object{"code": "1", "language": "cobol"}, "language"},
		{object{"language": "js", "code": "1", "memoryMb": 1}, "memoryMb"},
		{object{"language": "js", "code": "1", "timeoutSeconds": -1}, "timeoutSeconds"},
		{object{"language": "js", "code": "1", "allowNet": []string{"*"}}, "covers every host"},
		{object{"language": "js", "code": "1", "allowNet": "*"}, "covers every host"},
		{object{"language": "js", "code": "1", "files": []string{"none.txt"}}, "no such file"},
		{object{"language": "js", "code": "1", "env": object{"A=B": "x"}}, "env"},
		{object{"language": "js", "code": "1", "files": []any{object{"name": "../x.js", "content": ""}}},
			`files "../x.js": has a path that can't be`},
		{object{"language": "js", "code": "1", "files": []any{object{"name": "x.js"}}},
			"run_code takes"},
		{object{"snippet": "none"}, "prompts/list"}, {object{"snippet": "sum"}, "env.A"},
		{object{"snippet": "sum", "language": "js", "code": "1"}, "not both"},
	} {
		res, _, text := call(t, cs, "run_code", c.args)
		if !res.IsError || !strings.Contains(text, c.want) {
			t.Errorf("%v: %v %q", c.args, res.IsError, text)
		}
	}
	if res, _, text := call(t, cs, "inspect_run", object{"runId": "../../etc"}); !res.IsError ||
		!strings.Contains(text, "no such run") {
		t.Errorf("%q", text)
	}
	var bad error
	if _, bad = cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "rm_rf"}); bad == nil {
		t.Error("a tool that is none")
	}
}

// raw starts the program for a client that is a pair of pipes.
func raw(t *testing.T, home string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(name, "mcp", "--pool", "0", "-v")
	cmd.Env = append(os.Environ(), "UNITASK_HOME="+home)
	if in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = new(strings.Builder)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, in, out
}

const handshake = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
	`"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n" +
	`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"

// If the client's end closes, or on a signal, the program ends, and the machines end with it.
func TestClientGone(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	for name, leave := range map[string]func(*exec.Cmd, io.Closer){
		"stdin closes": func(_ *exec.Cmd, in io.Closer) { in.Close() },
		"SIGTERM":      func(cmd *exec.Cmd, _ io.Closer) { _ = cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			home := testhome.New(t, base)
			cmd, in, out := raw(t, home)
			up := make(chan struct{}, 2)
			go func() {
				for lines := bufio.NewScanner(out); lines.Scan(); {
					if strings.Contains(lines.Text(), "notifications/progress") && strings.Contains(lines.Text(), "up") {
						up <- struct{}{}
					}
				}
			}()
			call := `{"jsonrpc":"2.0","id":%[1]d,"method":"tools/call","params":{"_meta":{"progressToken":%[1]d},` +
				`"name":"run_code","arguments":{"language":"js","code":"console.log('up'); setInterval(() => {}, 1e6)"}}}` + "\n"
			if _, err := io.WriteString(in, handshake+fmt.Sprintf(call, 2)+fmt.Sprintf(call, 3)); err != nil {
				t.Fatal(err)
			}
			<-up
			<-up
			if n := len(machines(t, home)); n != 2 {
				t.Fatalf("%d machines run", n)
			}
			begin := time.Now()
			leave(cmd, in)
			err := cmd.Wait()
			if took := time.Since(begin); err != nil || took > time.Second {
				t.Errorf("it ended after %s: %v\n%s", took, err, cmd.Stderr)
			}
			noMachines(t, home)
		})
	}
}

// machines returns the runs of a home that have a machine and have not ended.
func machines(t *testing.T, home string) (ids []string) {
	t.Helper()
	runs, err := os.ReadDir(filepath.Join(home, "runs"))
	if err != nil {
		return nil
	}
	for _, r := range runs {
		text, err := os.ReadFile(filepath.Join(home, "runs", r.Name(), "run.json"))
		if err == nil && strings.Contains(string(text), `"status": "running"`) &&
			strings.Contains(string(text), `"machine"`) {
			ids = append(ids, r.Name())
		}
	}
	return ids
}

func noMachines(t *testing.T, home string) {
	t.Helper()
	if left := machines(t, home); len(left) > 0 {
		t.Errorf("still there: %v", left)
	}
}

// Stdout contains only the protocol, whatever goes wrong.
func TestNothingElseOnStdout(t *testing.T) {
	testhome.Ready(t, base, image.Linux)
	cmd, in, out := raw(t, testhome.New(t, base))
	go func() {
		_, _ = io.WriteString(in, handshake)
		for _, line := range []string{
			`{"jsonrpc":"2.0","id":4,"method":"logging/setLevel","params":{"level":"info"}}`,
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"run_code","arguments":{"language":"js",` +
				`"code":"console.log('{}\\n{'); process.kill(process.pid, 'SIGKILL')"}}}`,
			`{"jsonrpc":"2.0","id":3,"method":"nonsense"}`,
		} {
			_, _ = io.WriteString(in, line+"\n")
		}
	}()
	dec, answered, logged := json.NewDecoder(out), 0, ""
	for answered < 4 {
		var m struct {
			JSONRPC string `json:"jsonrpc"`
			ID      any    `json:"id"`
			Method  string `json:"method"`
			Params  struct {
				Data string `json:"data"`
			} `json:"params"`
		}
		if err := dec.Decode(&m); err != nil || m.JSONRPC != "2.0" {
			t.Fatalf("%+v %v\n%s", m, err, cmd.Stderr)
		}
		if m.ID != nil {
			answered++
		}
		if m.Method == "notifications/message" {
			logged += m.Params.Data
		}
	}
	if logged != "{}\n{\n" { // an older client without a progress token sees it as log messages
		t.Errorf("logged %q", logged)
	}
	in.Close()
	rest, err := io.ReadAll(io.MultiReader(dec.Buffered(), out))
	if err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("%q %v", rest, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, cmd.Stderr)
	}
}

// readHints makes code connect to a forbidden host.
func readHints(t *testing.T, cs *sdk.ClientSession) {
	t.Helper()
	res, out, text := call(t, cs, "run_code", js("await fetch('http://a.test.example/')"))
	hints, _ := out["hints"].([]any)
	const hint = "a.test.example was not reached: the run has no network; allowNet a.test.example asks for it"
	if !res.IsError || len(hints) != 1 || !strings.Contains(text, "\nhint: "+hint+"\n") {
		t.Fatalf("got hints %v, want %q; %s", hints, hint, text)
	}
	if got := hints[0].(object); got["field"] != "allowNet" || got["cause"] != "policy" || got["flag"] != nil {
		t.Errorf("got %v, want the field allowNet, and no flag of the command line", got)
	}
}
