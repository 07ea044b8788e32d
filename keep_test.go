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

// panics is code that has a kernel give up, once it has connected to PORT.
var panics = map[image.Kernel]string{
	image.Linux: `require("net").connect(PORT, "127.0.0.1", () => { console.log("up"); const all = []; for (;;) all.push(Buffer.alloc(64 << 20, 1)) }).on("error", () => {})`,
	image.Nanos: `require("net").connect(PORT, "127.0.0.1", () => { console.log("up"); setImmediate(() => process.dlopen({ exports: {} }, "/tmp/" + "a/".repeat(1500) + "x.node")) }).on("error", () => {})`,
}

// A machine whose kernel panics is stopped and can be joined, until it is released, its
// time is up or the run is cancelled. Then nothing is left of it. What has crashed to
// live on does not run, and reaches nobody.
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
			req := unitask.Request{Kernel: kernel, MemoryMB: 192, AllowTCP: []string{"127.0.0.1:" + itoa(port)}, Code: strings.ReplaceAll(panics[kernel], "PORT", itoa(port))}
			kept := make(chan unitask.Event, 1)
			type outcome struct {
				res *unitask.Result
				err error
			}
			run := func(ctx context.Context, keep unitask.Keep) <-chan outcome {
				done := make(chan outcome, 1)
				go func() {
					res, err := rt.RunFor(ctx, unitask.Caller{}, req, unitask.IO{Keep: &keep, Events: func(e unitask.Event) {
						if e.Kind == unitask.EventKept {
							kept <- e
						}
					}})
					done <- outcome{res, err}
				}()
				return done
			}
			crashed := func(o outcome) {
				t.Helper()
				var gone *unitask.GuestError
				if !errors.As(o.err, &gone) || !strings.Contains(gone.Reason, "kernel stopped") || o.res.Outcome != unitask.OutcomeCrashed || o.res.ExitCode != unitask.ExitHost || string(o.res.Stdout) != "up\n" {
					t.Errorf("%v %+v", o.err, o.res)
				}
				if _, err := os.Stat(filepath.Join(rt.Runs().Dir(), o.res.RunID, "debug.sock")); err == nil {
					t.Error("the socket is left")
				}
			}
			wait := func(done <-chan outcome) unitask.Event {
				t.Helper()
				select {
				case e := <-kept:
					return e
				case o := <-done:
					t.Fatalf("not kept: %v %+v", o.err, o.res)
				case <-time.After(2 * time.Minute):
					t.Fatal("neither kept nor ended")
				}
				return unitask.Event{}
			}
			var gone []<-chan struct{}
			monitored := func(id string) *vmm.Monitor {
				t.Helper()
				m, rec, err := rt.Consoles().Join(t.Context(), id, vmm.AccessMemory, false)
				if err != nil {
					t.Fatal(err)
				}
				if rec.Machine.KeptUntil == nil {
					t.Error("the record does not say that it is kept")
				}
				t.Cleanup(func() { _ = m.Disconnect() })
				gone = append(gone, m.Done())
				return m
			}

			// Released by a console.
			done := run(t.Context(), unitask.Keep{})
			e := wait(done)
			if !strings.Contains(e.Message, "unitask debug attach "+e.RunID) || !strings.Contains(e.Message, "kept for 10m0s") {
				t.Error(e.Message)
			}
			m := monitored(e.RunID)
			var status struct {
				Running bool   `json:"running"`
				Status  string `json:"status"`
			}
			if err := m.Do(t.Context(), "query-status", nil, &status); err != nil {
				t.Fatal(err)
			}
			got := "stopped"
			if status.Running {
				got = status.Status
			}
			attack.Check(t, "a guest crashes to live on, on "+string(kernel)+": its processor", "stopped", got)
			got = "ended"
			select {
			case <-cut:
			case <-time.After(5 * time.Second):
				got = "open"
			}
			attack.Check(t, "and its connection to the outside", "ended", got)
			got = "refused"
			if err := m.Do(t.Context(), "cont", nil, nil); err == nil {
				got = "allowed"
			}
			attack.Check(t, "and a console that may only look: cont", "refused", got)
			var said string
			if err := m.Do(t.Context(), "human-monitor-command", map[string]string{"command-line": "info registers"}, &said); err != nil || said == "" {
				t.Errorf("%v %q", err, said)
			}
			_ = m.Disconnect()
			m = monitored(e.RunID) // leaving it has changed nothing
			if err := attach.Release(t.Context(), m); err != nil {
				t.Error(err)
			}
			crashed(<-done)
			if _, _, err := rt.Consoles().Join(t.Context(), e.RunID, vmm.AccessRead, false); err == nil || !strings.Contains(err.Error(), "is no longer running") {
				t.Error(err)
			}

			if kernel == image.Nanos { // Linux takes its time to use up the memory.
				done = run(t.Context(), unitask.Keep{Time: time.Second})
				monitored(wait(done).RunID)
				began := time.Now()
				o := <-done
				crashed(o)
				got := "gone"
				if took := time.Since(began); took > time.Minute {
					got = took.String()
				}
				attack.Check(t, "and its time", "gone", got)

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done = run(ctx, unitask.Keep{})
				monitored(wait(done).RunID)
				cancel()
				crashed(<-done)
			}
			for _, g := range gone {
				select {
				case <-g:
				case <-time.After(5 * time.Second):
					t.Error("a console's connection lives on")
				}
			}
		})
	}
}

// What a debugger may not have is not kept for one.
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
		{"keep a machine that holds a secret", unitask.Keep{}, nil, map[string]string{"TOKEN": "a-long-secret"}, "--with-secrets"},
		{"keep a machine for an hour", unitask.Keep{Time: time.Hour}, nil, nil, "10m0s at most"},
		{"keep a machine for less than nothing", unitask.Keep{Time: -1}, nil, nil, "10m0s at most"},
	} {
		_, err := rt.RunFor(t.Context(), unitask.Caller{Ceiling: c.ceiling}, unitask.Request{Code: "1", Secrets: c.secrets}, unitask.IO{Keep: &c.keep})
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
