// Package debug is a console on a machine: QMP commands by name, verbs for what a
// developer of guests does, waits and assertions for scripts. It works on a monitor that
// it is given, and starts nothing.
package debug

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/unitask/unitask/vmm"
)

// Config is what a console works on. Where a field is nil the machine can't do that.
type Config struct {
	// Monitor is the machine's, of now: a restore replaces it.
	Monitor func() *vmm.Monitor
	// GDB dials the machine's gdb stub.
	GDB func() (net.Conn, error)
	// Snapshot and Restore keep the machine and bring it back, by name.
	Snapshot, Restore func(ctx context.Context, name string) error
	// Net says what the machine's network may do and does, as a value for JSON.
	Net func(ctx context.Context) (any, error)
	// Record makes a new file for a session's script.
	Record func(file string) (io.WriteCloser, error)
	// Dump writes the machine's memory to a file.
	Dump func(ctx context.Context, file string) (int64, error)
	// Symbols are the kernel's; nil where it has none.
	Symbols *Symbols
	// Show receives what happens: events of QEMU and lines of the streams. It is called
	// from several goroutines, one at a time.
	Show func(source, text string)
}

// Console runs commands. One goroutine at a time may use it; Feed is for any.
type Console struct {
	Config
	schema *Schema
	stub   *stub
	breaks []uint64 // breakpoints that are set

	mu      sync.Mutex
	streams map[string]*watched
	events  []string // names of those that came and were not waited for
	changed chan struct{}
	watched *vmm.Monitor // whose events are read
	gone    bool         // QEMU is
	ended   string       // how the run ended, "" while it goes on
	quit    bool         // ErrQuit was returned
	script  *recording   // nil where none is made
	group   sync.WaitGroup
}

// watched is a stream's text that no wait has passed yet.
type watched struct {
	text string
	line string // the beginning of a line, not shown yet
}

// Bounds of what is kept for a wait, and of a command.
const (
	maxWatched = 1 << 20
	maxEvents  = 1024
	// Of events that QEMU, which may be hostile, sends: so many are shown a second, and so
	// many bytes of each.
	shownEvents  = 50
	maxEventName = 80
	maxEventText = 4 << 10
	maxMemory    = 64 << 10 // bytes of one mem
	maxFrames    = 64
	maxStack     = 1024             // bytes of a stack that return addresses are looked for in
	patience     = 30 * time.Second // for a reply of QEMU's
)

// ErrQuit says that the console is to be left.
var ErrQuit = errors.New("quit")

// New returns a console.
func New(cfg Config) *Console {
	if cfg.Show == nil {
		cfg.Show = func(string, string) {}
	}
	return &Console{Config: cfg, streams: map[string]*watched{}, changed: make(chan struct{})}
}

// Open connects, reads the schema, and has the events come.
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

// watch reads the events of the machine's monitor, until that ends.
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

// note changes what waits look at, and wakes them.
func (c *Console) note(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	close(c.changed)
	c.changed = make(chan struct{})
}

// Feed takes what a stream of the machine says: "serial", "stdout" or "stderr".
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

// Ended takes how the run ended.
func (c *Console) Ended(how string) {
	c.note(func() {
		c.ended = how
		c.Show("run", how)
	})
}

// Wait waits for what New's and Open's goroutines do; the monitor must have ended.
func (c *Console) Wait() {
	c.forget()
	c.stopRecording()
	c.group.Wait()
}

// Quit says that the console was left by quit, and not by the end of its input.
func (c *Console) Quit() bool { return c.quit }

// Complete returns what the line's last word may become.
func (c *Console) Complete(line string) []string { return c.schema.Complete(line) }

// verb is a command of the console's own.
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

// verbTable is every verb, in the order of help.
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
		{"wait", "serial|stdout|stderr TEXT [TIME] | event NAME [TIME] | stopped [TIME] | end [TIME]", "until it comes (10s)", (*Console).wait},
		{"record", "[FILE]", "write what is typed from now on into a new file, as a script; without FILE, no more", (*Console).record},
		{"quit", "", "leave; a machine that this console started, or that is kept after a crash, ends", (*Console).leave},
	}
}

func (c *Console) leave(context.Context, []string) (any, error) {
	c.quit = true
	return nil, ErrQuit
}

// Do runs one line and returns its result: a string for people, or what QMP returned.
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
		return nil, fmt.Errorf("no command %q: `help` lists the verbs, and %d QMP commands complete with Tab", words[0], len(c.schema.commands))
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

// split cuts a line into words; double quotes hold one together, JSON needs none.
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
	fmt.Fprintf(&out, "Besides, %d QMP commands by name, with KEY=VALUE arguments; raw QMP as {\"execute\": …}.", len(c.schema.commands))
	return out.String(), nil
}

func clip(s string, n int) string {
	if len(s) > n {
		return s[:n-1] + "…"
	}
	return s
}

// remote returns the gdb stub of a machine that is stopped: dialling it stops one.
func (c *Console) remote(ctx context.Context) (*stub, error) {
	if c.GDB == nil {
		return nil, errors.New("the gdb stub is not this console's: a real gdb has it, or the machine was joined and not started here")
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

// forget lets go of the gdb stub.
func (c *Console) forget() {
	if c.stub != nil {
		c.stub.conn.Close()
		c.stub = nil
	}
}

// maxSteps bounds one step.
const maxSteps = 100_000

func (c *Console) step(ctx context.Context, args []string) (any, error) {
	n := 1
	if len(args) > 0 {
		var err error
		if n, err = strconv.Atoi(args[0]); err != nil || n < 1 || n > maxSteps {
			return nil, fmt.Errorf("step %s: a number of instructions from 1 to %d", args[0], maxSteps)
		}
	}
	s, err := c.remote(ctx)
	if err != nil {
		return nil, err
	}
	for range n {
		if err := s.step(ctx); err != nil {
			return nil, err
		}
	}
	return c.where(ctx)
}

// stopped is an error where the machine runs.
func (c *Console) stopped(ctx context.Context) error {
	running, err := c.running(ctx)
	if err == nil && running {
		err = errors.New("the machine runs: `stop` it first")
	}
	return err
}

func (c *Console) running(ctx context.Context) (bool, error) {
	var status struct {
		Running bool `json:"running"`
	}
	timed, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := c.Monitor().Do(timed, "query-status", nil, &status)
	return status.Running, err
}

func (c *Console) breakAt(ctx context.Context, args []string) (any, error) {
	return c.breakpoint(ctx, true, args)
}

func (c *Console) deleteAt(ctx context.Context, args []string) (any, error) {
	return c.breakpoint(ctx, false, args)
}

func (c *Console) breakpoint(ctx context.Context, set bool, args []string) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("which ADDRESS?")
	}
	at, err := c.Symbols.Address(args[0])
	if err != nil {
		return nil, err
	}
	s, err := c.remote(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.breakpoint(ctx, set, at); err != nil {
		return nil, err
	}
	if set {
		c.breaks = append(c.breaks, at)
	} else {
		c.breaks = slices.DeleteFunc(c.breaks, func(b uint64) bool { return b == at })
	}
	return c.name(at), nil
}

// name is an address with its symbol.
func (c *Console) name(at uint64) string {
	if symbol := c.Symbols.At(at); symbol != "" {
		return fmt.Sprintf("%#x %s", at, symbol)
	}
	return fmt.Sprintf("%#x", at)
}

func (c *Console) mem(ctx context.Context, args []string) (any, error) {
	if len(args) != 2 {
		return nil, errors.New("mem ADDRESS LENGTH: mem 0x200000 64")
	}
	at, err := c.Symbols.Address(args[0])
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(args[1], 0, 32)
	if err != nil || n == 0 || n > maxMemory {
		return nil, fmt.Errorf("mem %s %s: a length from 1 to %d", args[0], args[1], maxMemory)
	}
	data, err := c.read(ctx, at, int(n))
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	for i := 0; i < len(data); i += 16 {
		row := data[i:min(i+16, len(data))]
		text := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return '.'
			}
			return r
		}, string(latin1(row)))
		fmt.Fprintf(&out, "%016x  %-47s  %s\n", at+uint64(i), spaced(row), text)
	}
	return strings.TrimRight(out.String(), "\n"), nil
}

func latin1(p []byte) []rune {
	r := make([]rune, len(p))
	for i, b := range p {
		r[i] = rune(b)
	}
	return r
}

func spaced(p []byte) string {
	var parts []string
	for _, b := range p {
		parts = append(parts, hex.EncodeToString([]byte{b}))
	}
	return strings.Join(parts, " ")
}

var memoryLine = regexp.MustCompile(`^[0-9a-f]+:((?: 0x[0-9a-f]{2})+)$`)

// read reads the guest's virtual memory, by the human monitor: a console that joined a
// machine has nothing else.
func (c *Console) read(ctx context.Context, at uint64, n int) ([]byte, error) {
	said, err := c.human(ctx, fmt.Sprintf("x /%dxb %#x", n, at))
	if err != nil {
		return nil, err
	}
	data := make([]byte, 0, n)
	for line := range strings.Lines(said) {
		m := memoryLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			return nil, fmt.Errorf("memory at %#x: %s", at, strings.TrimSpace(line))
		}
		for _, b := range strings.Fields(m[1]) {
			v, _ := strconv.ParseUint(b, 0, 8)
			data = append(data, byte(v))
		}
	}
	if len(data) != n {
		return nil, fmt.Errorf("memory at %#x: %d bytes of %d", at, len(data), n)
	}
	return data, nil
}

// register finds one of info registers: amd64's RIP, RBP and RSP, arm64's PC, X29 and SP.
func register(said string, names ...string) (uint64, bool) {
	for _, name := range names {
		if m := regexp.MustCompile(`\b` + name + ` ?=([0-9a-f]{8,16})`).FindStringSubmatch(said); m != nil {
			v, err := strconv.ParseUint(m[1], 16, 64)
			return v, err == nil
		}
	}
	return 0, false
}

func (c *Console) where(ctx context.Context) (string, error) {
	said, err := c.human(ctx, "info registers")
	if err != nil {
		return "", err
	}
	at, ok := register(said, "RIP", "EIP", "PC")
	if !ok {
		return "", errors.New("the registers have no program counter")
	}
	c.locate(ctx, at)
	return c.name(at), nil
}

// locate has the symbols follow a kernel that has moved itself, if the processor is in it.
func (c *Console) locate(ctx context.Context, at uint64) {
	if memory, err := c.read(ctx, at&^(page-1), page); err == nil {
		c.Symbols.Locate(at, memory)
	}
}

// backtrace follows the frame pointers. A kernel that was compiled without them shows
// where it is, and what of its stack looks like a return address, marked with ? as in
// linux's own.
func (c *Console) backtrace(ctx context.Context, _ []string) (any, error) {
	said, err := c.human(ctx, "info registers")
	if err != nil {
		return nil, err
	}
	at, ok := register(said, "RIP", "PC")
	if !ok {
		return nil, errors.New("the registers have no program counter")
	}
	c.locate(ctx, at)
	frames := []string{"#0 " + c.name(at)}
	if c.Symbols.Frameless() {
		if c.Symbols.At(at) == "" {
			return frames[0], nil
		}
		stack, _ := register(said, "RSP")
		words, err := c.read(ctx, stack, int(min(maxStack, page-stack%page))) // the next page may not be there
		for ; err == nil && len(words) >= 8 && len(frames) < maxFrames; words = words[8:] {
			if back := le64(words); c.Symbols.Returns(back) {
				frames = append(frames, "?  "+c.name(back))
			}
		}
		return strings.Join(frames, "\n"), nil
	}
	frame, _ := register(said, "RBP", "X29")
	for last := uint64(0); len(frames) < maxFrames && frame > last && frame%8 == 0; {
		pair, err := c.read(ctx, frame, 16)
		if err != nil {
			break
		}
		back := le64(pair[8:])
		if back == 0 {
			break
		}
		frames = append(frames, fmt.Sprintf("#%d %s", len(frames), c.name(back)))
		last, frame = frame, le64(pair)
	}
	return strings.Join(frames, "\n"), nil
}

func le64(p []byte) (v uint64) {
	for i := range 8 {
		v |= uint64(p[i]) << (8 * i)
	}
	return v
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
	s, err := c.remote(ctx) // another QEMU, which knows of no breakpoints
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

// waitDefault is how long wait waits where nothing is said.
const waitDefault = 10 * time.Second

func (c *Console) wait(ctx context.Context, args []string) (any, error) {
	usage := errors.New("wait serial|stdout|stderr TEXT [TIME], wait event NAME [TIME], wait stopped [TIME], or wait end [TIME]")
	if len(args) == 0 {
		return nil, usage
	}
	need := 1
	if !slices.Contains([]string{"stopped", "end"}, args[0]) {
		need = 2
	}
	limit := waitDefault
	if len(args) == need+1 {
		var err error
		if limit, err = time.ParseDuration(args[need]); err != nil {
			return nil, fmt.Errorf("wait: %q is not a time: 10s, 2m", args[need])
		}
	} else if len(args) != need {
		return nil, usage
	}
	var come func() bool // mu is held
	switch args[0] {
	case "serial", "stdout", "stderr":
		come = func() bool {
			w := c.streams[args[0]]
			if w == nil {
				return false
			}
			i := strings.Index(w.text, args[1])
			if i < 0 {
				return false
			}
			w.text = w.text[i+len(args[1]):]
			return true
		}
	case "event":
		come = func() bool {
			i := slices.Index(c.events, args[1])
			if i < 0 {
				return false
			}
			c.events = c.events[i+1:]
			return true
		}
	case "end":
		come = func() bool { return c.ended != "" }
	case "stopped":
		timed, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		for {
			running, err := c.running(timed)
			if err == nil && !running {
				return c.where(timed)
			}
			if err != nil {
				return nil, err
			}
			if !c.changes(timed, "STOP") {
				return nil, fmt.Errorf("wait stopped: not within %s", limit)
			}
		}
	default:
		return nil, usage
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		c.mu.Lock()
		done, changed, never := come(), c.changed, c.never(args[0])
		c.mu.Unlock()
		if done {
			return "", nil
		}
		if never != "" {
			return nil, fmt.Errorf("wait %s: it will not come: %s", strings.Join(args[:need], " "), never)
		}
		select {
		case <-changed:
		case <-timed.Done():
			return nil, fmt.Errorf("wait %s: not within %s", strings.Join(args[:need], " "), limit)
		}
	}
}

// never says why what is waited for can no longer come, "" where it may. mu is held.
func (c *Console) never(what string) string {
	switch {
	case what == "end":
		return ""
	case c.ended != "":
		return "the run is over: " + c.ended
	case what == "event" && c.gone:
		return "QEMU is gone"
	}
	return ""
}

// changes waits until an event of that name comes or QEMU goes; false says that ctx
// ended first.
func (c *Console) changes(ctx context.Context, event string) bool {
	for {
		c.mu.Lock()
		i := slices.Index(c.events, event)
		if i >= 0 {
			c.events = c.events[i+1:]
		}
		changed, gone := c.changed, c.gone
		c.mu.Unlock()
		if i >= 0 || gone {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
