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
	"time"

	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
)

// inJSON returns a value as JSON.
func inJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // only for values of these tests
	}
	return string(text)
}

// stubClaude serves a model on loopback. Its answer to a conversation with n results of tools is the n-th call of
// calls, and then a text. It keeps the last conversation.
func stubClaude(t *testing.T, last *string, calls ...[2]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/messages") {
			_, _ = io.WriteString(w, "{}")
			return
		}
		n := strings.Count(string(body), `"type":"tool_result"`)
		block, delta, stop := `{"type":"text","text":""}`, `{"type":"text_delta","text":"done"}`, "end_turn"
		if strings.Contains(string(body), `"name":"Bash"`) {
			*last = string(body)
			if n < len(calls) {
				block = fmt.Sprintf(`{"type":"tool_use","id":"toolu_%d","name":%q,"input":{}}`, n, calls[n][0])
				delta = fmt.Sprintf(`{"type":"input_json_delta","partial_json":%s}`, inJSON(calls[n][1]))
				stop = "tool_use"
			}
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []string{
			`{"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"stub",` +
				`"content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}}`,
			`{"type":"content_block_start","index":0,"content_block":` + block + `}`,
			`{"type":"content_block_delta","index":0,"delta":` + delta + `}`,
			`{"type":"content_block_stop","index":0}`,
			`{"type":"message_delta","delta":{"stop_reason":"` + stop + `","stop_sequence":null},"usage":{"output_tokens":2}}`,
			`{"type":"message_stop"}`,
		} {
			var kind struct{ Type string }
			_ = json.Unmarshal([]byte(event), &kind)
			fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind.Type, event)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// The real Claude Code, with a stub model on loopback and our plugin: commands run in a machine, and a written file is
// there. A command that can't run there is denied, and the changes become a proposal.
func TestClaudeCode(t *testing.T) {
	claude, err := exec.LookPath("claude")
	if err != nil && os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("no claude on PATH, and make long installs it from npm (UNITASK_TEST_LONG=1)")
	}
	home, dir := agentHome(t), testdir.Private(t)
	if err != nil {
		install := exec.CommandContext(t.Context(), "npm", "install", "--prefix", t.TempDir(), "--no-audit", "--no-fund",
			"@anthropic-ai/claude-code@2.1.332")
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		found, _ := filepath.Glob(filepath.Join(install.Args[3], "node_modules/@anthropic-ai/claude-code-linux-*/claude"))
		if len(found) == 0 {
			t.Fatal("the package has no program for this host")
		}
		claude = found[0]
	}
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("noted\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	plugin := filepath.Join(t.TempDir(), "plugin")
	program := unitaskIn(t, home, "mcp", "config", "claude-code", "--plugin", plugin)
	program.Env = append(program.Env, "UNITASK_HOME="+home)
	if out, err := program.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	bash := func(command string) [2]string {
		return [2]string{"Bash", inJSON(map[string]any{"command": command, "description": "d"})}
	}
	var last string
	url := stubClaude(t, &last, bash("hostname; cat note.txt; echo 'made in' a machine > made.txt; mkdir sub; cd sub"),
		[2]string{"Write", inJSON(map[string]any{"file_path": filepath.Join(dir, "written.txt"),
			"content": "written\n"})},
		bash("pwd; cat ../made.txt ../written.txt; touch /tmp/mark; exit 3"),
		bash("echo "+strings.Repeat("x", 65536)))
	cmd := exec.CommandContext(t.Context(), claude, "-p", "do it", "--plugin-dir", plugin, "--output-format",
		"stream-json", "--verbose", "--permission-mode", "acceptEdits", "--strict-mcp-config")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CLAUDE_CONFIG_DIR="+t.TempDir(), "ANTHROPIC_BASE_URL="+url,
		"ANTHROPIC_API_KEY=stub", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for _, want := range []string{`unitask\nnoted`, dir + `/sub\nmade in a machine\nwritten`, "Exit code 3",
		"there is no machine for this one: the command has "} {
		if !strings.Contains(last, want) {
			t.Errorf("the conversation lacks %q: %s", want, last[max(0, len(last)-4000):])
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err == nil {
		t.Error("the project on the host has changed")
	}
	testwait.Within(t, time.Minute, "a proposal", func() bool { // Claude Code does not wait for it
		list := exec.Command(program.Path, "apply")
		list.Env = program.Env
		text, _ := list.Output()
		return strings.Contains(string(text), "proposed") && strings.Contains(string(text), "claude-code")
	})
}
