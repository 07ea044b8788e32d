package cli_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// chatModel serves a model of OpenAI's chat completions on loopback: its answers are these calls of tools, and then a
// text. A call is a tool and its arguments.
func chatModel(t *testing.T, calls ...[2]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Tools    []any
			Messages []struct{ Role string }
		}
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			t.Error(err)
		}
		n := 0 // calls that have an answer
		for _, m := range in.Messages {
			if m.Role == "tool" {
				n++
			}
		}
		delta, reason := `{"role":"assistant","content":"done"}`, "stop"
		if len(in.Tools) > 0 && n < len(calls) {
			delta = fmt.Sprintf(`{"role":"assistant","tool_calls":[{"index":0,"id":"c%d","type":"function",`+
				`"function":{"name":%q,"arguments":%q}}]}`, n, calls[n][0], calls[n][1])
			reason = "tool_calls"
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, choice := range []string{delta + `,"finish_reason":null`, fmt.Sprintf(`{},"finish_reason":%q`, reason)} {
			fmt.Fprintf(w, `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"stub",`+
				`"choices":[{"index":0,"delta":%s}]}`+"\n\n", choice)
		}
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1"
}

// pluginOfDocs returns the plugin that docs/agents.md shows.
func pluginOfDocs(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```js\n")
	text, _, found := strings.Cut(text, "```\n")
	if !found || !strings.Contains(text, "tool.execute.before") {
		t.Fatal("docs/agents.md has no plugin")
	}
	return text
}

// The real OpenCode, with a stub model on loopback and the plugin of docs/agents.md, runs its commands in a machine.
func TestOpenCode(t *testing.T) {
	openCode, err := exec.LookPath("opencode")
	if err != nil && os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("no opencode on PATH, and make long installs it from npm (UNITASK_TEST_LONG=1)")
	}
	if err != nil {
		install := exec.Command("npm", "install", "--prefix", t.TempDir(), "--no-audit", "--no-fund", "opencode-ai@1.18.33")
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		openCode = filepath.Join(install.Args[3], "node_modules/.bin/opencode")
	}
	home, dir, own := agentHome(t), t.TempDir(), t.TempDir()
	program := unitaskIn(t, home)
	edit, _ := json.Marshal(map[string]string{"filePath": filepath.Join(dir, "note.txt"), "oldString": "noted",
		"newString": "it's edited"})
	url := chatModel(t, [2]string{"bash", `{"command":"hostname; cat note.txt; mkdir sub","description":"d"}`},
		[2]string{"read", fmt.Sprintf(`{"filePath":%q}`, filepath.Join(dir, "note.txt"))}, [2]string{"edit", string(edit)},
		[2]string{"bash", `{"command":"echo 'made' > made.txt; cat note.txt; exit 3","description":"d"}`})
	writeFiles(t, dir, map[string]string{"note.txt": "noted\n", ".opencode/plugins/unitask.js": pluginOfDocs(t),
		"opencode.json": fmt.Sprintf(`{"model":"stub/stub","autoupdate":false,"share":"disabled","provider":{"stub":{
			"npm":"@ai-sdk/openai-compatible","name":"stub","options":{"baseURL":%q,"apiKey":"x"},
			"models":{"stub":{"name":"stub"}}}}}`, url)})
	bin := t.TempDir()
	if err := os.Symlink(program.Path, filepath.Join(bin, "unitask")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(openCode, "run", "--format", "json", "do it")
	cmd.Dir = dir
	cmd.Env = append(program.Env, "HOME="+own, "XDG_DATA_HOME="+own, "XDG_CONFIG_HOME="+own, "XDG_CACHE_HOME="+own,
		"XDG_STATE_HOME="+own, "PWD="+dir, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	for _, want := range []string{`"output":"unitask\nnoted\n"`, `"output":"it's edited\n"`, `"exit":3`, `"text":"done"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s is not in %v %s", want, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err == nil {
		t.Error("the project on the host has changed")
	}
	unitask := func(args ...string) []byte {
		cmd := exec.Command(program.Path, args...)
		cmd.Env, cmd.Dir = program.Env, dir
		text, err := cmd.Output()
		if err != nil {
			t.Errorf("unitask %q: %v %s", args, err, text)
		}
		return text
	}
	var sessions []struct{ Session string }
	if err := json.Unmarshal(unitask("session", "ls", "--json"), &sessions); err != nil || len(sessions) != 1 {
		t.Fatalf("%v %v", err, sessions)
	}
	unitask("apply", sessions[0].Session, "--yes")
	unitask("session", "rm", sessions[0].Session)
	if text, err := os.ReadFile(filepath.Join(dir, "made.txt")); string(text) != "made\n" {
		t.Errorf("after apply: got %q, %v", text, err)
	}
}
