// Package supervisor is the host's end of a session: what speaks with the program that starts a
// session's commands (../init/session.c). It knows neither machines nor records; it is given the
// program's standard streams.
//
// Both directions carry frames: payload length (4 bytes, big-endian), type (1 byte), the number of
// a command (4 bytes), payload. The host chooses the numbers.
//
//	host to guest
//	X exec       flags:1 columns:2 rows:2 arguments:2 variables:2, then the folder, the arguments
//	             and the variables with a NUL behind each
//	I input      for standard input; no more before it was taken
//	Z end of input
//	C control    for descriptor 3; no more before it was taken
//	K signal     number:1, to the command's process group, 0 to none; with last:1 what is left of the group when
//	             the command ends is killed, whatever signals come later
//	T resize     columns:2 rows:2
//	H hold       say that you do (h), and nothing more until G; of command 0
//	G go on      of command 0
//
//	guest to host
//	o e output   of standard output, of standard error
//	c reply      of descriptor 3
//	a taken      stream:4 of the input (0) or control (1) sent last
//	f failed     errno:4; it did not start
//	u out        before a reply or an end: there is something in /out
//	x end        signal<<8 | exit code: 4 bytes
//	h held       of command 0
//	p pid        number:4 of its process, before any output; only if the exec frame asked for it
//
// Nothing that comes from the guest is believed: lengths are bounded, and a frame of a command that
// was never started ends the session.
package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
)

// Client communicates with a session's program. Any number of goroutines may call its methods, except Write,
// which receives the program's standard output: only one may call it.
type Client struct {
	// MayRoot lets the session's commands become the machine's root. It is set before the first command, if at all.
	MayRoot bool

	sending chan struct{} // held while sending, and from Hold to Continue
	holds   *frame        // the frame of Hold; used by the caller of Hold and Continue
	to      io.Writer     // the program's standard input; used by the holder of sending

	mu       sync.Mutex
	commands map[uint32]*Command
	next     uint32
	over     error         // why nothing can be started any more; nil while the program runs
	gone     chan struct{} // closed when over is set
	holding  chan struct{} // closed when the program reports that it holds its output
	asked    int           // requests to hold that the program has not confirmed

	out atomic.Bool // the program has reported that /out is not empty

	in  []byte   // of the incoming frame
	cut []uint32 // commands to kill when the program continues
}

// New returns a client that writes to the program's standard input.
func New(to io.Writer) *Client {
	return &Client{to: to, sending: make(chan struct{}, 1), commands: map[uint32]*Command{}, gone: make(chan struct{})}
}

// Out reports whether /out was not empty at the end of a step or command since the last call.
func (c *Client) Out() bool { return c.out.Swap(false) }

// ErrOver means that the session's program has ended.
var ErrOver = errors.New("the session has ended")

// BusyError means that a session runs the maximum number of commands.
type BusyError struct{}

func (*BusyError) Error() string {
	return fmt.Sprintf("the session runs %d commands, which is the most: end one", contract.MaxCommands)
}

// Command is a running command.
type Command struct {
	c     *Client
	id    uint32
	exec  Exec
	pid   bool         // its number was told; used by Write
	stdin *guest.Stdin // may be nil
	taken [2]chan struct{}
	done  chan struct{} // closed when it has ended
	end   guest.End
	err   error // it did not start, or its session ended
}

// StartError means that a command did not start.
type StartError struct {
	Name string
	Err  syscall.Errno
}

func (e *StartError) Error() string { return fmt.Sprintf("start %.200s: %s", e.Name, e.Err) }
func (e *StartError) Unwrap() error { return e.Err }

// Start starts a command. If it does not start, Wait returns the error. If ctx ends before the program has
// received the command, the command is killed.
func (c *Client) Start(ctx context.Context, e Exec) (*Command, error) {
	p, err := execFrame(e, c.MayRoot)
	if err != nil {
		return nil, err
	}
	cmd := &Command{c: c, exec: e, done: make(chan struct{})}
	for i := range cmd.taken {
		cmd.taken[i] = make(chan struct{}, 1)
	}
	c.mu.Lock()
	if c.over != nil {
		defer c.mu.Unlock()
		return nil, c.over
	}
	if len(c.commands) >= contract.MaxCommands {
		defer c.mu.Unlock()
		return nil, &BusyError{}
	}
	c.next++
	cmd.id = c.next
	c.commands[cmd.id] = cmd
	c.mu.Unlock()
	err = c.send(ctx.Done(), contract.StepExec, cmd.id, p)
	if err == nil && e.Stdin == nil && e.Terminal == nil {
		err = c.send(ctx.Done(), contract.StepInputEnd, cmd.id, nil)
	}
	if err != nil {
		err = cause(ctx, err)
		cmd.finish(guest.End{}, err)
		cmd.signal(syscall.SIGKILL)
		return nil, err
	}
	if e.Stdin != nil {
		cmd.stdin = guest.NewStdin(e.Stdin)
		go cmd.feed()
	}
	return cmd, nil
}

// Write receives the program's output. An error is a *guest.ProtocolError.
func (c *Client) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		want := contract.StepHeader
		if len(c.in) >= want {
			want += int(binary.BigEndian.Uint32(c.in))
		}
		take := min(want-len(c.in), len(p))
		c.in, p = append(c.in, p[:take]...), p[take:]
		if len(c.in) < contract.StepHeader {
			continue
		}
		length := binary.BigEndian.Uint32(c.in)
		if length > contract.MaxChunk {
			return 0, &guest.ProtocolError{Reason: fmt.Sprintf("a frame of a session says it has %d bytes; %d is the most",
				length, contract.MaxChunk)}
		}
		if len(c.in) < contract.StepHeader+int(length) {
			continue
		}
		err := c.take(c.in[4], binary.BigEndian.Uint32(c.in[5:]), c.in[contract.StepHeader:])
		c.in = c.in[:0]
		if err != nil {
			return 0, err
		}
	}
	return n, nil
}

// take handles a frame.
func (c *Client) take(kind byte, id uint32, p []byte) error {
	c.mu.Lock()
	cmd, known := c.commands[id], id > 0 && id <= c.next
	if kind == contract.StepHeld && id == 0 && len(p) == 0 && c.asked > 0 {
		if c.asked--; c.asked == 0 {
			close(c.holding)
		}
		c.mu.Unlock()
		return nil
	}
	c.mu.Unlock()
	if !known {
		return &guest.ProtocolError{Reason: fmt.Sprintf("a frame of a command that was never started: %d", id)}
	}
	if cmd == nil {
		return nil // it has already ended here
	}
	var to io.Writer
	switch kind {
	case contract.StepStdout:
		to = cmd.exec.Stdout
	case contract.StepStderr:
		to = cmd.exec.Stderr
	case contract.StepReply:
		to = cmd.exec.reply
	case contract.StepOut:
		c.out.Store(true)
		return nil
	case contract.StepPID:
		return cmd.runs(p)
	case contract.StepTaken, contract.StepFailed, contract.StepEnd:
		if len(p) != 4 {
			return &guest.ProtocolError{Reason: fmt.Sprintf("a session's frame of type %q with %d bytes", kind, len(p))}
		}
		cmd.told(kind, binary.BigEndian.Uint32(p))
		return nil
	default:
		return &guest.ProtocolError{Reason: fmt.Sprintf("a session's frame of unknown type %#02x", kind)}
	}
	if to == nil {
		return nil
	}
	if _, err := to.Write(p); err != nil { // affects only its own output
		cmd.finish(guest.End{}, err)
		cmd.signal(syscall.SIGKILL)
	}
	return nil
}

// runs handles the frame with the number of the command's process.
func (cmd *Command) runs(p []byte) error {
	if len(p) != 4 || cmd.exec.PID == nil || cmd.pid {
		return &guest.ProtocolError{
			Reason: fmt.Sprintf("a session's process number of %d bytes, unasked or a second time", len(p))}
	}
	pid := binary.BigEndian.Uint32(p)
	if pid == 0 || pid > contract.MaxPID {
		return &guest.ProtocolError{Reason: fmt.Sprintf("a session's process has the number %d", pid)}
	}
	cmd.pid = true
	cmd.exec.PID(cmd, int(pid))
	return nil
}

func (cmd *Command) told(kind byte, n uint32) {
	switch kind {
	case contract.StepTaken:
		select {
		case cmd.taken[n&1] <- struct{}{}:
		default:
		}
	case contract.StepFailed:
		cmd.finish(guest.End{}, &StartError{cmd.exec.Args[0], syscall.Errno(n & 0xfff)})
	case contract.StepEnd:
		cmd.finish(guest.End{Code: int(n & 0xff), Signal: int(n >> 8 & 0x7f)}, nil)
	}
}

// finish marks the command as ended.
func (cmd *Command) finish(end guest.End, err error) {
	c := cmd.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.commands[cmd.id] != cmd {
		return
	}
	delete(c.commands, cmd.id)
	cmd.end, cmd.err = end, err
	close(cmd.done)
}

// Close ends the client and every command: the program has ended, for the given reason.
func (c *Client) Close(why error) {
	if why == nil {
		why = ErrOver
	}
	c.mu.Lock()
	if c.over == nil {
		c.over = why
		close(c.gone)
	}
	var left []*Command
	for _, cmd := range c.commands {
		left = append(left, cmd)
	}
	c.mu.Unlock()
	for _, cmd := range left {
		cmd.finish(guest.End{}, why)
	}
}

// feed sends standard input to the command, a chunk at a time as the command reads them. If reading fails, the
// command reads end of file; Wait returns the error.
func (cmd *Command) feed() {
	go func() {
		<-cmd.done
		cmd.stdin.Stop()
	}()
	var chunk [contract.MaxChunk]byte
	for {
		n, err := cmd.stdin.Read(chunk[:])
		if n > 0 && cmd.give(contract.StepInput, chunk[:n]) != nil {
			return
		}
		if err != nil {
			_ = cmd.c.send(cmd.done, contract.StepInputEnd, cmd.id, nil)
			return
		}
	}
}

// give sends some bytes and waits until the command has received them.
func (cmd *Command) give(kind byte, p []byte) error {
	taken := cmd.taken[0]
	if kind == contract.StepControl {
		taken = cmd.taken[1]
	}
	for len(p) > 0 {
		n := min(len(p), contract.MaxChunk)
		select {
		case <-cmd.done:
			return cmd.ended()
		default:
		}
		done := func() {}
		if cmd.exec.Use != nil {
			var err error
			if done, err = cmd.exec.Use(); err != nil {
				return err
			}
		}
		err := cmd.c.send(cmd.done, kind, cmd.id, p[:n])
		done()
		if err == errStopped {
			return cmd.ended()
		}
		if err != nil {
			return err
		}
		p = p[n:]
		select {
		case <-taken:
		case <-cmd.done:
			return cmd.ended()
		}
	}
	return nil
}

func (cmd *Command) ended() error {
	if cmd.err != nil {
		return cmd.err
	}
	return io.ErrClosedPipe
}

// Signal sends a signal to the command's process group. When ctx ends, it may still arrive.
func (cmd *Command) Signal(ctx context.Context, s syscall.Signal) error {
	return cmd.sendWithin(ctx, contract.StepSignal, []byte{byte(s)})
}

// stop sends a signal that should end the command: the rest of its process group is then killed. It does not
// wait; the returned channel is closed when the signal was sent. The signal has its own frame, because a machine
// of an older version accepts no other.
func (cmd *Command) stop(s syscall.Signal) <-chan struct{} {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		if cmd.c.send(nil, contract.StepSignal, cmd.id, []byte{0, 1}) == nil {
			_ = cmd.Signal(context.Background(), s)
		}
	}()
	return sent
}

// signal is like Signal, but does not wait until the guest receives it: for readers of the guest's output, and
// time limits. Each command is sent a few. The returned channel receives the result of sending.
func (cmd *Command) signal(s syscall.Signal) <-chan error {
	sent := make(chan error, 1)
	go func() { sent <- cmd.Signal(context.Background(), s) }()
	return sent
}

// Resize changes the size of the command's terminal. When ctx ends, it may still do so.
func (cmd *Command) Resize(ctx context.Context, s guest.Size) error {
	select {
	case <-cmd.done:
		return cmd.ended()
	default:
	}
	p := binary.BigEndian.AppendUint16(nil, s.Columns)
	return cmd.sendWithin(ctx, contract.StepResize, binary.BigEndian.AppendUint16(p, s.Rows))
}

// sendWithin sends a frame about the command, and stops waiting for the guest to take it when ctx ends.
func (cmd *Command) sendWithin(ctx context.Context, kind byte, payload []byte) error {
	err := cmd.c.send(ctx.Done(), kind, cmd.id, payload)
	if err == errStopped {
		return context.Cause(ctx)
	}
	return err
}

// Done returns a channel that is closed when the command has ended.
func (cmd *Command) Done() <-chan struct{} { return cmd.done }

// KillPatience is the time between SIGINT and SIGKILL for a command. A command that writes a file for the session has
// more: it removes what it has begun to write, and the host may be busy.
const (
	KillPatience    = 2 * time.Second
	writingPatience = 5 * KillPatience
)

// Wait waits until the command has ended, and then stops reading its standard input. When ctx ends, the command
// is interrupted as with Ctrl-C. If it does not end, it is killed with the rest of its process group. The error
// is then the context's cause, beside how it ended. For a command that exits with 0, the error tells why its
// standard input could not be read to its end, as in os/exec. A terminal is an exception, because it may hang up.
func (cmd *Command) Wait(ctx context.Context) (guest.End, error) {
	end, err := cmd.wait(ctx)
	if cmd.stdin == nil {
		return end, err
	}
	cmd.stdin.Stop()
	if err == nil && end == (guest.End{}) && cmd.exec.Terminal == nil {
		err = cmd.stdin.Err()
	}
	return end, err
}

func (cmd *Command) wait(ctx context.Context) (guest.End, error) {
	select {
	case <-cmd.done:
		return cmd.end, cmd.err
	case <-ctx.Done():
	}
	patience := KillPatience
	if cmd.exec.builtin && (cmd.exec.Args[0] == "write" || cmd.exec.Args[0] == "put") {
		patience = writingPatience
	}
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		cmd.stop(s)
		select {
		case <-cmd.done:
			return cmd.end, context.Cause(ctx)
		case <-time.After(patience):
		}
		patience = KillPatience
	}
	cmd.finish(guest.End{}, context.Cause(ctx))
	return guest.End{Signal: int(syscall.SIGKILL)}, context.Cause(ctx)
}
