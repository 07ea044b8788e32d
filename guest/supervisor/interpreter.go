package supervisor

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
)

// Language is an interpreter that keeps its state from step to step. A driver runs in it and speaks with the host on
// descriptor 3.
//
//	host    milliseconds NUL code NUL         a step, with its time limit
//	host    fork NUL seed NUL                 this is a fork: renew random numbers; the seed is in hex
//	driver  exit code NUL value NUL           how it ended, and its last expression's value, "" if none
type Language struct {
	Name   string
	Driver string   // the driver's text
	Path   string   // where it is in the guest
	Args   []string // the command; the driver's path is one of them, or in Env
	Env    []string // in addition to the session's
	// Without are variables of the session that are removed from the interpreter's environment. Steps may set
	// them.
	Without []string
	// Undriven is a script on the interpreter's standard input, which the interpreter runs if it has not read the
	// driver.
	Undriven string
	// MaxCode bounds a step's code, in bytes; 0 means the same limit as for runs.
	MaxCode int
}

//go:embed driver.js
var nodeDriver string

//go:embed driver.py
var pythonDriver string

//go:embed driver.sh
var shellDriver string

// Languages are the languages of a session. Node runs without its baseline compiler, like that of runs (../node), which
// is a session's on Nanos. The compiler would compile the driver during the first ten steps, and each would take twice
// as long on an emulated processor. Programs are not faster with it: hot code is optimized anyway.
var Languages = []Language{
	{Name: "js", Driver: nodeDriver, Path: DriverDir + "driver.js",
		Args: []string{"node", "--expose-internals", "--no-warnings", "--no-sparkplug", DriverDir + "driver.js"}},
	{Name: "python", Driver: pythonDriver, Path: DriverDir + "driver.py",
		Args: []string{"python3", DriverDir + "driver.py"}},
	{Name: "shell", Driver: shellDriver, Path: DriverDir + "driver.sh", Args: []string{"bash"},
		Env: []string{"BASH_ENV=" + DriverDir + "driver.sh"},
		// With these variables bash may ignore BASH_ENV (posix, privileged) or exit before or after the first
		// command (noexec, errexit, onecmd). It may also have a file instead of the driver's pipe (compatibility
		// before 5.0).
		Without:  []string{"POSIXLY_CORRECT", "BASH_COMPAT", "SHELLOPTS", "BASHOPTS"},
		Undriven: "echo 'the step did not run: bash was started in a way in which it ignores BASH_ENV' >&2\nexit 125\n",
		MaxCode:  1 << 20}, // Bash reads it byte by byte
}

// DriverDir is the folder of the drivers in the guest.
const DriverDir = contract.UnitaskDir + "/session/"

// MaxValue bounds a last expression's value, in characters; drivers cut it slightly earlier.
const MaxValue = 64 << 10

// Interpreter is a running interpreter. It runs one step at a time.
type Interpreter struct {
	Language string // its name
	cmd      *Command
	out      [2]swapped // where its output goes
	replies  chan reply
}

type reply struct {
	code  int
	value string
}

// Step is the result of a step.
type Step struct {
	Code  int    // the exit code: 0, that of the shell's last command, or 1 after an exception
	Value string // of the last expression, "" if there is none
	// Gone means that the interpreter has ended with the step, and its variables are lost. End describes how it
	// ended.
	Gone bool
	End  guest.End
}

// swapped is a writer with a changing target. Output without a target is kept for the next one.
type swapped struct {
	mu   sync.Mutex
	to   io.Writer
	kept []byte
	lost int64 // bytes without a target that were not kept
}

// maxKept bounds what is kept of an interpreter's output between two steps: the beginning of each stream, in
// bytes.
const maxKept = 64 << 10

func (s *swapped) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to != nil {
		return s.to.Write(p)
	}
	n := min(len(p), maxKept-len(s.kept))
	s.kept = append(s.kept, p[:n]...)
	s.lost += int64(len(p) - n)
	return len(p), nil
}

func (s *swapped) swap(to io.Writer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.to = to; to != nil && len(s.kept) > 0 {
		_, _ = to.Write(s.kept)
		if s.lost > 0 {
			fmt.Fprintf(to,
				"\n[%d more bytes were printed between the steps and are not kept: await in a step what prints so much]\n", s.lost)
		}
		s.kept, s.lost = nil, 0
	}
}

// waiting returns a copy of the kept output, and the number of dropped bytes.
func (s *swapped) waiting() (kept []byte, lost int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Clone(s.kept), s.lost
}

// Interpret starts an interpreter in a folder.
func (c *Client) Interpret(ctx context.Context, l Language, env []string, dir string) (*Interpreter, error) {
	in := &Interpreter{Language: l.Name, replies: make(chan reply, 1)}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(l.Without, name)
	})
	e := Exec{Args: l.Args, Env: append(env, l.Env...), Dir: dir, Stdout: &in.out[0], Stderr: &in.out[1],
		reply: &replies{to: in.replies}}
	if l.Undriven != "" {
		e.Stdin = strings.NewReader(l.Undriven)
	}
	var err error
	in.cmd, err = c.Start(ctx, e)
	return in, err
}

// replies parses the driver's replies.
type replies struct {
	buf []byte
	to  chan<- reply
}

func (r *replies) Write(p []byte) (int, error) {
	r.buf = append(r.buf, p...)
	if len(r.buf) > 5*MaxValue { // drivers count characters, of four bytes at most
		return 0, errors.New("the interpreter's reply is too long")
	}
	code, rest, ok := bytes.Cut(r.buf, []byte{0})
	if !ok {
		return len(p), nil
	}
	value, rest, ok := bytes.Cut(rest, []byte{0})
	if !ok {
		return len(p), nil
	}
	n, err := strconv.Atoi(string(code))
	if err != nil || n < 0 || n > 255 || len(rest) > 0 {
		return 0, fmt.Errorf("the interpreter's reply can't be read: %.80q", r.buf)
	}
	select {
	case r.to <- reply{code: n, value: string(value)}:
	default: // unrequested: the code has written to descriptor 3
	}
	r.buf = r.buf[:0]
	return len(p), nil
}

// Run runs code, and writes its output to stdout and stderr. When ctx ends, the step is interrupted as with
// Ctrl-C, and a second time half of KillPatience later. An interpreter that still runs is killed. The error is
// then the context's cause.
func (in *Interpreter) Run(ctx context.Context, code string, limit time.Duration, stdout, stderr io.Writer) (Step,
	error) {
	if i := bytes.IndexByte([]byte(code), 0); i >= 0 {
		return Step{}, fmt.Errorf("the code holds a NUL byte at offset %d", i)
	}
	return in.run(ctx, strconv.FormatInt(limit.Milliseconds(), 10), code, stdout, stderr)
}

func (in *Interpreter) run(ctx context.Context, head, code string, stdout, stderr io.Writer) (Step, error) {
	select {
	case <-in.replies: // an unrequested reply
	default:
	}
	in.out[0].swap(stdout)
	in.out[1].swap(stderr)
	defer in.out[0].swap(nil)
	defer in.out[1].swap(nil)
	sent := make(chan error, 1)
	go func() {
		text := make([]byte, 0, len(head)+len(code)+2) // sized in advance: code may be large
		text = append(append(append(append(text, head...), 0), code...), 0)
		sent <- in.cmd.give(contract.StepControl, text)
	}()
	var signalled <-chan error
	// SIGINT twice: one that arrives just before a shell starts a command, or Python a system call, only takes
	// effect after that.
	for signals := []syscall.Signal{syscall.SIGINT, syscall.SIGINT, syscall.SIGKILL}; ; {
		var late <-chan time.Time
		ended := ctx.Done()
		if ctx.Err() != nil {
			if len(signals) == 0 {
				in.cmd.finish(guest.End{Signal: int(syscall.SIGKILL)}, nil)
				return Step{Gone: true, End: guest.End{Signal: int(syscall.SIGKILL)}}, context.Cause(ctx)
			}
			patience := KillPatience
			if signals[0] == syscall.SIGINT {
				patience /= 2
			}
			signalled = in.cmd.signal(signals[0])
			signals, late, ended = signals[1:], time.After(patience), nil
		}
		select {
		case r := <-in.replies:
			// A driver has read the code before it answers. Code that imitates the driver may answer earlier; the
			// next step's code would then follow half of this one's. Nor may a signal for this step reach the
			// next one.
			gone := !in.settled(sent) || (signalled != nil && !in.settled(signalled))
			return Step{Code: r.code, Value: r.value, Gone: gone || in.Ended()}, context.Cause(ctx)
		case <-in.cmd.Done():
			select {
			case r := <-in.replies: // its last reply
				return Step{Code: r.code, Value: r.value, Gone: true, End: in.cmd.end}, context.Cause(ctx)
			default:
			}
			if in.cmd.err != nil {
				return Step{Gone: true}, in.cmd.err
			}
			return Step{Code: in.cmd.end.Code, Gone: true, End: in.cmd.end}, context.Cause(ctx)
		case <-ended:
		case <-late:
		}
	}
}

// settled waits until a message was sent. An interpreter that does not read it is killed.
func (in *Interpreter) settled(sent <-chan error) bool {
	select {
	case <-sent:
		return true
	case <-in.cmd.Done():
		return true
	case <-time.After(KillPatience):
	}
	in.kill()
	return false
}

// kill ends the interpreter.
func (in *Interpreter) kill() {
	in.cmd.signal(syscall.SIGKILL)
	select {
	case <-in.cmd.Done():
	case <-time.After(KillPatience):
		in.cmd.finish(guest.End{Signal: int(syscall.SIGKILL)}, nil)
	}
}

// Ended reports whether the interpreter has ended.
func (in *Interpreter) Ended() bool {
	select {
	case <-in.cmd.Done():
		return true
	default:
		return false
	}
}
