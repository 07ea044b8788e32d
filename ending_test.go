package unitask_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testwait"
)

// Code that leaves most of standard input unread keeps its artifacts.
func TestArtifactsWithStdinUnread(t *testing.T) {
	needVM(t)
	const code = `process.stdin.once("data", () => { require("fs").writeFileSync("/out/a.txt", "x".repeat(100000)); ` +
		`process.exit(0) })`
	for _, kernel := range kernels(t) {
		for range 6 {
			t.Run(string(kernel), func(t *testing.T) {
				slot(t)
				home := newHome(t)
				res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Code: code},
					unitask.Options{Home: home, IO: unitask.IO{Stdin: io.LimitReader(zeros{}, 80<<20)}})
				if err != nil || res.ExitCode != 0 || len(res.ArtifactsRefused) > 0 || len(res.Artifacts) != 1 ||
					res.Artifacts[0].Size != 100000 {
					t.Errorf("%+v %v", res, err)
				}
			})
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// forgeries tell the agent that the code has ended, while it continues. On linux they use the addon's way. On Nanos
// they use the agent's own pipe (the second descriptor that nanos.c moves away), and not libc's write, which does not
// reach it.
var forgeries = map[image.Kernel]unitask.Request{
	image.Linux: {Code: `
const fs = require("fs"), c = require("net").connect(PORT, "127.0.0.1", () => {
  fs.writeFileSync("/out/big", Buffer.alloc(48 << 20, 1));
  c.write("forged\n");
  setImmediate(() => {
    try { fs.writeSync(512, Buffer.from([0x45, 0])) } catch {}
    setInterval(() => c.write("tick\n"), 2);
  });
});
c.on("error", () => {});`},
	image.Nanos: {Language: "python", Code: `
import ctypes, socket, time
c = socket.create_connection(("127.0.0.1", PORT))
with open("/out/big", "wb") as f:
    f.write(b"\1" * (48 << 20))
c.sendall(b"forged\n")
ctypes.CDLL(None).syscall(1, 513, bytes(8), 8)
while True:
    c.sendall(b"tick\n")
    time.sleep(0.002)`},
}

// listen serves connections to a loopback port, one after the other, until the test ends or until stop, which waits for
// the last one.
func listen(t *testing.T, serve func(net.Conn)) (port int, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c)
			c.Close()
		}
	}()
	stop = func() { l.Close(); <-done }
	t.Cleanup(stop)
	return l.Addr().(*net.TCPAddr).Port, stop
}

// Code that falsely claims to have ended has no network while its artifacts are collected.
func TestAttackForgedExit(t *testing.T) {
	needVM(t)
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			slot(t)
			var heard atomic.Pointer[bytes.Buffer]
			port, stop := listen(t, func(c net.Conn) {
				var b bytes.Buffer
				_, _ = io.Copy(&b, c)
				heard.Store(&b)
			})
			req := forgeries[kernel]
			req.Kernel, req.Timeout, req.AllowTCP = kernel, 40*time.Second, []string{fmt.Sprintf("127.0.0.1:%d", port)}
			req.Code = strings.ReplaceAll(req.Code, "PORT", itoa(port))
			res, err := unitask.Run(t.Context(), req, unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			stop()
			if res.Outcome != unitask.OutcomeExited || len(res.Artifacts) != 1 || heard.Load() == nil ||
				!strings.HasPrefix(heard.Load().String(), "forged\n") {
				t.Fatalf("the attack did not take place: %+v", res)
			}
			// Data that was in transit at that moment may still arrive.
			got := "cut"
			if n := strings.Count(heard.Load().String(), "tick\n"); n > 20 {
				got = fmt.Sprintf("%d messages", n)
			}
			attack.Check(t, "a forged exit, then the network, on "+string(kernel), "cut", got)
		})
	}
}

// Data that a server sent before it closed is read, even by a client that closes its own side before it reads.
func TestLateReader(t *testing.T) {
	needVM(t)
	code := testarchive.Open(t, "testdata/endingpaused.txtar").Text("paused.js")
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			slot(t)
			port, _ := listen(t, func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte("x"), 100000)) })
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Timeout: 40 * time.Second,
				AllowTCP: []string{fmt.Sprintf("127.0.0.1:%d", port)},
				Code:     strings.ReplaceAll(code, "PORT", itoa(port))}, unitask.Options{Home: newHome(t)})
			if err != nil || string(res.Stdout) != "100000 end\n" {
				t.Errorf("%v %+v %s%s", err, res, res.Stdout, res.Stderr)
			}
		})
	}
}

// A guest whose artifacts never end gets the rest of its time, and the grace. The file is sparse and as large as
// allowed; a machine sends some tens of MiB of it in a second.
func TestAttackEndlessArtifacts(t *testing.T) {
	needVM(t)
	if unitask.CollectGrace != 15*time.Second {
		t.Error("docs say 15 s")
	}
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			slot(t)
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			const limit, grace = 2 * time.Second, time.Second
			unitask.SetGrace(rt, grace)
			began := time.Time{}
			res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Timeout: limit, MaxArtifacts: 4 << 30,
				Code: `require("fs").writeFileSync("/out/a", "a"); ` +
					`require("fs").ftruncateSync(require("fs").openSync("/out/big", "w"), 4e9); console.log("ready")`},
				unitask.IO{Events: func(e unitask.Event) {
					if e.Kind == unitask.EventStarted {
						began = time.Now()
					}
				}})
			took := time.Since(began)
			if err != nil {
				t.Fatal(err)
			}
			refused := ""
			for _, r := range res.ArtifactsRefused {
				refused += r.Path + " "
			}
			got := fmt.Sprintf("%s, not taken: %s", res.Outcome, refused)
			if took < limit || took > limit+grace+2*time.Second { // includes the machine's end
				got += fmt.Sprintf("after %s", took)
			}
			attack.Check(t, "artifacts without end, on "+string(kernel), "undelivered, not taken: big /out ", got)
		})
	}
}

// A kernel panic ends the run, with the reason in one line; its other output is in the record. This linux would hang
// forever, as Nanos does after some of its faults.
func TestKernelGivesUp(t *testing.T) {
	needVM(t)
	for kernel, stack := range map[image.Kernel]string{image.Linux: "Call Trace:", image.Nanos: "frame trace:"} {
		if !slices.Contains(kernels(t), kernel) {
			continue
		}
		t.Run(string(kernel), func(t *testing.T) {
			t.Parallel()
			slot(t)
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			unitask.PanicOnOOM(rt, "sysctl.kernel.panic=0")
			port, _ := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
			var died time.Time
			var then waits
			watched := make(chan struct{})
			ctx, stop := context.WithCancel(t.Context())
			go func() {
				defer close(watched)
				testwait.Holds(time.Hour, func() bool {
					for _, name := range globbed(t, filepath.Join(rt.Runs().Dir(), "*", "console.log")) {
						if text, _ := os.ReadFile(name); slices.ContainsFunc(strings.Split(string(text), "\n"), guest.Dies) {
							died, then = time.Now(), waitsForProcessor()
						}
					}
					return !died.IsZero() || ctx.Err() != nil
				})
			}()
			res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Cold: true, MemoryMB: 192, Timeout: 90 * time.Second,
				AllowTCP: []string{"127.0.0.1:" + itoa(port)},
				Code:     strings.ReplaceAll(panics[kernel], "PORT", itoa(port))}, unitask.IO{})
			ended := time.Now()
			stop()
			<-watched
			var gone *unitask.GuestError
			if !errors.As(err, &gone) || res.Outcome != unitask.OutcomeCrashed || res.ExitCode != unitask.ExitHost ||
				string(res.Stdout) != "up\n" {
				t.Fatalf("%v %+v", err, res)
			}
			for _, said := range []string{gone.Reason, res.Error} {
				if !strings.Contains(said, "the "+string(kernel)+" kernel stopped: ") || strings.Contains(said, "\n") ||
					strings.Contains(said, "does not say") || strings.Contains(said, stack) {
					t.Errorf("said: %q", said)
				}
			}
			if !strings.HasPrefix(gone.Reason, "the ") || gone.Console != "" {
				t.Errorf("reason %q, console %q", gone.Reason, gone.Console)
			}
			text, err := os.ReadFile(filepath.Join(rt.Runs().Dir(), res.RunID, "console.log"))
			if err != nil || !strings.Contains(string(text), stack) {
				t.Errorf("%v; the record's console:\n%s", err, text)
			}
			// Half a second on an idle host. On a busy host, add the time for which our threads waited for a processor, and the
			// length of an ordinary run's end.
			if died.IsZero() {
				died, then = ended, waitsForProcessor()
			}
			waited := waitsForProcessor().since(then)
			ordinary := ordinaryEnd(t, rt, kernel)
			took, allowed := ended.Sub(died), max(time.Second, 8*ordinary)+10*waited
			if took > min(allowed, 20*time.Second) {
				t.Errorf("it took %s, with %s of waiting for a processor; an ordinary end %s", took, waited, ordinary)
			}
			t.Logf("ended %s after its kernel (%s allowed): %s", took, allowed, gone.Reason)
		})
	}
}

// ordinaryEnd is how long a run takes to end after its last output.
func ordinaryEnd(t *testing.T, rt *unitask.Runtime, kernel image.Kernel) time.Duration {
	t.Helper()
	var last lastWrite
	if res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Code: `console.log("up")`},
		unitask.IO{Stdout: &last}); err != nil || res.ExitCode != 0 {
		t.Fatalf("%v %+v", err, res)
	}
	return time.Since(time.Time(last))
}

type lastWrite time.Time

func (w *lastWrite) Write(p []byte) (int, error) {
	*w = lastWrite(time.Now())
	return len(p), nil
}

// waits returns how long each thread of this process was ready but did not run; empty if the kernel does not count it.
type waits map[string]time.Duration

func waitsForProcessor() waits {
	names, _ := filepath.Glob("/proc/self/task/*/schedstat")
	all := waits{}
	for _, name := range names {
		var ran, waited time.Duration
		if text, err := os.ReadFile(name); err == nil {
			_, _ = fmt.Sscan(string(text), &ran, &waited)
		}
		all[name] = waited
	}
	return all
}

// since returns how much longer the current threads have waited than they had at then.
func (w waits) since(then waits) (sum time.Duration) {
	for name, waited := range w {
		sum += max(0, waited-then[name])
	}
	return sum
}

// A machine whose processor has stopped sends nothing any more: the time limit ends its run.
func TestStoppedMachine(t *testing.T) {
	needVM(t)
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			slot(t)
			stopped := 0
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, Timeout: time.Second,
				Code: `console.log("up"); setInterval(() => {}, 1000)`},
				unitask.Options{Home: newHome(t), Events: func(e unitask.Event) {
					if e.Kind == unitask.EventStarted {
						for _, pid := range qemuChildren(t, os.Getpid()) {
							if syscall.Kill(pid, syscall.SIGSTOP) == nil {
								stopped++
							}
						}
					}
				}})
			if err != nil || stopped == 0 || res.Outcome != unitask.OutcomeTimeout || res.ExitCode != unitask.ExitTimeout {
				t.Errorf("%v, %d stopped, %+v", err, stopped, res)
			}
		})
	}
}
