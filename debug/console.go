// Package debug provides a console for a machine: QMP commands by name, commands for developers of guests, and waits
// and assertions for scripts. Its caller gives it a monitor; it starts nothing.
package debug

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/unitask/unitask/vmm"
)

// Config connects a console to its machine. If a field is nil, the machine lacks that feature.
type Config struct {
	// Monitor returns the machine's current monitor: a restore replaces it.
	Monitor func() *vmm.Monitor
	// GDB dials the machine's gdb stub.
	GDB func() (net.Conn, error)
	// Snapshot and Restore save and restore the machine, by name.
	Snapshot, Restore func(ctx context.Context, name string) error
	// Net returns the network's rules and activity, as a value for JSON.
	Net func(ctx context.Context) (any, error)
	// Record makes a new file for a session's script.
	Record func(file string) (io.WriteCloser, error)
	// Dump writes the machine's memory to a file.
	Dump func(ctx context.Context, file string) (int64, error)
	// Symbols are the kernel's; nil if there are none.
	Symbols *Symbols
	// Show receives QEMU's events and lines of the streams. Several goroutines call it, one at a time.
	Show func(source, text string)
}

// Console runs commands. One goroutine at a time may use it; any goroutine may call Feed.
type Console struct {
	Config
	schema *Schema
	stub   *stub
	breaks []uint64 // breakpoints that are set

	mu      sync.Mutex
	streams map[string]*watched
	events  []string // names of events that no wait has consumed
	changed chan struct{}
	watched *vmm.Monitor // the monitor whose events are read
	gone    bool         // QEMU is gone
	ended   string       // how the run ended, "" while it continues
	quit    bool         // ErrQuit was returned
	script  *recording   // nil without a recording
	group   sync.WaitGroup
}

// watched is a stream's text that no wait has consumed yet.
type watched struct {
	text string
	line string // an incomplete line, not shown yet
}

// Limits of what is kept for a wait, and of a command.
const (
	maxWatched = 1 << 20 // bytes of the serial output that a wait keeps
	maxEvents  = 1024    // names of QEMU's events that a wait keeps
	// Limits for events from QEMU, which may be hostile: events shown a second, and bytes of each.
	shownEvents  = 50
	maxEventName = 80               // bytes of its name
	maxEventText = 4 << 10          // and of its data
	maxMemory    = 64 << 10         // bytes of one mem
	maxFrames    = 64               // of a backtrace
	maxStack     = 1024             // bytes of a stack that are searched for return addresses
	patience     = 30 * time.Second // for QEMU's reply
)

// ErrQuit means that the console should close.
var ErrQuit = errors.New("quit")

// New returns a console.
func New(cfg Config) *Console {
	if cfg.Show == nil {
		cfg.Show = func(string, string) {}
	}
	return &Console{Config: cfg, streams: map[string]*watched{}, changed: make(chan struct{})}
}

// Open connects, reads the schema, and starts to read events.
func (c *Console) Open(ctx context.Context) error {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.Monitor().ConnectContext(timed); err != nil {
		return err
	}
	var err error
	if c.schema, err = LoadSchema(timed, c.Monitor()); err != nil {
		return err
	}
	return c.watch(ctx)
}

// watch reads the events of the machine's monitor until the monitor ends.
func (c *Console) watch(ctx context.Context) error {
	m := c.Monitor()
	if c.watched == m {
		return nil
	}
	events, err := m.Events(ctx)
	if err != nil {
		return err
	}
	c.watched = m
	c.group.Go(func() {
		shown, more := rate.NewLimiter(shownEvents, shownEvents), 0
		for e := range events {
			data, _ := json.Marshal(e.Data)
			c.note(func() {
				name := clip(e.Event, maxEventName)
				if c.events = append(c.events, name); len(c.events) > maxEvents {
					c.events = c.events[1:]
				}
				if !shown.Allow() {
					more++
					return
				}
				if more > 0 {
					c.Show("event", fmt.Sprintf("(%d more, too fast to be shown)", more))
					more = 0
				}
				c.Show("event", name+" "+clip(string(data), maxEventText))
			})
		}
		if m == c.Monitor() {
			c.note(func() {
				c.gone = true
				c.Show("event", "QEMU is gone")
			})
		}
	})
	return nil
}

// note changes the state that waits check, and wakes them.
func (c *Console) note(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Feed receives output of a stream of the machine: "serial", "stdout" or "stderr".
func (c *Console) Feed(source string, text []byte) {
	c.note(func() {
		w := c.streams[source]
		if w == nil {
			w = &watched{}
			c.streams[source] = w
		}
		w.text += string(text)
		if over := len(w.text) - maxWatched; over > 0 {
			w.text = w.text[over:]
		}
		w.line += string(text)
		for {
			line, rest, whole := strings.Cut(w.line, "\n")
			if !whole && len(w.line) < 4096 {
				break
			}
			w.line = rest
			c.Show(source, strings.TrimRight(line, "\r"))
		}
	})
}

// Ended receives how the run ended.
func (c *Console) Ended(how string) {
	c.note(func() {
		c.ended = how
		c.Show("run", how)
	})
}

// Wait waits for the goroutines of New and Open; the monitor must have ended.
func (c *Console) Wait() {
	c.forget()
	c.stopRecording()
	c.group.Wait()
}

// Quit reports whether quit closed the console, not the end of its input.
func (c *Console) Quit() bool { return c.quit }

// Complete returns completions of the line's last word.
func (c *Console) Complete(line string) []string { return c.schema.Complete(line) }

// verb is one of the console's own commands.
type verb struct {
	name, args, help string
	run              func(c *Console, ctx context.Context, args []string) (any, error)
}

func verbNames() (list []string) {
	for _, v := range verbTable() {
		list = append(list, v.name)
	}
	return list
}

// verbTable returns all verbs, in the order of help.
func verbTable() []verb {
	return []verb{
		{"help", "[COMMAND]", "this list, or what a QMP command takes", (*Console).help},
		{"cont", "", "let the machine run", qmp("cont")},
		{"stop", "", "stop its processor", qmp("stop")},
		{"step", "[N]", "run N instructions (1)", (*Console).step},
		{"break", "ADDRESS", "stop when the processor gets there", (*Console).breakAt},
		{"delete", "ADDRESS", "take the breakpoint away", (*Console).deleteAt},
		{"regs", "", "the processor's registers", hmp("info registers")},
		{"mem", "ADDRESS LENGTH", "the guest's memory, as its kernel sees it now", (*Console).mem},
		{"bt", "", "where the processor is, and what called it", (*Console).backtrace},
		{"devices", "", "the machine's devices", hmp("info qtree")},
		{"net", "", "the network's rules, open connections and last decisions", (*Console).network},
		{"snapshot", "NAME", "stop the machine and keep what it is", (*Console).snapshot},
		{"restore", "NAME", "make it again what it was then, stopped", (*Console).restore},
		{"dump", "FILE", "write the guest's memory as an ELF core", (*Console).dump},
		{"hmp", "TEXT", "a command of QEMU's human monitor", (*Console).hmp},
		{"wait", "serial|stdout|stderr TEXT [TIME] | event NAME [TIME] | stopped [TIME] | end [TIME]", "until it comes (10s)",
			(*Console).wait},
		{"record", "[FILE]", "write what is typed from now on into a new file, as a script; without FILE, no more",
			(*Console).record},
		{"quit", "", "leave; a machine that this console started, or that is kept after a crash, ends", (*Console).leave},
	}
}

func (c *Console) leave(context.Context, []string) (any, error) {
	c.quit = true
	return nil, ErrQuit
}

// Do runs one line and returns its result: a string for people, or QMP's result.
func (c *Console) Do(ctx context.Context, line string) (any, error) {
	if c.script == nil {
		return c.do(ctx, line)
	}
	return c.recorded(ctx, line)
}

func (c *Console) do(ctx context.Context, line string) (any, error) {
	line = strings.TrimSpace(line)
	if line == "" {
		return nil, nil
	}
	if strings.HasPrefix(line, "{") {
		return c.raw(ctx, line)
	}
	words, err := split(line)
	if err != nil {
		return nil, err
	}
	for _, v := range verbTable() {
		if v.name == words[0] {
			return v.run(c, ctx, words[1:])
		}
	}
	name := strings.ReplaceAll(words[0], "_", "-")
	if !c.schema.Has(name) {
		if near := c.schema.Nearest(name); len(near) > 0 {
			return nil, fmt.Errorf("no command %q; did you mean %s?", words[0], strings.Join(near, ", "))
		}
		return nil, fmt.Errorf("no command %q: `help` lists the verbs, and %d QMP commands complete with Tab", words[0],
			len(c.schema.commands))
	}
	args, err := c.schema.Arguments(name, words[1:])
	if len(words) == 2 && strings.HasPrefix(words[1], "{") {
		args = nil
		if err = json.Unmarshal([]byte(words[1]), &args); err != nil {
			err = fmt.Errorf("%s: %w; the command is: %s", words[1], err, c.schema.Usage(name))
		}
	}
	if err != nil {
		return nil, err
	}
	return c.command(ctx, name, args)
}

// split splits a line into words; double quotes hold one together, JSON needs none.
func split(line string) (words []string, err error) {
	for line = strings.TrimSpace(line); line != ""; line = strings.TrimSpace(line) {
		switch {
		case line[0] == '"':
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, fmt.Errorf("%.40q: a quote is not closed", line)
			}
			text, _ := strconv.Unquote(quoted)
			words, line = append(words, text), line[len(quoted):]
		case line[0] == '{' || strings.Contains(firstWord(line), "={") || strings.Contains(firstWord(line), "=["):
			return append(words, line), nil // to the line's end
		default:
			word := firstWord(line)
			words, line = append(words, word), line[len(word):]
		}
	}
	return words, nil
}

func firstWord(s string) string {
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		return s[:i]
	}
	return s
}

func (c *Console) command(ctx context.Context, name string, args map[string]any) (any, error) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var result json.RawMessage
	var arguments any
	if len(args) > 0 {
		arguments = args
	}
	if err := c.Monitor().Do(timed, name, arguments, &result); err != nil {
		return nil, err
	}
	return result, nil
}

func (c *Console) raw(ctx context.Context, line string) (any, error) {
	var cmd struct {
		Execute   string         `json:"execute"`
		Arguments map[string]any `json:"arguments"`
	}
	if err := json.Unmarshal([]byte(line), &cmd); err != nil || cmd.Execute == "" {
		return nil, errors.New(`not a QMP command: {"execute": NAME, "arguments": {…}}`)
	}
	return c.command(ctx, cmd.Execute, cmd.Arguments)
}

func qmp(name string) func(*Console, context.Context, []string) (any, error) {
	return func(c *Console, ctx context.Context, args []string) (any, error) {
		if len(args) > 0 {
			return nil, fmt.Errorf("%s takes no argument", name)
		}
		_, err := c.command(ctx, name, nil)
		return "", err
	}
}

func hmp(text string) func(*Console, context.Context, []string) (any, error) {
	return func(c *Console, ctx context.Context, _ []string) (any, error) { return c.human(ctx, text) }
}

func (c *Console) hmp(ctx context.Context, args []string) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("hmp TEXT: hmp info block")
	}
	return c.human(ctx, strings.Join(args, " "))
}

// human runs a command of QEMU's human monitor.
func (c *Console) human(ctx context.Context, text string) (string, error) {
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var said string
	err := c.Monitor().Do(timed, "human-monitor-command", map[string]any{"command-line": text}, &said)
	return strings.TrimRight(strings.ReplaceAll(said, "\r", ""), "\n"), err
}

func (c *Console) help(_ context.Context, args []string) (any, error) {
	if len(args) > 0 {
		name := strings.ReplaceAll(args[0], "_", "-")
		for _, v := range verbTable() {
			if v.name == name {
				return strings.TrimSpace(v.name+" "+v.args) + ": " + v.help, nil
			}
		}
		if !c.schema.Has(name) {
			return nil, fmt.Errorf("no command %q", args[0])
		}
		return c.schema.Usage(name), nil
	}
	var out strings.Builder
	for _, v := range verbTable() {
		fmt.Fprintf(&out, "%-32s %s\n", strings.TrimSpace(v.name+" "+clip(v.args, 24)), v.help)
	}
	fmt.Fprintf(&out, "Besides, %d QMP commands by name, with KEY=VALUE arguments; raw QMP as {\"execute\": …}.",
		len(c.schema.commands))
	return out.String(), nil
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n-1] + "…"
	}
	return s
}

// remote returns the gdb stub of a stopped machine: connecting to the stub stops a machine.
func (c *Console) remote(ctx context.Context) (*stub, error) {
	if c.GDB == nil {
		return nil,
			errors.New("the gdb stub is not this console's: a real gdb has it, or the machine was joined and not started here")
	}
	if err := c.stopped(ctx); err != nil {
		return nil, err
	}
	if c.stub == nil {
		conn, err := c.GDB()
		if err != nil {
			return nil, err
		}
		c.stub = newStub(conn)
	}
	return c.stub, nil
}

// forget closes the connection to the gdb stub.
func (c *Console) forget() {
	if c.stub != nil {
		c.stub.conn.Close()
		c.stub = nil
	}
}

func (c *Console) network(ctx context.Context, _ []string) (any, error) {
	if c.Net == nil {
		return nil, errors.New("this machine's network is not known here")
	}
	view, err := c.Net(ctx)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(view)
	return json.RawMessage(text), err
}

func (c *Console) snapshot(ctx context.Context, args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("snapshot NAME")
	}
	if c.Snapshot == nil {
		return nil, errors.New("only the console that started a machine can take snapshots of it")
	}
	return "", c.Snapshot(ctx, args[0])
}

func (c *Console) restore(ctx context.Context, args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("restore NAME")
	}
	if c.Restore == nil {
		return nil, errors.New("only the console that started a machine can restore it")
	}
	c.forget()
	if err := c.Restore(ctx, args[0]); err != nil {
		return nil, err
	}
	if err := c.watch(ctx); err != nil || len(c.breaks) == 0 {
		return "", err
	}
	s, err := c.remote(ctx) // a new QEMU, which has no breakpoints
	for _, at := range c.breaks {
		if err == nil {
			err = s.breakpoint(ctx, true, at)
		}
	}
	return "", err
}

func (c *Console) dump(ctx context.Context, args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("dump FILE")
	}
	if c.Dump == nil {
		return nil, errors.New("this machine's memory can't be dumped here")
	}
	n, err := c.Dump(ctx, args[0])
	if err != nil {
		return nil, err
	}
	return fmt.Sprintf("%s: %d bytes", args[0], n), nil
}
