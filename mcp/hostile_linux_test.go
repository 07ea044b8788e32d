package mcp_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/record"
)

// hostile makes the test's program act as 200 clients: hostile ADDR RUN …, with runs of its callers.
const hostile = "hostile"

// hostileCallers are the callers of these clients.
const hostileCallers = 20

func hostileName(n int) string { return fmt.Sprintf("mallory%02d", n) }

// attackTogether starts 200 clients, which continue until they are killed. Each reads nothing, or sends data that is
// expensive to decode.
func attackTogether(what string) int {
	fields := strings.Fields(what)
	addr, runs := fields[0], fields[1:]
	objects := strings.Repeat("{},", 5<<20)
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{}}`
	for n := range 200 {
		caller := n % hostileCallers
		read := fmt.Sprintf(
			`{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"unitask://runs/%s/artifacts/large",%s}}`,
			runs[caller], meta)
		body, method, name, reads := read, "resources/read", fmt.Sprintf("unitask://runs/%s/artifacts/large", runs[caller]),
			false
		switch n / hostileCallers { // of each caller's ten
		case 5, 6:
			body, method, name, reads = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":[`+objects+`{}],`+meta+`}}`,
				"tools/list", "", true
		case 7:
			body, method, name, reads = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":"`+
				strings.Repeat("y", 15<<20)+`",`+meta+`}}`, "tools/list", "", true
		case 8:
			body, method,
				name = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code","arguments":{"language":"js",`+
				`"code":"`+
				strings.Repeat("z", 15<<20)+`"},`+
				strings.Replace(meta, "{", `{"progressToken":"`+strings.Repeat("p", 250)+`",`, 1)+`}}`, "tools/call", "run_code"
		case 9:
			body, method, name = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"list_runs","arguments":{},`+
				strings.Replace(meta, "{", `{"progressToken":"`+strings.Repeat("p", 14<<20)+`",`, 1)+`}}`, "tools/call", "list_runs"
		}
		if name != "" {
			name = "Mcp-Name: " + name + "\r\n"
		}
		head := fmt.Sprintf(
			"POST /mcp HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s-token-0123456789\r\nContent-Type: application/json\r\n"+
				"Accept: application/json, text/event-stream\r\n"+
				"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: %s\r\n%sContent-Length: %d\r\n\r\n", addr, hostileName(caller),
			method, name, len(body))
		go func() {
			for {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					continue
				}
				_, err = io.WriteString(c, head)
				if err == nil {
					_, err = io.WriteString(c, body)
				}
				if err == nil && reads {
					_, _ = bufio.NewReader(c).ReadString('\n')
				} else if err == nil { // until the server has cut it; its buffers are not read meanwhile
					waitForEnd(c)
				}
				c.Close()
			}
		}()
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
	return 0
}

// The promise of docs/security.md: hostile callers can take neither the memory of a shared server nor another caller's
// turn.
func TestAttackSharedServer(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	testhome.Ready(t, base, image.Linux)
	home := testhome.New(t, base)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	var runs []string
	text := "quiet quiet-token-0123456789\n"
	for n := range hostileCallers {
		r, err := rt.Runs().Create(time.Now(), hostileName(n), record.ViaHTTP, "code.js", nil, struct{}{})
		if err != nil {
			t.Fatal(err)
		}
		r.Status = record.Done
		out := filepath.Join(r.Dir(), record.ArtifactsDir)
		if err := errors.Join(r.Finish(time.Now()), os.Mkdir(out, 0o700),
			os.WriteFile(filepath.Join(out, "large"), bytes.Repeat([]byte{1}, 16<<20), 0o600)); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, r.ID)
		text += fmt.Sprintf("%s %[1]s-token-0123456789\n", hostileName(n))
	}
	rt.Close()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, pid := startServer(t, home, "--token-file", file, "--pool", "1:1", "--kernel", "linux")
	quiet := func() time.Duration {
		began := time.Now()
		code, _, body := send(t, "POST", "http://"+addr+"/mcp",
			strings.Replace(runCode, `"code":"1"`, `"code":"console.log(6*7)"`, 1), revision, "Mcp-Method: tools/call",
			"Mcp-Name: run_code", "Authorization: Bearer quiet-token-0123456789")
		if code != 200 || !strings.Contains(body, `"stdout":"42\n"`) {
			t.Fatal(code, body)
		}
		return time.Since(began)
	}
	median := func() time.Duration {
		var took []time.Duration
		for range 5 {
			took = append(took, quiet())
		}
		slices.Sort(took)
		return took[2]
	}
	quiet() // makes the template
	alone := median()
	cmd := exec.Command("nice", "-n", "19", os.Args[0]) // the clients' own processor time does not count
	cmd.Env = append(os.Environ(), stranger+"="+hostile+" "+addr+" "+strings.Join(runs, " "))
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	beside, held := median(), "no"
	for range 2 { // others use this machine, too
		if beside > 2*alone {
			beside = median()
		}
	}
	if beside <= 2*alone {
		held = "yes"
	}
	t.Logf("a run takes %v alone and %v beside 200 hostile clients; the server's memory was %d MiB at most", alone, beside,
		peak(t, pid)>>20)
	attack.Check(t, "a quiet caller's run beside 200 hostile clients, in twice its time", "yes", held)
	held = map[bool]string{true: "yes", false: "no"}[peak(t, pid) <= 1<<30]
	attack.Check(t, "the server's memory beside 200 hostile clients, within 1 GiB", "yes", held)
	code, _, _ := send(t, "GET", "http://"+addr+"/healthz", "")
	attack.Check(t, "the server beside 200 hostile clients", "200", strconv.Itoa(code))
}

// startServer starts the real program over HTTP. With -n it has this number of descriptors.
func startServer(t *testing.T, home string, args ...string) (addr string, pid int) {
	t.Helper()
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	files := "$(ulimit -n)"
	if n := len(args); n > 1 && args[n-2] == "-n" {
		args, files = args[:n-2], args[n-1]
	}
	cmd := exec.Command("sh", append([]string{"-c", "ulimit -n " + files + `; exec "$0" mcp --http 127.0.0.1:0 "$@"`,
		name}, args...)...)
	cmd.Env, cmd.Dir = append(os.Environ(), "UNITASK_HOME="+home), t.TempDir()
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if testing.Verbose() {
			t.Log(lines.Text())
		}
		if _, at, ok := strings.Cut(lines.Text(), "serving http://"); ok {
			addr, _, _ = strings.Cut(at, "/")
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return addr, cmd.Process.Pid
		}
	}
	t.Fatal("the server does not serve")
	return "", 0
}

// peak returns the peak memory of a process, in bytes.
func peak(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}
