package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/debug"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

func (a *app) debugCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "debug",
		Short: "Look into a machine with QMP, gdb and scripts",
		Long: `Debug is for developers of guests, kernels, images and of unitask itself: a console
that speaks QMP by name, steps, reads registers and memory, keeps and restores the
machine; a socket for gdb; scripts for CI. Every run under it is in its record.`,
	}
	return group(cmd, a.debugRun(), a.debugAttach(), a.debugDump(), a.debugScript(), a.debugTrace())
}

// debugFlags are those of a run that is debugged.
type debugFlags struct {
	runFlags
	gdb, noJail, withSecrets bool
}

func (f *debugFlags) add(a *app, cmd *cobra.Command) {
	f.codeFlags(a, cmd)
	fl := cmd.Flags()
	fl.BoolVar(&f.gdb, "gdb", false, "open a socket for gdb, and print the command that joins it, with the kernel's symbols")
	fl.BoolVar(&f.noJail, "no-jail", false, "run QEMU without its jail")
	fl.BoolVar(&f.withSecrets, "with-secrets", false, "allow --secret: a debugger can read what the guest holds")
}

func (a *app) debugRun() *cobra.Command {
	var f debugFlags
	var recording string
	cmd := &cobra.Command{
		Use:   "run (FILE | --code STRING) [flags] [-- ARG...]",
		Short: "Boot a machine for a run, stopped, and open a console on it",
		Long: `Run boots a machine for the code with its processor stopped, and opens a console.
Type help there; Tab completes commands and arguments. The run goes on as always when
you say cont, with no time limit, and the machine ends with the console. A linux kernel
is booted with nokaslr: it is where its symbols are.`,
		Example: `  unitask debug run --kernel linux --code 'console.log(1)'
  unitask debug run --gdb --code-file ./crash.js`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.debugged(cmd, args, f, func(ctx context.Context, c *debug.Console) error {
				if recording != "" {
					if err := c.StartRecording(recording); err != nil {
						return usage(err)
					}
				}
				return a.converse(ctx, c)
			})
		},
	}
	f.add(a, cmd)
	cmd.Flags().StringVar(&recording, "record", "", "write what is typed into this new file, as a script for debug script")
	return cmd
}

func (a *app) debugScript() *cobra.Command {
	var f debugFlags
	var attach string
	var write, memory bool
	cmd := &cobra.Command{
		Use:   "script FILE (--code STRING | --code-file PATH | --attach ID) [flags] [-- ARG...]",
		Short: "Run a console's commands from a file",
		Long: `Script runs a file of console commands, one a line, on a machine that it boots as
debug run does, or on one that it joins (--attach). Each line's result is a line of JSON
on stdout. The first line that fails ends it with exit code 1.

Beside the console's commands: wait serial "TEXT" 10s, wait event NAME, wait stopped,
wait end, and assert EXPRESSION, a jq expression over the last result.`,
		Example: `  unitask debug script boot.txt --kernel linux --code 'console.log(1)'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(errors.New("which script? unitask debug script FILE"))
			}
			file, err := os.Open(args[0])
			if err != nil {
				return usage(err)
			}
			defer file.Close()
			drive := func(ctx context.Context, c *debug.Console) error { return a.script(ctx, c, file) }
			if attach != "" {
				return a.attached(cmd, attach, accessOf(write, memory), f.withSecrets, drive)
			}
			return a.debugged(cmd, args[1:], f, drive)
		},
	}
	f.add(a, cmd)
	fl := cmd.Flags()
	fl.StringVar(&attach, "attach", "", "join the machine of this run (ID, a unique prefix, or last)")
	fl.BoolVar(&memory, "memory-access", false, "with --attach: allow reading the guest's memory")
	fl.BoolVar(&write, "write", false, "with --attach: allow changing the machine")
	return cmd
}

func (a *app) debugTrace() *cobra.Command {
	var f runFlags
	var what unitask.Trace
	var events []string
	cmd := &cobra.Command{
		Use:   "trace (--code STRING | --code-file PATH) [--syscalls] [-d ITEM]... [--trace PATTERN]... [flags] [-- ARG...]",
		Short: "Run code, and write what its machine does into the record",
		Long: `Trace boots a machine for the code and runs it, as run does. What is asked for goes into
trace.log in the run's record while it runs: the code's system calls, items of
QEMU's log, events of QEMU. The network's decisions are in the record's netlog.jsonl.
Without any of the three flags it is the system calls. Those of the nanos kernel need a
release with klibs/strace, and an image of its own, which is built at the first trace.`,
		Example: `  unitask debug trace --kernel linux --code 'require("fs").readFileSync("/etc/passwd")'
  unitask debug trace -d int --trace 'virtio_blk_*' --code 1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, e := range events {
				what.QEMU = append(what.QEMU, "trace:"+e)
			}
			if len(what.QEMU) == 0 {
				what.Syscalls = true
			}
			req, codeOnStdin, err := a.request(cmd, args, f)
			if err != nil {
				return err
			}
			ceiling, err := findCeiling("", f.policy)
			if err != nil {
				return err
			}
			rt, err := a.openWith(unitask.Options{Ceiling: ceiling})
			if err != nil {
				return err
			}
			defer rt.Close()
			stdout, stderr := output(a.std.Stdout, false, false), output(a.std.Stderr, false, false)
			streams := unitask.IO{Stdout: stdout, Stderr: stderr}
			if !codeOnStdin && !isTerminal(a.std.Stdin) {
				streams.Stdin = a.std.Stdin
			}
			res, file, err := rt.Trace(cmd.Context(), unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling}, req, streams, what)
			err = errors.Join(err, stdout.Close(), stderr.Close())
			a.code = unitask.ExitCode(res, err)
			if st, e := os.Stat(file); e == nil {
				a.ui.note("trace: %s, %d bytes", file, st.Size())
			}
			if res != nil && err == nil {
				a.explain(res, rt)
			}
			return err
		},
	}
	f.codeFlags(a, cmd)
	fl := cmd.Flags()
	fl.BoolVar(&what.Syscalls, "syscalls", false, "the code's system calls")
	fl.StringArrayVarP(&what.QEMU, "qemu-log", "d", nil, "an item of QEMU's log, as its -d takes it: int, guest_errors, in_asm, …; repeatable")
	fl.StringArrayVar(&events, "trace", nil, "events of QEMU whose names are like this: virtio_blk_*; repeatable")
	fl.Int64Var(&what.Bytes, "trace-bytes", 0, "the most that is kept (default 16 MiB)")
	fl.BoolVar(&what.WithSecrets, "with-secrets", false, "allow --secret: a trace may show what the guest holds")
	return cmd
}

func (a *app) debugAttach() *cobra.Command {
	var write, memory, secrets bool
	cmd := &cobra.Command{
		Use:   "attach ID",
		Short: "Open a console on the machine of a run that runs now",
		Long: `Attach joins the machine of a run of yours that runs now, also one of the pool or of
an MCP server. It may only look (query-*, hmp info) unless --memory or --write says
more. Leaving it changes nothing, but for a machine that run --keep-on-crash keeps: quit
ends that one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.attached(cmd, args[0], accessOf(write, memory), secrets, a.converse)
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&memory, "memory", false, "allow reading the guest's memory")
	fl.BoolVar(&write, "write", false, "allow changing the machine")
	fl.BoolVar(&secrets, "with-secrets", false, "allow it even if the guest holds secrets, which can then be read")
	return cmd
}

func (a *app) debugDump() *cobra.Command {
	var out string
	var secrets bool
	cmd := &cobra.Command{
		Use:   "dump ID -o FILE",
		Short: "Write the memory of a machine that runs now as an ELF core",
		Args:  cobra.ExactArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			if out == "" {
				return usage(errors.New("-o FILE says where to"))
			}
			monitor, rec, err := rt.Attach(cmd.Context(), args[0], vmm.AccessMemory, secrets)
			if err != nil {
				return attachError(err)
			}
			defer monitor.Disconnect()
			n, err := dump(cmd.Context(), monitor, rec.Machine.MemoryMB, out)
			if err != nil {
				return err
			}
			a.ui.note("%s: %d bytes", out, n)
			return nil
		}),
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file, which must not exist")
	cmd.Flags().BoolVar(&secrets, "with-secrets", false, "allow it even if the guest holds secrets, which the file then contains")
	return cmd
}

// dump writes a machine's memory to a new file of mode 0600, or leaves none.
func dump(ctx context.Context, monitor *vmm.Monitor, memoryMB int, name string) (int64, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, usage(err)
	}
	n, err := unitask.Dump(ctx, monitor, memoryMB, file)
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil {
		_ = os.Remove(name)
	}
	return n, err
}

func accessOf(write, memory bool) vmm.Access {
	switch {
	case write:
		return vmm.AccessWrite
	case memory:
		return vmm.AccessMemory
	}
	return vmm.AccessRead
}

func attachError(err error) error {
	if errors.Is(err, record.ErrNotFound) {
		return usage(err)
	}
	return err
}

// attached has drive use a console on the machine of a run that runs.
func (a *app) attached(cmd *cobra.Command, id string, access vmm.Access, secrets bool, drive func(context.Context, *debug.Console) error) error {
	rt, err := a.open()
	if err != nil {
		return err
	}
	defer rt.Close()
	monitor, rec, err := rt.Attach(cmd.Context(), id, access, secrets)
	if err != nil {
		return attachError(err)
	}
	c := debug.New(debug.Config{
		Monitor: func() *vmm.Monitor { return monitor },
		Net: func(ctx context.Context) (any, error) {
			connections, err := unitask.Connections(ctx, monitor)
			if err != nil {
				return nil, err
			}
			return rt.NetworkView(rec.ID, connections)
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
		err = errors.Join(err, unitask.Release(cmd.Context(), monitor))
	}
	_ = monitor.Disconnect()
	c.Wait()
	return err
}

// debugged has drive use a console on a machine that is booted for it.
func (a *app) debugged(cmd *cobra.Command, args []string, f debugFlags, drive func(context.Context, *debug.Console) error) (err error) {
	req, codeOnStdin, err := a.request(cmd, args, f.runFlags)
	if err != nil {
		return err
	}
	if codeOnStdin {
		return usage(errors.New("the console reads standard input: give the code by --code or as a file"))
	}
	ceiling, err := findCeiling("", f.policy)
	if err != nil {
		return err
	}
	rt, err := a.openWith(unitask.Options{Ceiling: ceiling})
	if err != nil {
		return err
	}
	defer rt.Close()
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
	// The streams go to the console, which is made when the machine is there.
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
	type outcome struct {
		res *unitask.Result
		err error
	}
	done := make(chan outcome, 1)
	over := make(chan struct{})
	go func() {
		res, err := rt.Debug(ctx, unitask.Caller{Via: unitask.ViaCLI, Ceiling: ceiling}, req, streams, opts)
		done <- outcome{res, err}
		close(over)
	}()
	var d *machine.Debugger
	select {
	case d = <-started:
	case o := <-done:
		return asFlags(cmd, o.err)
	}
	m := d.Machine()
	symbols, err := debug.LoadSymbols(m.Spec.Image.Path(image.KernelFile))
	if err != nil {
		a.ui.note("addresses have no names: %v", err)
	}
	cfg := debug.Config{
		Monitor: m.Monitor, Snapshot: d.Snapshot, Restore: d.Restore, Symbols: symbols, GDB: gdb.dial,
		Net:    func(context.Context) (any, error) { return rt.NetworkView(id, m.Connections()) },
		Record: newRecording,
		Dump: func(ctx context.Context, file string) (int64, error) {
			return dump(ctx, m.Monitor(), m.Spec.MemoryMB, file)
		},
		Show: a.show(),
	}
	if f.gdb { // it is gdb's, then
		cfg.GDB = nil
		if err := gdb.write(m.Spec.Image, symbols); err != nil {
			cancel()
			<-over
			return err
		}
		name := "gdb"
		if m.Spec.Image.Arch != image.HostArch() {
			name = "gdb-multiarch"
		}
		a.ui.note("%s -x %s", name, gdb.init)
	}
	c := debug.New(cfg)
	feeds.to(c)
	var group sync.WaitGroup
	group.Go(func() {
		<-over
		o := <-done
		switch {
		case o.res != nil && o.err == nil:
			c.Ended(fmt.Sprintf("%s, exit code %d", o.res.Outcome, o.res.ExitCode))
		default:
			c.Ended(o.err.Error())
		}
	})
	if err = c.Open(ctx); err == nil {
		err = drive(ctx, c)
	}
	cancel()
	group.Wait()
	c.Wait()
	return err
}

// feeds pass streams on to a console, which comes later than they do.
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

// newRecording is a new file for a session's script.
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

// prompt is what a console's line begins with.
const prompt = "(unitask) "

// converse has a person type commands, until quit or the input's end.
func (a *app) converse(ctx context.Context, c *debug.Console) error {
	read, leave, err := a.lineReader(c)
	if err != nil {
		return err
	}
	defer leave()
	for ctx.Err() == nil {
		line, err := read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		result, err := c.Do(ctx, line)
		if errors.Is(err, debug.ErrQuit) {
			return nil
		}
		a.answer(result, err)
	}
	return ctx.Err()
}

// answer prints what a command gave.
func (a *app) answer(result any, err error) {
	text := ""
	switch r := result.(type) {
	case string:
		text = r
	case json.RawMessage:
		var pretty bytes.Buffer
		if json.Indent(&pretty, r, "", "  ") == nil && string(r) != "{}" {
			text = pretty.String()
		}
	}
	a.showing.Lock()
	defer a.showing.Unlock()
	if err != nil {
		fmt.Fprintln(a.console(), "error:", visibleLine(err.Error()))
	} else if text != "" {
		for line := range strings.Lines(text) {
			fmt.Fprintln(a.console(), visibleLine(strings.TrimRight(line, "\n")))
		}
	}
}

// console is where the console's text goes: the terminal's line editor while there is
// one.
func (a *app) console() io.Writer {
	if a.editor != nil {
		return a.editor
	}
	return a.std.Stdout
}

// show prints what happens beside the commands. In a script, whose stdout is JSON, it goes
// to stderr.
func (a *app) show() func(source, text string) {
	return func(source, text string) {
		a.showing.Lock()
		defer a.showing.Unlock()
		var w io.Writer = a.std.Stderr
		if a.editor != nil {
			w = a.editor
		}
		fmt.Fprintf(w, "%s| %s\n", source, visibleLine(text))
	}
}

// lineReader reads lines: with an editor, completion and history on a terminal, plainly
// elsewhere.
func (a *app) lineReader(c *debug.Console) (read func() (string, error), leave func(), err error) {
	in, ok := a.std.Stdin.(*os.File)
	if !ok || !isTerminal(in) || !isTerminal(a.std.Stdout) {
		lines := bufio.NewScanner(a.std.Stdin)
		return func() (string, error) {
			if lines.Scan() {
				return lines.Text(), nil
			}
			if lines.Err() != nil {
				return "", lines.Err()
			}
			return "", io.EOF
		}, func() {}, nil
	}
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, nil, err
	}
	home, err := a.homeFolder()
	if err != nil {
		return nil, nil, err
	}
	history := openHistory(filepath.Join(home, "debug_history"))
	editor := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{in, a.std.Stdout}, prompt)
	editor.History = history
	if width, height, err := term.GetSize(int(in.Fd())); err == nil && width > 0 {
		_ = editor.SetSize(width, height)
	}
	editor.AutoCompleteCallback = func(line string, pos int, key rune) (string, int, bool) {
		if key != '\t' {
			return "", 0, false
		}
		completed, others := complete(c, line[:pos])
		if len(others) > 1 && completed == line[:pos] {
			go fmt.Fprintln(editor, strings.Join(others, "  ")) // it is locked now
		}
		return completed + line[pos:], len(completed), true
	}
	a.showing.Lock()
	a.editor = editor
	a.showing.Unlock()
	return editor.ReadLine, func() {
		a.showing.Lock()
		a.editor = nil
		a.showing.Unlock()
		_ = term.Restore(int(in.Fd()), old)
		history.close()
	}, nil
}

// complete extends a line as far as all candidates agree.
func complete(c *debug.Console, line string) (string, []string) {
	candidates := c.Complete(line)
	if len(candidates) == 0 {
		return line, nil
	}
	common := candidates[0]
	for _, other := range candidates[1:] {
		for !strings.HasPrefix(other, common) {
			common = common[:len(common)-1]
		}
	}
	begin := line[:strings.LastIndexAny(line, " ")+1]
	if len(candidates) == 1 && !strings.HasSuffix(common, "=") {
		common += " "
	}
	if len(common) < len(line)-len(begin) {
		return line, candidates
	}
	return begin + common, candidates
}

// history keeps a console's lines in a file.
type history struct {
	lines []string // the oldest first
	file  *os.File
}

// maxHistory bounds what is kept.
const maxHistory = 1000

func openHistory(name string) *history {
	h := &history{}
	if text, err := os.ReadFile(name); err == nil && len(text) < 1<<20 {
		for line := range strings.Lines(string(text)) {
			h.lines = append(h.lines, strings.TrimRight(line, "\n"))
		}
		if len(h.lines) > maxHistory {
			h.lines = h.lines[len(h.lines)-maxHistory:]
		}
	}
	h.file, _ = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // without it, none is kept
	for _, line := range h.lines {
		h.write(line)
	}
	return h
}

func (h *history) write(line string) {
	if h.file != nil {
		fmt.Fprintln(h.file, line)
	}
}

// Add, Len and At are term.History's.
func (h *history) Add(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	h.lines = append(h.lines, line)
	h.write(line)
}

func (h *history) Len() int { return len(h.lines) }

func (h *history) At(i int) string { return h.lines[len(h.lines)-1-i] }

func (h *history) close() {
	if h.file != nil {
		h.file.Close()
	}
}

// gdbSocket is a socket that gdb joins a machine by, in a folder of its user's only.
type gdbSocket struct {
	dir, path, init string
	listener        *os.File
}

func newGDBSocket() (_ *gdbSocket, err error) {
	dir, err := os.MkdirTemp(os.Getenv("XDG_RUNTIME_DIR"), "unitask-gdb-")
	if err != nil {
		return nil, err
	}
	s := &gdbSocket{dir: dir, path: filepath.Join(dir, "gdb.sock"), init: filepath.Join(dir, "gdbinit")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err == nil {
		l.SetUnlinkOnClose(false)
		err = os.Chmod(s.path, 0o600)
		if err == nil {
			s.listener, err = l.File()
		}
		l.Close()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// dial is for the console's own stepping, where no gdb is to join.
func (s *gdbSocket) dial() (net.Conn, error) { return net.Dial("unix", s.path) }

// write writes the gdbinit for an image's kernel, and its symbols where no ELF file has
// them.
func (s *gdbSocket) write(im *image.Image, symbols *debug.Symbols) error {
	var text strings.Builder
	name := map[image.Arch]string{image.AMD64: "i386:x86-64", image.ARM64: "aarch64"}[im.Arch]
	fmt.Fprintf(&text, "set architecture %s\nset confirm off\n", name)
	switch {
	case symbols.Empty():
		fmt.Fprintf(&text, "# %s has no symbols.\n", im.Path(image.KernelFile))
	case symbols.File != "":
		fmt.Fprintf(&text, "file %s\n", symbols.File)
	default:
		file := filepath.Join(s.dir, "symbols")
		if err := symbols.WriteFile(file); err != nil {
			return err
		}
		fmt.Fprintf(&text, "# The names and addresses that the kernel has of itself. Debian's package of its version that\n"+
			"# ends in -dbg has lines and types too; it is used once it is installed.\nfile %s\n", file)
	}
	moves := map[image.Kernel]string{
		image.Linux: "The kernel has nokaslr on its command line: it is where its symbols are.",
		image.Nanos: "The kernel is where its symbols are until it has moved itself, soon after init_mmu.",
	}
	fmt.Fprintf(&text, "# %s\n", moves[im.Kernel])
	fmt.Fprintf(&text, "# The processor's breakpoints (hbreak) need no page to be mapped yet.\ntarget remote %s\n", s.path)
	return os.WriteFile(s.init, []byte(text.String()), 0o600)
}

func (s *gdbSocket) close() {
	if s.listener != nil {
		s.listener.Close()
	}
	_ = os.RemoveAll(s.dir)
}
