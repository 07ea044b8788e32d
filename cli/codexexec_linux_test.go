package cli_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testwait"
)

// codexClient speaks the exec-server protocol with a codex-exec.
type codexClient struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	errs bytes.Buffer
	id   int
	// notes are the notifications that came between answers.
	notes []codexMessage
}

type codexMessage struct {
	ID     int
	Method string
	Params struct {
		ProcessID, Stream string
		Seq, ExitCode     int
		Chunk             []byte
	}
	Result struct {
		Chunks []struct {
			Chunk []byte
		}
		NextSeq    int
		ExitCode   *int
		Closed     bool
		DataBase64 []byte
		Status     string
		Running    bool
		Size       int
		IsFile     bool
		Path       string
		Entries    []struct{ FileName, Path, Kind string }
		Chunk      []byte
		EOF        bool
	}
	Error *struct {
		Code    int
		Message string
	}
}

// codexIn starts a codex-exec in a folder, and initializes it.
func codexIn(t *testing.T, program *exec.Cmd, dir string, args ...string) *codexClient {
	t.Helper()
	c := &codexClient{t: t, cmd: exec.Command(program.Path, append([]string{"codex-exec"}, args...)...)}
	c.cmd.Env, c.cmd.Dir, c.cmd.Stderr = program.Env, dir, &c.errs
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewScanner(out)
	c.out.Buffer(nil, 64<<20)
	c.must("initialize", `{"clientName":"test","resumeSessionId":null}`)
	_, _ = io.WriteString(c.in, `{"method":"initialized","params":{}}`+"\n")
	return c
}

// call sends a request and returns its answer.
func (c *codexClient) call(method, params string) codexMessage {
	c.t.Helper()
	c.id++
	fmt.Fprintf(c.in, "{\"id\":%d,\"method\":%q,\"params\":%s}\n", c.id, method, params)
	for c.out.Scan() {
		var m codexMessage
		if err := json.Unmarshal(c.out.Bytes(), &m); err != nil {
			c.t.Fatalf("%v: %s", err, c.out.Bytes())
		}
		if m.Method == "" {
			if m.ID != c.id {
				c.t.Fatalf("an answer to %d instead of %d", m.ID, c.id)
			}
			return m
		}
		c.notes = append(c.notes, m)
	}
	c.t.Fatalf("%s: no answer: %s", method, &c.errs)
	return codexMessage{}
}

func (c *codexClient) must(method, params string) codexMessage {
	c.t.Helper()
	m := c.call(method, params)
	if m.Error != nil {
		c.t.Fatalf("%s %.300s: %+v", method, params, m.Error)
	}
	return m
}

// run runs a shell script to its end, and returns its output and exit code.
func (c *codexClient) run(id, script, more string) (string, int) {
	c.t.Helper()
	argv, _ := json.Marshal([]string{"/bin/bash", "-c", script})
	c.must("process/start",
		fmt.Sprintf(`{"processId":%q,"argv":%s,"cwd":"file:///work","env":{"A":"b"}%s}`, id, argv, more))
	return c.rest(id)
}

// rest reads the output of a process until its end.
func (c *codexClient) rest(id string) (string, int) {
	c.t.Helper()
	var out bytes.Buffer
	for after := 0; ; {
		m := c.must("process/read", fmt.Sprintf(`{"processId":%q,"afterSeq":%d,"waitMs":60000}`, id, after))
		for _, part := range m.Result.Chunks {
			out.Write(part.Chunk)
		}
		if after = m.Result.NextSeq - 1; m.Result.Closed && len(m.Result.Chunks) == 0 {
			return out.String(), *m.Result.ExitCode
		}
	}
}

// end closes the connection, and returns what codex-exec said.
func (c *codexClient) end() string {
	c.t.Helper()
	c.in.Close()
	for c.out.Scan() {
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("%v: %s", err, &c.errs)
	}
	return c.errs.String()
}

// A client runs a script of many steps: commands, files, input, a terminal, and ends. The changes in the project become
// a proposal. A second client has another machine.
func TestCodexExec(t *testing.T) {
	home, dir := agentHome(t), t.TempDir()
	program := unitaskIn(t, home)
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	host, link := "file://"+dir, filepath.Join(t.TempDir(), "link") // the client knows dir, by its real name
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	c, other := codexIn(t, program, dir, "--project="+link), codexIn(t, program, dir)
	if out, code := other.run("p", "ls; echo mine > own; echo $A; exit 3", ""); out != "b\n" || code != 3 {
		t.Errorf("the other: %q %d", out, code)
	}
	if out, code := c.run("p", "cat note.txt; ls own", ""); !strings.HasPrefix(out, "one\n") || code == 0 {
		t.Errorf("%q %d", out, code)
	}
	codexFiles(t, c, host)
	c.must("process/start", `{"processId":"in","argv":["cat"],"cwd":"`+host+`","env":{},"pipeStdin":true}`)
	if m := c.must("process/write", `{"processId":"in","chunk":"aGkK","writeId":"w"}`); m.Result.Status != "accepted" {
		t.Errorf("%+v", m)
	}
	if m := c.must("process/read", `{"processId":"in","waitMs":60000}`); string(m.Result.Chunks[0].Chunk) != "hi\n" {
		t.Errorf("%+v", m)
	}
	if m := c.must("process/terminate", `{"processId":"in"}`); !m.Result.Running {
		t.Error("it does not run")
	}
	if _, code := c.rest("in"); code != 137 {
		t.Errorf("exit code %d", code)
	}
	if m := c.call("process/start", `{"processId":"in","argv":["true"],"cwd":"file:///","env":{}}`); m.Error == nil ||
		m.Error.Code != -32600 {
		t.Errorf("an id a second time: %+v", m)
	}
	if out, code := c.run("tty", "tty; stty size", `,"tty":true`); out != "/dev/pts/0\r\n24 80\r\n" || code != 0 {
		t.Errorf("a terminal: %q %d", out, code)
	}
	if out, code := c.run("none", "exec no-such-program", ""); code != 127 {
		t.Errorf("%q %d", out, code)
	}
	steps := 20
	if os.Getenv("UNITASK_TEST_LONG") != "" { // make long
		steps = 100
	}
	for i := range steps {
		id := fmt.Sprint("step", i)
		out, code := c.run(id, fmt.Sprintf("echo %d >> log; tail -n 1 log; exit %d", i, i%3), "")
		if out != fmt.Sprintln(i) || code != i%3 {
			t.Fatalf("%s: %q %d", id, out, code)
		}
	}
	last := map[string]int{} // notifications come in order
	for _, m := range c.notes {
		if m.Params.Seq != last[m.Params.ProcessID]+1 {
			t.Errorf("%s: number %d after %d", m.Params.ProcessID, m.Params.Seq, last[m.Params.ProcessID])
		}
		last[m.Params.ProcessID] = m.Params.Seq
	}
	other.end()
	if said := c.end(); !strings.Contains(said, "are a proposal: unitask apply change-") {
		t.Errorf("%s", said)
	}
	applied := exec.Command(program.Path, "apply", "--json")
	applied.Env = program.Env
	text, err := applied.Output()
	if err != nil || !strings.Contains(string(text), `"codex"`) || !strings.Contains(string(text), "made") {
		t.Errorf("%v %s", err, text)
	}
}

// codexFiles works on files: the project's by its place on the host, others by their place in the machine.
func codexFiles(t *testing.T, c *codexClient, host string) {
	t.Helper()
	c.must("fs/writeFile", `{"path":"`+host+`/made/a.txt","dataBase64":"QUJD"}`)
	m := c.must("fs/readFile", `{"path":"file:///work/made/a.txt","sandbox":null}`)
	if string(m.Result.DataBase64) != "ABC" {
		t.Errorf("%+v", m)
	}
	if m := c.must("fs/getMetadata", `{"path":"`+host+`/made/a.txt"}`); !m.Result.IsFile || m.Result.Size != 3 {
		t.Errorf("%+v", m)
	}
	c.must("fs/open", `{"handleId":"h","path":"`+host+`/made/a.txt"}`)
	m = c.must("fs/readBlock", `{"handleId":"h","offset":1,"len":10}`)
	if string(m.Result.Chunk) != "BC" || !m.Result.EOF {
		t.Errorf("%+v", m)
	}
	c.must("fs/close", `{"handleId":"h"}`)
	c.must("fs/createDirectory", `{"path":"`+host+`/made"}`)
	c.must("fs/copy", `{"sourcePath":"`+host+`/made","destinationPath":"`+host+`/copied","recursive":true}`)
	if m := c.must("fs/readDirectory", `{"path":"`+host+`/copied"}`); len(m.Result.Entries) != 1 ||
		m.Result.Entries[0].FileName != "a.txt" {
		t.Errorf("%+v", m)
	}
	walk := `{"path":"` + host + `","options":{"maxDepth":3,"maxDirectories":9,"maxEntries":99}}`
	if m := c.must("fs/walk", walk); !strings.Contains(fmt.Sprint(m.Result.Entries), host+"/copied/a.txt file") {
		t.Errorf("%+v", m)
	}
	if m := c.must("fs/canonicalize", `{"path":"`+host+`/./made"}`); m.Result.Path != host+"/made" {
		t.Errorf("%+v", m)
	}
	c.must("fs/remove", `{"path":"`+host+`/copied"}`)
	for params, code := range map[string]int{`"fs/readFile","params":{"path":"` + host + `/copied/a.txt"}`: -32004,
		`"fs/remove","params":{"path":"` + host + `/copied","force":false}`:  -32004,
		`"fs/readFile","params":{"path":"` + host + `/made"}`:                0,
		`"fs/writeFile","params":{"path":"file:///proc/x","dataBase64":""}`:  0,
		`"fs/readFile","params":{"path":"relative"}`:                         -32602,
		`"http/request","params":{"method":"GET","url":"http://localhost/"}`: -32600} {
		method, params, _ := strings.Cut(params, `,"params":`)
		if m := c.call(strings.Trim(method, `"`), strings.TrimSuffix(params, "")); m.Error == nil ||
			code != 0 && m.Error.Code != code {
			t.Errorf("%s %s: %+v", method, params, m.Error)
		}
	}
}

// The reason why a machine does not start is on stderr once. The flags may end with --.
func TestCodexExecFails(t *testing.T) {
	cmd := unitaskIn(t, t.TempDir(), "codex-exec", "--image", "nosuch", "--")
	var errs bytes.Buffer
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 2 || strings.Count(errs.String(), "--image nosuch") != 1 {
		t.Errorf("exit code %d: %s", code, &errs)
	}
}

// A client that dies, or is ended by a signal, leaves no machine.
func TestCodexExecEnds(t *testing.T) {
	home := agentHome(t)
	program := unitaskIn(t, home)
	for name, signal := range map[string]os.Signal{"SIGINT": os.Interrupt, "SIGKILL": os.Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := codexIn(t, program, t.TempDir())
			c.must("process/start", `{"processId":"p","cwd":"file:///work","env":{},`+
				`"argv":["/bin/bash","-c","trap '' TERM INT; setsid sleep 1000 & sleep 1000"]}`)
			machines := machinesOf(t, c.cmd.Process.Pid)
			_ = c.cmd.Process.Signal(signal)
			_ = c.cmd.Wait()
			gone(t, machines)
		})
	}
}

// stubModel serves a model on loopback: its n-th answer is the n-th item, and then a text.
func stubModel(t *testing.T, items ...string) string {
	t.Helper()
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			_, _ = io.WriteString(w, "{}")
			return
		}
		n := int(asked.Add(1)) - 1
		item := `{"type":"message","role":"assistant","id":"m","content":[{"type":"output_text","text":"done"}]}`
		if n < len(items) {
			item = items[n]
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range [][2]string{
			{"response.created", `"response":{"id":"r"}`}, {"response.output_item.done", `"item":` + item},
			{"response.completed", `"response":{"id":"r","usage":{"input_tokens":1,"output_tokens":1,"total_tokens":2}}`},
		} {
			fmt.Fprintf(w, "event: %s\ndata: {\"type\":%q,%s}\n\n", event[0], event[0], event[1])
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/v1"
}

// codexEnvironments returns the file of docs/agents.md, with this program, project and home.
func codexEnvironments(t *testing.T, program, dir, home string) string {
	t.Helper()
	page, err := os.ReadFile("../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```toml\n")
	text, _, found := strings.Cut(text, "```\n")
	if !found {
		t.Fatal("docs/agents.md has no environments.toml")
	}
	text = strings.NewReplacer(`"unitask"`, fmt.Sprintf("%q", program), "/home/me/app", dir).Replace(text)
	return text + fmt.Sprintf("env = { UNITASK_HOME = %q }\n", home)
}

// The real Codex, with a stub model on loopback, runs its commands in a machine; its changes are a proposal.
func TestCodex(t *testing.T) {
	codex, err := exec.LookPath("codex")
	if err != nil && os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("no codex on PATH, and make long installs it from npm (UNITASK_TEST_LONG=1)")
	}
	home, dir, own := agentHome(t), t.TempDir(), t.TempDir()
	if err != nil {
		install := exec.Command("npm", "install", "--prefix", t.TempDir(), "--no-audit", "--no-fund",
			"@openai/codex@0.171.0")
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		codex = filepath.Join(install.Args[3], "node_modules/.bin/codex")
	}
	program := unitaskIn(t, home)
	if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("noted\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	call := func(n int, command string) string {
		arguments, _ := json.Marshal(map[string]any{"cmd": command, "yield_time_ms": 30000})
		return fmt.Sprintf(`{"type":"function_call","name":"exec_command","call_id":"c%d","arguments":%q}`, n, arguments)
	}
	url := stubModel(t, call(1, "hostname; cat note.txt; echo made in a machine > made.txt"),
		call(2, "apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: note.txt\n@@\n-noted\n+patched\n"+
			"*** End Patch\nEOF"),
		call(3, "cat made.txt note.txt; exit 3"))
	for name, text := range map[string]string{
		"config.toml": fmt.Sprintf("model = \"stub\"\nmodel_provider = \"stub\"\n[model_providers.stub]\nname = \"stub\"\n"+
			"base_url = %q\nwire_api = \"responses\"\n", url),
		"environments.toml": codexEnvironments(t, program.Path, dir, home),
	} {
		if err := os.WriteFile(filepath.Join(own, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(codex, "exec", "--skip-git-repo-check", "--json", "-s", "danger-full-access", "do it")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CODEX_HOME="+own)
	out, err := cmd.CombinedOutput()
	for _, want := range []string{`"aggregated_output":"unitask\nnoted\n","exit_code":0`,
		`"aggregated_output":"made in a machine\npatched\n","exit_code":3`, `"text":"done"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s is not in %v %s", want, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "made.txt")); err == nil {
		t.Error("the project on the host has changed")
	}
	testwait.Within(t, time.Minute, "a proposal", func() bool { // Codex does not wait for it
		list := exec.Command(program.Path, "apply")
		list.Env = program.Env
		text, _ := list.Output()
		return strings.Contains(string(text), "proposed") && strings.Contains(string(text), "codex")
	})
}
