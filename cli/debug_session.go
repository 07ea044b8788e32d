package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/debug"
	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

// attached calls drive with a console on the machine of a current run.
func (a *app) attached(cmd *cobra.Command, id string, access vmm.Access, secrets bool,
	drive func(context.Context, *debug.Console) error) error {
	rt, err := a.open()
	if err != nil {
		return err
	}
	defer rt.Close()
	monitor, rec, err := rt.Consoles().Join(cmd.Context(), id, access, secrets)
	if err != nil {
		return attachError(err)
	}
	c := debug.New(debug.Config{
		Monitor: func() *vmm.Monitor { return monitor },
		Net: func(ctx context.Context) (any, error) {
			connections, err := attach.Connections(ctx, monitor)
			if err != nil {
				return nil, err
			}
			return rt.Consoles().NetworkView(rec.ID, connections)
		},
		Record: newRecording,
		Dump: func(ctx context.Context, file string) (int64, error) {
			return dump(ctx, monitor, rec.Machine.MemoryMB, file)
		},
		Show: a.show(),
	})
	err = c.Open(cmd.Context())
	if err == nil {
		err = drive(cmd.Context(), c)
	}
	if rec.Machine != nil && rec.Machine.KeptUntil != nil && c.Quit() {
		err = errors.Join(err, attach.Release(cmd.Context(), monitor))
	}
	_ = monitor.Disconnect()
	c.Wait()
	return err
}

// inspected returns the request of a run to inspect, with its ceiling and a runtime that boots its machine.
func (a *app) inspected(cmd *cobra.Command, args []string, f runFlags) (rt *unitask.Runtime, req unitask.Request,
	ceiling *policy.Ceiling, codeOnStdin bool, err error) {
	if req, codeOnStdin, err = a.request(cmd, args, f); err == nil {
		ceiling, err = a.findCeiling(f.policy)
	}
	if err == nil {
		rt, err = a.openWith(unitask.Options{Ceiling: ceiling})
	}
	return rt, req, ceiling, codeOnStdin, err
}

// debugged calls drive with a console on a machine that is booted for it.
func (a *app) debugged(cmd *cobra.Command, args []string, f debugFlags,
	drive func(context.Context, *debug.Console) error) (err error) {
	rt, req, ceiling, codeOnStdin, err := a.inspected(cmd, args, f.runFlags)
	if err != nil {
		return err
	}
	defer rt.Close()
	if codeOnStdin {
		return usage(errors.New("the console reads standard input: give the code by --code or as a file"))
	}
	opts := unitask.DebugOptions{NoJail: f.noJail, WithSecrets: f.withSecrets}
	gdb, err := newGDBSocket()
	if err != nil {
		return err
	}
	defer gdb.close()
	opts.GDB = gdb.listener
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	started := make(chan *machine.Debugger, 1)
	opts.Started = func(d *machine.Debugger) { started <- d }
	// The streams are sent to the console, which is created when the machine exists.
	var feeds feeds
	opts.Serial = feeds.writer("serial")
	streams := unitask.IO{Stdout: feeds.writer("stdout"), Stderr: feeds.writer("stderr")}
	var id string
	streams.Events = func(e unitask.Event) {
		if e.Kind == unitask.EventRecord {
			id = e.RunID
			a.ui.note("run %s", id)
		}
	}
	done := make(chan debugOutcome, 1)
	over := make(chan struct{})
	go func() {
		res, err := rt.Debug(ctx, unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling}, req, streams, opts)
		done <- debugOutcome{res, err}
		close(over)
	}()
	var d *machine.Debugger
	select {
	case d = <-started:
	case o := <-done:
		return asFlags(cmd, o.err)
	}
	m := d.Machine()
	symbols := a.loadSymbols(m.Spec.Image)
	cfg := debug.Config{
		Monitor: m.Monitor, Snapshot: d.Snapshot, Restore: d.Restore, Symbols: symbols, GDB: gdb.dial,
		Net:    func(context.Context) (any, error) { return rt.Consoles().NetworkView(id, m.Connections()) },
		Record: newRecording,
		Dump: func(ctx context.Context, file string) (int64, error) {
			return dump(ctx, m.Monitor(), m.Spec.MemoryMB, file)
		},
		Show: a.show(),
	}
	if f.gdb { // gdb then uses it
		cfg.GDB = nil
		if err := a.introduceGDB(gdb, m.Spec.Image, symbols); err != nil {
			cancel()
			<-over
			return err
		}
	}
	c := debug.New(cfg)
	feeds.to(c)
	var group sync.WaitGroup
	group.Go(func() {
		<-over
		o := <-done
		c.Ended(o.String())
	})
	if err = c.Open(ctx); err == nil {
		err = drive(ctx, c)
	}
	cancel()
	group.Wait()
	c.Wait()
	return err
}

// loadSymbols reads the symbols of an image's kernel, and reports if there are none.
func (a *app) loadSymbols(im *image.Image) *debug.Symbols {
	symbols, err := debug.LoadSymbols(im.Path(image.KernelFile))
	if err != nil {
		a.ui.note("addresses have no names: %v", err)
	}
	return symbols
}

// introduceGDB writes gdb's commands for the machine, and prints how to start gdb.
func (a *app) introduceGDB(gdb *gdbSocket, im *image.Image, symbols *debug.Symbols) error {
	if err := gdb.write(im, symbols); err != nil {
		return err
	}
	name := "gdb"
	if im.Arch != image.HostArch() {
		name = "gdb-multiarch"
	}
	a.ui.note("%s -x %s", name, gdb.init)
	return nil
}

// debugOutcome describes how a debugged run ended.
type debugOutcome struct {
	res *unitask.Result
	err error
}

func (o debugOutcome) String() string {
	if o.res != nil && o.err == nil {
		return fmt.Sprintf("%s, exit code %d", o.res.Outcome, o.res.ExitCode)
	}
	return o.err.Error()
}

// feeds pass streams on to a console that is created later.
type feeds struct {
	mu      sync.Mutex
	console *debug.Console
	early   []func(*debug.Console)
}

func (f *feeds) writer(source string) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		text := bytes.Clone(p)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.console == nil {
			f.early = append(f.early, func(c *debug.Console) { c.Feed(source, text) })
		} else {
			f.console.Feed(source, text)
		}
		return len(p), nil
	})
}

func (f *feeds) to(c *debug.Console) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.console = c
	for _, feed := range f.early {
		feed(c)
	}
	f.early = nil
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

// newRecording returns a new file for a session's script.
func newRecording(name string) (io.WriteCloser, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// script runs a file's commands; each result is a line of JSON.
func (a *app) script(ctx context.Context, c *debug.Console, file io.Reader) error {
	lines := json.NewEncoder(a.std.Stdout)
	lines.SetEscapeHTML(false)
	err := c.Script(ctx, file, func(l debug.Line) { _ = lines.Encode(l) })
	if errors.Is(err, debug.ErrScript) {
		a.code = 1
	}
	return err
}
