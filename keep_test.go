package unitask_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// panics is code that makes a kernel panic after it has connected to PORT.
var panics = map[image.Kernel]string{
	image.Linux: `require("net").connect(PORT, "127.0.0.1", () => { console.log("up"); const all = []; ` +
		`for (;;) all.push(Buffer.alloc(64 << 20, 1)) }).on("error", () => {})`,
	image.Nanos: `require("net").connect(PORT, "127.0.0.1", () => { console.log("up"); ` +
		`setImmediate(() => process.dlopen({ exports: ` +
		`{} }, "/tmp/" + "a/".repeat(1500) + "x.node")) }).on("error", () => {})`,
}

// A machine whose kernel panics is stopped and waits for a debugger until it is released, its time is over or the run
// is cancelled. Then nothing of it is left. Code that survives the panic does not run, and reaches nobody.
func TestAttackKeptMachine(t *testing.T) {
	needVM(t)
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			t.Parallel()
			slot(t)
			rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer rt.Close()
			unitask.PanicOnOOM(rt, "")
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			cut := make(chan struct{})
			go func() { // until the guest's connection ends
				defer close(cut)
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, c)
				c.Close()
			}()
			port := l.Addr().(*net.TCPAddr).Port
			req := unitask.Request{Kernel: kernel, MemoryMB: 192, AllowTCP: []string{"127.0.0.1:" + itoa(port)},
				Code: strings.ReplaceAll(panics[kernel], "PORT", itoa(port))}
			k := &keeper{t: t, rt: rt, req: req, kept: make(chan unitask.Event, 1)}
			k.release(kernel, cut)
			if kernel == image.Nanos { // Linux needs some time to use up the memory.
				k.runOut()
			}
			for _, g := range k.gone {
				select {
				case <-g:
				case <-time.After(5 * time.Second):
					t.Error("a console's connection lives on")
				}
			}
		})
	}
}

// keeper runs code that crashes its kernel, and keeps the machine for a console.
type keeper struct {
	t    *testing.T
	rt   *unitask.Runtime
	req  unitask.Request
	kept chan unitask.Event
	gone []<-chan struct{} // closed when the consoles' connections end
}

// keptOutcome is the end of a run whose machine was kept.
type keptOutcome struct {
	res *unitask.Result
	err error
}

// run starts a run.
func (k *keeper) run(ctx context.Context, keep unitask.Keep) <-chan keptOutcome {
	done := make(chan keptOutcome, 1)
	go func() {
		res, err := k.rt.RunFor(ctx, unitask.Caller{}, k.req, unitask.IO{Keep: &keep, Events: func(e unitask.Event) {
			if e.Kind == unitask.EventKept {
				k.kept <- e
			}
		}})
		done <- keptOutcome{res, err}
	}()
	return done
}

// crashed checks that a run's kernel crashed, and that nothing of it is left.
func (k *keeper) crashed(o keptOutcome) {
	k.t.Helper()
	var gone *unitask.GuestError
	if !errors.As(o.err, &gone) || !strings.Contains(gone.Reason, "kernel stopped") ||
		o.res.Outcome != unitask.OutcomeCrashed || o.res.ExitCode != unitask.ExitHost || string(o.res.Stdout) != "up\n" {
		k.t.Errorf("%v %+v", o.err, o.res)
	}
	if _, err := os.Stat(filepath.Join(k.rt.Runs().Dir(), o.res.RunID, "debug.sock")); err == nil {
		k.t.Error("the socket is left")
	}
}

// wait waits until a run's machine is kept.
func (k *keeper) wait(done <-chan keptOutcome) unitask.Event {
	k.t.Helper()
	select {
	case e := <-k.kept:
		return e
	case o := <-done:
		k.t.Fatalf("not kept: %v %+v", o.err, o.res)
	case <-time.After(2 * time.Minute):
		k.t.Fatal("neither kept nor ended")
	}
	return unitask.Event{}
}

// monitored connects to a machine's console.
func (k *keeper) monitored(id string) *vmm.Monitor {
	k.t.Helper()
	m, rec, err := k.rt.Consoles().Join(k.t.Context(), id, vmm.AccessMemory, false)
	if err != nil {
		k.t.Fatal(err)
	}
	if rec.Machine.KeptUntil == nil {
		k.t.Error("the record does not say that it is kept")
	}
	k.t.Cleanup(func() { _ = m.Disconnect() })
	k.gone = append(k.gone, m.Done())
	return m
}

// release crashes a guest, inspects it through a console, and releases it.
func (k *keeper) release(kernel image.Kernel, cut <-chan struct{}) {
	done := k.run(k.t.Context(), unitask.Keep{})
	e := k.wait(done)
	if !strings.Contains(e.Message, "unitask debug attach "+e.RunID) || !strings.Contains(e.Message, "kept for 10m0s") {
		k.t.Error(e.Message)
	}
	m := k.monitored(e.RunID)
	var status struct {
		Running bool   `json:"running"`
		Status  string `json:"status"`
	}
	if err := m.Do(k.t.Context(), "query-status", nil, &status); err != nil {
		k.t.Fatal(err)
	}
	got := "stopped"
	if status.Running {
		got = status.Status
	}
	attack.Check(k.t, "a guest crashes to live on, on "+string(kernel)+": its processor", "stopped", got)
	got = "ended"
	select {
	case <-cut:
	case <-time.After(5 * time.Second):
		got = "open"
	}
	attack.Check(k.t, "and its connection to the outside", "ended", got)
	got = "refused"
	if err := m.Do(k.t.Context(), "cont", nil, nil); err == nil {
		got = "allowed"
	}
	attack.Check(k.t, "and a console that may only look: cont", "refused", got)
	var said string
	if err := m.Do(k.t.Context(), "human-monitor-command", map[string]string{"command-line": "info registers"},
		&said); err != nil || said == "" {
		k.t.Errorf("%v %q", err, said)
	}
	_ = m.Disconnect()
	m = k.monitored(e.RunID) // disconnecting from it has changed nothing
	if err := attach.Release(k.t.Context(), m); err != nil {
		k.t.Error(err)
	}
	k.crashed(<-done)
	if _, _, err := k.rt.Consoles().Join(k.t.Context(), e.RunID, vmm.AccessRead, false); err == nil ||
		!strings.Contains(err.Error(), "is no longer running") {
		k.t.Error(err)
	}
}

// runOut checks that a machine is kept no longer than its time, and no longer than its caller waits.
func (k *keeper) runOut() {
	done := k.run(k.t.Context(), unitask.Keep{Time: time.Second})
	k.monitored(k.wait(done).RunID)
	began := time.Now()
	o := <-done
	k.crashed(o)
	got := "gone"
	if took := time.Since(began); took > time.Minute {
		got = took.String()
	}
	attack.Check(k.t, "and its time", "gone", got)

	ctx, cancel := context.WithCancel(k.t.Context())
	defer cancel()
	done = k.run(ctx, unitask.Keep{})
	k.monitored(k.wait(done).RunID)
	cancel()
	k.crashed(<-done)
}

// A machine is not kept if its debugger may not see it.
func TestAttackKeepRefused(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: filepath.Join(t.TempDir(), "home")})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	forbids, err := policy.ParseCeiling(".unitask.toml", []byte("debug = false\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		keep    unitask.Keep
		ceiling *policy.Ceiling
		secrets map[string]string
		want    string
	}{
		{"keep a machine against the ceiling", unitask.Keep{}, forbids, nil, "debug = false"},
		{"keep a machine that holds a secret", unitask.Keep{}, nil, map[string]string{"TOKEN": "a-long-secret"},
			"--with-secrets"},
		{"keep a machine for an hour", unitask.Keep{Time: time.Hour}, nil, nil, "10m0s at most"},
		{"keep a machine for less than nothing", unitask.Keep{Time: -1}, nil, nil, "10m0s at most"},
	} {
		_, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: c.ceiling}, unitask.Request{Code: "1", Secrets: c.secrets},
			unitask.IO{Keep: &c.keep})
		got, field := "run", (*policy.FieldError)(nil)
		switch {
		case errors.As(err, &field) && strings.Contains(err.Error(), c.want):
			got = "refused"
		case err != nil:
			got = err.Error()
		}
		attack.Check(t, c.name, "refused", got)
	}
}
