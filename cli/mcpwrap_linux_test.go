package cli_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testwait"
)

// agentHome returns a home for commands that agents start.
func agentHome(t *testing.T) string {
	t.Helper()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	return testhome.New(t, base)
}

// machinesOf returns the QEMU processes that descend from a process.
func machinesOf(t *testing.T, ancestor int) (pids []int) {
	t.Helper()
	type process struct {
		name   string
		parent int
	}
	all := map[int]process{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(text), "(")
		name, rest, _ := strings.Cut(rest, ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[0] != "Z" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			parent, _ := strconv.Atoi(fields[1])
			all[pid] = process{name, parent}
		}
	}
	for pid, p := range all {
		for above := p.parent; above > 1 && strings.HasPrefix(p.name, "qemu-system"); above = all[above].parent {
			if above == ancestor {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// gone waits until processes have ended.
func gone(t *testing.T, pids []int) {
	t.Helper()
	if len(pids) == 0 {
		t.Error("there was no machine")
	}
	for _, pid := range pids {
		testwait.Within(t, 20*time.Second, "the end of QEMU", func() bool { return syscall.Kill(pid, 0) == syscall.ESRCH })
	}
}

// The wrapper changes nothing between a client and a server. Cases are 10 MiB in one message, every byte, and a pipe
// that one side has closed. The exit code is the server's.
func TestMCPWrapBytes(t *testing.T) {
	home := agentHome(t)
	cmd := unitaskIn(t, home, "mcp", "wrap", "--", "sh", "-c", "cat; echo after the input; echo noted >&2; exit 7")
	var want bytes.Buffer
	want.WriteString(`{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", 10<<20) + "\"}\n")
	for i := range 256 {
		want.WriteByte(byte(i))
	}
	want.WriteString("no newline at the end")
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(want.Bytes()), &out, &errs
	err := cmd.Run()
	want.WriteString("after the input\n")
	if cmd.ProcessState.ExitCode() != 7 || !bytes.Equal(out.Bytes(), want.Bytes()) ||
		!strings.Contains(errs.String(), "noted\n") {
		t.Errorf("%v, %d bytes instead of %d, stderr %s", err, out.Len(), want.Len(), &errs)
	}
}

// A server with children and garbage ignores its client's end. It leaves no machine after a signal, after its client's
// death, and after a close of its input alone.
func TestMCPWrapEnds(t *testing.T) {
	home := agentHome(t)
	const server = "trap '' INT TERM; setsid sleep 1000 & sleep 1000 & printf 'garbage \\000\\377\\n'; " +
		"echo x 2>/dev/null >/proc/self/mem; cat >/dev/null; sleep 1000"
	program := unitaskIn(t, home)
	for name, end := range map[string]func(*exec.Cmd, io.Closer) (code int, said string){
		"SIGTERM": func(cmd *exec.Cmd, _ io.Closer) (int, string) {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			return 130, ""
		},
		"SIGKILL": func(cmd *exec.Cmd, _ io.Closer) (int, string) {
			_ = cmd.Process.Kill()
			return -1, ""
		},
		"closed input": func(_ *exec.Cmd, in io.Closer) (int, string) {
			in.Close()
			return 0, "the client is gone"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program.Path, "mcp", "wrap", "--", "sh", "-c", server)
			cmd.Env = program.Env
			var errs bytes.Buffer
			cmd.Stderr = &errs
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line := make([]byte, len("garbage \x00\xff\n"))
			if _, err := io.ReadFull(out, line); err != nil || string(line) != "garbage \x00\xff\n" {
				t.Fatalf("%q %v %s", line, err, &errs)
			}
			machines := machinesOf(t, cmd.Process.Pid)
			code, said := end(cmd, in)
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(errs.String(), said) {
				t.Errorf("exit code %d, %s", got, &errs)
			}
			gone(t, machines)
		})
	}
}

// published are servers of npm and PyPI, each with a call whose result is always the same.
var published = []struct {
	name, registry, version string
	args                    []string // DATA stands for a folder
	tool                    string
	arguments               string
}{
	{"@modelcontextprotocol/server-everything", "npm", "2026.8.31", nil, "echo", `{"message":"hi \u2028 there"}`},
	{"@modelcontextprotocol/server-memory", "npm", "2026.8.31", nil, "create_entities",
		`{"entities":[{"name":"a","entityType":"t","observations":["o"]}]}`},
	{"@modelcontextprotocol/server-sequential-thinking", "npm", "2026.8.31", nil, "sequentialthinking",
		`{"thought":"one","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}`},
	{"@modelcontextprotocol/server-filesystem", "npm", "2026.8.31", []string{"DATA"}, "read_text_file",
		`{"path":"DATA/note.txt"}`},
	{"mcp-server-time", "pip", "2026.10.19", []string{"--local-timezone", "UTC"}, "convert_time",
		`{"source_timezone":"UTC","time":"12:00","target_timezone":"Asia/Tokyo"}`},
}

// sdkScript has the official TypeScript SDK list the tools of a server and call one.
const sdkScript = `
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js'
const [tool, args, command, ...rest] = process.argv.slice(2)
const client = new Client({ name: 'test', version: '1' })
await client.connect(new StdioClientTransport({ command, args: rest, env: process.env }), { timeout: 600000 })
const { tools } = await client.listTools()
const res = await client.callTool({ name: tool, arguments: JSON.parse(args) }, undefined, { timeout: 120000 })
console.log(JSON.stringify({ tools: tools.map(t => t.name).sort(), text: res.content.map(c => c.text).join('') }))
await client.close()
`

// Servers of npm and PyPI answer alike in a machine and on the host, to the Go SDK and to the TypeScript SDK.
func TestMCPWrapServers(t *testing.T) {
	if os.Getenv("UNITASK_TEST_LONG") == "" {
		t.Skip("packages are installed in machines for minutes: make long (UNITASK_TEST_LONG=1)")
	}
	home, host, data := agentHome(t), t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "note.txt"), []byte("a note\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	publishedOnHost(t, host)
	program := unitaskIn(t, home)
	for i, s := range published {
		t.Run(s.name, func(t *testing.T) {
			fill := strings.NewReplacer("DATA", data)
			var args []string
			for _, arg := range s.args {
				args = append(args, fill.Replace(arg))
			}
			start := []string{"npx", "-y", s.name + "@" + s.version}
			here := exec.Command(filepath.Join(host, "node_modules/.bin", "mcp-"+filepath.Base(s.name)), args...)
			if s.registry == "pip" {
				start = []string{"uvx", s.name + "@" + s.version}
				here = exec.Command(filepath.Join(host, "venv/bin", s.name), args...)
			}
			here.Env = append(os.Environ(), "MEMORY_FILE_PATH="+filepath.Join(t.TempDir(), "memory.json"))
			flags := []string{"mcp", "wrap", "--dir", data, "--env", "MEMORY_FILE_PATH=/work/memory.json", "--"}
			command := append(append(append([]string{program.Path}, flags...), start...), args...)
			arguments := fill.Replace(s.arguments)
			want := askServer(t, here, s.tool, arguments)
			for _, which := range []string{"first", "second"} {
				began := time.Now()
				there := exec.Command(command[0], command[1:]...)
				there.Env = program.Env
				if got := askServer(t, there, s.tool, arguments); got != want {
					t.Errorf("in a machine:\n%s\non the host:\n%s", got, want)
				}
				t.Logf("the %s start, with two calls: %.1f s", which, time.Since(began).Seconds())
			}
			if i == 0 {
				command = append([]string{s.tool, arguments}, command...)
				asksTypeScript(t, program, filepath.Join(host, "client.mjs"), want, command)
			}
		})
	}
}

// asksTypeScript checks that the official TypeScript SDK gets the same tools, and a result of the call.
func asksTypeScript(t *testing.T, program *exec.Cmd, script, want string, args []string) {
	t.Helper()
	cmd := exec.Command("node", append([]string{script}, args...)...)
	cmd.Env = program.Env
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v %s", err, text)
	}
	var got struct {
		Tools []string
		Text  string
	}
	if err := json.Unmarshal(text, &got); err != nil || len(got.Tools) == 0 || !strings.Contains(got.Text, "hi ") {
		t.Errorf("%v %s", err, text)
	}
	for _, tool := range got.Tools {
		if !strings.Contains(want, `"name":"`+tool+`"`) {
			t.Errorf("%s is not in %s", tool, want)
		}
	}
}

// publishedOnHost installs the servers, and the TypeScript SDK with sdkScript, in a folder of the host.
func publishedOnHost(t *testing.T, host string) {
	t.Helper()
	onHost := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = host
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	install := []string{"install", "--prefix", ".", "--no-audit", "--no-fund", "@modelcontextprotocol/sdk@1.32.2"}
	pips := []string{"install", "-q"}
	for _, s := range published {
		if s.registry == "npm" {
			install = append(install, s.name+"@"+s.version)
		} else {
			pips = append(pips, s.name+"=="+s.version)
		}
	}
	onHost("npm", install...)
	onHost("python3", "-m", "venv", "venv")
	onHost("venv/bin/pip", pips...)
	if err := os.WriteFile(filepath.Join(host, "client.mjs"), []byte(sdkScript), 0o600); err != nil {
		t.Fatal(err)
	}
}

// askServer returns a server's tools, and the result of a call.
func askServer(t *testing.T, cmd *exec.Cmd, tool, arguments string) string {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	cs, err := client.Connect(t.Context(), &sdk.CommandTransport{Command: cmd, TerminateDuration: time.Minute}, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	defer cs.Close()
	tools, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, &errs)
	}
	res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: json.RawMessage(arguments)})
	if err != nil || res.IsError {
		t.Fatalf("%s: %v %+v\n%s", tool, err, res, &errs)
	}
	text, err := json.Marshal([]any{tools.Tools, res.Content, res.StructuredContent})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
