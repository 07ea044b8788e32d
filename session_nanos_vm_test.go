package unitask_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

func nanosSession(t *testing.T) *unitask.Session {
	needNanos(t, image.HostArch())
	return openSession(t, sessionRuntime(t), unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos}})
}

// In the one process of Nanos, a step ends by its limit, by Ctrl-C or by process.exit, whatever it does. Definitions
// stay.
func TestSessionNanosSteps(t *testing.T) {
	s := nanosSession(t)
	n := 0
	run := func(code string, limit time.Duration) *unitask.Result {
		t.Helper()
		res, err := s.Run(t.Context(), unitask.Step{Code: code, Timeout: limit})
		if err != nil {
			t.Fatalf("%s: %v", code, err)
		}
		return res
	}
	stays := func(after string) {
		t.Helper()
		n++
		if res := run("x += 1", time.Minute); res.Value != strconv.Itoa(n) || res.ExitCode != 0 || res.Hint() != "" {
			t.Errorf("after %s: %+v, not %d", after, res, n)
		}
	}
	run("let x = 0; const cells = new Int32Array(new SharedArrayBuffer(4))", time.Minute)
	for _, code := range []string{
		"for (;;);",
		"await null; for (;;);",
		"Promise.resolve().then(() => { for (;;); }); 1",
		"setTimeout(() => { for (;;); }, 1); await new Promise(() => {})",
		"process.nextTick(() => { for (;;); }); await new Promise(() => {})",
		"setImmediate(() => { for (;;); }); await new Promise(() => {})",
		"process.removeAllListeners('SIGINT'); await new Promise(() => {})",
		"try { for (;;); } catch { for (;;); } finally { for (;;); }",
		"Atomics.wait(cells, 0, 0)",
	} {
		res := run(code, time.Second)
		if !strings.Contains(string(res.Stderr), "interrupted") || res.ExitCode == 0 || res.Hint() != "" {
			t.Errorf("%s: %+v %q", code, res, res.Stderr)
		}
		stays(code)
	}
	for _, row := range []struct {
		code string
		exit int
		out  string
	}{
		{"process.exit(3)", 3, ""},
		{"process.exitCode = 4; process.exit()", 4, ""},
		{"try { process.exit(5) } catch { console.log('caught') } finally { console.log('finally') }", 5, ""},
		{"await null; process.exit(6)", 6, ""},
		{"setTimeout(() => process.exit(7), 1); await new Promise(() => {})", 7, ""},
		{"setImmediate(() => process.exit(8)); await new Promise(() => {})", 8, ""},
		{"process.once('exit', (code) => console.log('bye', code)); process.exit(9)", 9, "bye 9\n"},
		{"console.log('before'); process.reallyExit(10)", 10, "before\n"},
		{"require('fs').readFile('/etc/hosts', () => process.exit(11)); await new Promise(() => {})", 11, ""},
	} {
		if res := run(row.code, time.Minute); res.ExitCode != row.exit || string(res.Stdout) != row.out ||
			len(res.Stderr) > 0 || res.Hint() != "" {
			t.Errorf("%s: %+v %q %q", row.code, res, res.Stdout, res.Stderr)
		}
		stays(row.code)
	}
	// A cancelled step is interrupted as well.
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	if _, err := s.Run(ctx, unitask.Step{Code: "await null; for (;;);"}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	stays("a step that was cancelled")
}

// A call that needs a process is refused by name, and the session continues.
func TestSessionNanosLacks(t *testing.T) {
	needNanos(t, image.HostArch())
	ctx, rt := t.Context(), sessionRuntime(t)
	for _, language := range []string{"python", "shell"} {
		var field *policy.FieldError
		if _, err := rt.NewSession(ctx, unitask.SessionRequest{Request: unitask.Request{Language: language,
			Kernel: unitask.Nanos}}); !errors.As(err, &field) || field.Field != "kernel" ||
			!strings.Contains(err.Error(), "use linux") {
			t.Errorf("a session of %s: %v", language, err)
		}
	}
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos}})
	if err := s.WriteFile(ctx, "d/f", []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() error{
		"command": func() error { _, err := s.Exec(ctx, unitask.Command{Args: []string{"true"}}); return err },
		"terminal": func() error {
			_, err := s.Exec(ctx, unitask.Command{Args: []string{"sh"}, Terminal: &unitask.Terminal{}})
			return err
		},
		"background": func() error { _, err := s.Start(ctx, unitask.Command{Args: []string{"true"}}); return err },
		"port":       func() error { _, err := s.Forward(80, 0); return err },
		"python":     func() error { _, err := s.Run(ctx, unitask.Step{Code: "1", Language: "python"}); return err },
		"shell":      func() error { _, err := s.Run(ctx, unitask.Step{Code: "1", Language: "shell"}); return err },
		"download":   func() error { _, err := s.Download(ctx, "d", t.TempDir()+"/d"); return err },
		"upload":     func() error { return s.Upload(ctx, t.TempDir(), "e") },
		"folder":     func() error { return s.Copy(ctx, "d", s, "e") },
	} {
		var field *policy.FieldError
		if err := do(); !errors.As(err, &field) || field.Field != "kernel" || field.Value != "nanos" ||
			!strings.Contains(err.Error(), "start the session with kernel linux") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, _, err := s.List(ctx, "e", 0); err == nil {
		t.Error("a folder was copied")
	}
	if err := s.Put(ctx, "limits", map[string]int{"retries": 3}); err != nil {
		t.Error(err)
	}
	if res, err := s.Run(ctx,
		unitask.Step{Code: "JSON.parse(require('fs').readFileSync('/work/.values/limits.json')).retries"}); err != nil ||
		res.Value != "3" {
		t.Errorf("%+v %v", res, err)
	}
	if err := s.Copy(ctx, "d/f", s, "g"); err != nil {
		t.Error(err)
	}
	if text, err := s.ReadFile(ctx, "g", 0, 0); string(text) != "text" || err != nil {
		t.Errorf("%q %v", text, err)
	}
	if res, err := s.Run(ctx,
		unitask.Step{Code: "try { require('child_process').execSync('true') } catch (e) { e.code }"}); err != nil ||
		res.Value != "'ENOSYS'" {
		t.Errorf("a child process: %+v %v", res, err)
	}
}

// A session on Nanos continues after pauses during its work, in forks and in another runtime. It checks its own
// results, in memory that is allocated and freed all the time.
func TestSessionNanosPause(t *testing.T) {
	needNanos(t, image.HostArch())
	home := newHome(t)
	open := func() *unitask.Runtime { return openRuntime(t, unitask.Options{Home: home}) }
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // echoes
		for c, err := server.Accept(); err == nil; c, err = server.Accept() {
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	_, port, _ := net.SplitHostPort(server.Addr().String())
	ctx, rt := t.Context(), open()
	s, err := rt.NewSession(ctx, unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos,
		AllowTCP: []string{"127.0.0.1:" + port}}})
	if err != nil {
		t.Fatal(err)
	}
	run := func(s *unitask.Session, code, want string) {
		t.Helper()
		if got := value(t, s, "", code); got != want {
			t.Fatalf("%s: %q, not %q", code, got, want)
		}
	}
	run(s, testarchive.Open(t, "testdata/sessionnanospause.txtar").Text("turns.js"), "")
	connect := "var over, c = require('net').connect(" + port +
		", '127.0.0.1'), end = new Promise((done) => { over = done }); c.on('error', (e) => over(e.code)); " +
		"c.on('close', () => over('closed')); c.write('hello'); String(await new Promise((done) => c.once('data', done)))"
	run(s, connect, "'hello'")
	for range 6 {
		if err := s.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		before := time.Now().Unix()
		run(s, fmt.Sprintf(
			"var was = turns; while (turns < was + 3) await new Promise(setImmediate); x += 1; "+
				"[wrong, x > 40, Math.abs(Date.now() / 1000 - %d) < 30].join()", before), "'0,true,true'")
	}
	run(s, "[x, require('fs').readFileSync('file', 'utf8')].join()", "'46,text'")
	run(s, "await end", "'ECONNRESET'")
	run(s, connect, "'hello'")
	checkNanosForks(t, s, ctx, run)
	if err := s.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Leave(); err != nil {
		t.Fatal(err)
	}
	if err := rt.Close(); err != nil {
		t.Fatal(err)
	}
	rt = open()
	if s, err = rt.Revive(ctx, unitask.Caller{}, s.ID, nil); err != nil {
		t.Fatal(err)
	}
	run(s, "[wrong, x].join()", "'0,46'")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	idle := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos}, Idle: time.Second})
	for n := range 2 {
		run(idle, "var n = (globalThis.n ?? 0) + 1; n", fmt.Sprint(n+1))
		testwait.Until(t, "it is paused, for nobody uses it", idle.Paused)
	}
}

// checkNanosForks checks what two forks have of their parent.
func checkNanosForks(
	t *testing.T, s *unitask.Session, ctx context.Context, run func(s *unitask.Session, code string, want string),
) {
	t.Helper()
	forks, err := s.Fork(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range forks {
		run(f, fmt.Sprintf("x += %d; was = turns; while (turns < was + 3) await new Promise(setImmediate); [wrong, x].join()",
			i), fmt.Sprintf("'0,%d'", 46+i))
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A thread that reads a connection while its session is paused learns that the connection was cut. A normal end would
// mean that all data had arrived.
func TestSessionNanosWaits(t *testing.T) {
	needNanos(t, image.HostArch())
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { // sends nothing, and reads
		for c, err := server.Accept(); err == nil; c, err = server.Accept() {
			go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
		}
	}()
	_, port, _ := net.SplitHostPort(server.Addr().String())
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos,
		AllowTCP: []string{"127.0.0.1:" + port}}})
	value(t, s, "", `var c = require('net').connect(`+port+`, '127.0.0.1')
c.pause()
await new Promise((done) => c.once('connect', done))
c._handle.setBlocking(true)
var { Worker } = require('worker_threads')
var w = new Worker(`+"`"+`const { parentPort, workerData } = require('worker_threads'), fs = require('fs')
for (const at of [1, 2]) {
  parentPort.postMessage('reads')
  try { parentPort.postMessage(fs.readSync(workerData, Buffer.alloc(9))) } catch (e) { parentPort.postMessage(e.code) }
}`+"`"+`, { eval: true, workerData: c._handle.fd })
var said = []
var all = new Promise((done) => w.on('message', (m) => { if (said.push(m) === 4) done() }))
while (said.length < 1) await new Promise((done) => setTimeout(done, 10))
await new Promise((done) => setTimeout(done, 300)) // it is in the kernel`)
	if got := value(t, s, "", "said.join()"); got != "'reads'" {
		t.Fatalf("before the pause: %s", got)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := value(t, s, "", "await all; said.join()"); got != "'reads,ECONNRESET,reads,0'" {
		t.Errorf("behind the pause: %s", got)
	}
}

// An end of the process ends the session, which reports it. Nothing that the code does to the session's own descriptors
// has a greater effect.
func TestAttackSessionNanos(t *testing.T) {
	needNanos(t, image.HostArch())
	rt := sessionRuntime(t)
	every := func(do string) string {
		return "const fs = require('fs'); for (let fd = 3; fd < 64; fd++) { try { " + do +
			" } catch {} }; await new Promise(() => {})"
	}
	for name, code := range map[string]string{
		"SIGKILL":                 "process.kill(process.pid, 'SIGKILL')",
		"abort":                   "process.abort()",
		"closes every descriptor": every("fs.closeSync(fd)"),
		"a frame without end":     every("fs.writeSync(fd, Buffer.alloc(9, 0xff))"),
		"an end of a command that never was": every(
			"fs.writeSync(fd, Buffer.from([0, 0, 0, 4, 0x78, 0, 0, 0x7f, 0xff, 0, 0, 0, 0]))"),
		"a frame of no type":   every("fs.writeSync(fd, Buffer.from([0, 0, 0, 0, 0, 0, 0, 0, 1]))"),
		"a reply that is none": every("fs.writeSync(fd, 'x\\0y\\0')"),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close() // the error comes from the code
			res, err := s.Run(t.Context(), unitask.Step{Code: code, Timeout: 3 * time.Second})
			t.Logf("%v", err)
			got := fmt.Sprint(err == nil && res.ExitCode == 0)
			attack.Check(t, "a step on nanos, by "+name+", that ends with 0", "false", got)
			var over *unitask.SessionError
			if _, err := s.Run(t.Context(), unitask.Step{Code: "1", Timeout: 3 * time.Second}); err != nil &&
				!errors.As(err, &over) {
				t.Errorf("behind it: %v", err)
			}
		})
	}
}

// A recorded session is replayed on its original kernel.
func TestSessionNanosReplay(t *testing.T) {
	needNanos(t, image.HostArch())
	rt := sessionRuntime(t)
	then := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Kernel: unitask.Nanos}})
	value(t, then, "", "x = 40")
	value(t, then, "", "x + 2")
	if err := then.Close(); err != nil {
		t.Fatal(err)
	}
	req, steps, err := rt.History().Session(then.ID, "")
	if err != nil || len(steps) != 2 {
		t.Fatalf("%+v %v", steps, err)
	}
	now := openSession(t, rt, unitask.SessionRequest{Request: req})
	for i, want := range []string{"40", "42"} {
		res, err := now.Replay(t.Context(), steps[i], nil, nil)
		if err != nil || res.Value != want || res.Kernel != unitask.Nanos {
			t.Errorf("step %d: %+v %v", i, res, err)
		}
	}
}
