package guest

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// Start is what the code is started with.
type Start struct {
	// Argv is the absolute path of the main file and the arguments: everything
	// of process.argv, or sys.argv, but the language's program.
	Argv []string `json:"argv"`
	// Env is the whole environment.
	Env map[string]string `json:"env"`
	// Dir is the working directory; it must exist.
	Dir string `json:"cwd"`
	// Flags are the language's own arguments: as the program is told of them, and, of
	// those that it can take while it runs, the ones to be taken.
	Flags []string `json:"flags,omitempty"`
	// CA is PEM that TLS clients trust beside their own certificates, or "".
	CA string `json:"ca,omitempty"`
	// ReadOnly are paths that the code may not write to; a kernel that has users
	// needs no telling.
	ReadOnly []string `json:"readOnly,omitempty"`
	// Compiled is contract.HandOut, or the path of a program that was put into the guest: what the code was compiled
	// to before, which runs in its place. "" compiles and runs.
	Compiled string `json:"compiled,omitempty"`
	// Placed is the length of that program, where it was not put there but is in the guest's place (contract.PlaceMark),
	// from where it comes to the path; else 0.
	Placed int `json:"placed,omitempty,string"`
	// Session: the program is the driver of a session's interpreter, in the machine's one process.
	Session bool `json:"session,omitempty"`
}

// Process is how a fresh process is started.
type Process struct {
	// Dir is the folder that it is started in, absolute.
	Dir string
	// Args stand before the program, behind those that it always has.
	Args []string
	// Env is added to the environment that it starts with: NAME=VALUE each.
	Env []string
}

// Process says how the process that Start starts differs. It must come before Start,
// and only machines without a process have one to start.
func (c *Conn) Process(p Process) error {
	var text []byte
	list := func(l []string) error {
		if len(l) > contract.MaxStrings {
			return fmt.Errorf("start: %d strings for the process; %d is the most", len(l), contract.MaxStrings)
		}
		for _, s := range l {
			if s == "" || strings.ContainsRune(s, 0) {
				return fmt.Errorf("start: %q is empty or holds a NUL byte", s)
			}
			text = append(append(text, s...), 0)
		}
		text = append(text, 0)
		return nil
	}
	text = append(append(text, p.Dir...), 0)
	if err := errors.Join(list(p.Args), list(p.Env)); err != nil {
		return err
	}
	if len(text) > contract.MaxProcess {
		return fmt.Errorf("start: the process's arguments and variables take %d bytes; %d is the most", len(text),
			contract.MaxProcess)
	}
	c.process = true
	if err := c.send(contract.FrameProcess, text); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// Session has the conversation be that of a session's program. It must come before Start. A machine without a process
// starts one in the place of the program; on Nanos the program continues, as the session's interpreter.
func (c *Conn) Session() error {
	if err := c.send(contract.FrameSession, nil); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// Lasting says that the conversation outlives its connection (Rejoin). It must come before Start.
func (c *Conn) Lasting() error {
	if err := c.send(contract.FrameLasting, nil); err != nil {
		return fmt.Errorf("lasting: %w", err)
	}
	return nil
}

// Layer has the machine of a container's image send, in the place of what is in /out, what the code has changed of the
// image: contract.LayerFile, an archive. It must come before Start.
func (c *Conn) Layer() error {
	if err := c.send(contract.FrameLayer, nil); err != nil {
		return fmt.Errorf("layer: %w", err)
	}
	return nil
}

// Size is a terminal's.
type Size struct{ Columns, Rows uint16 }

// Terminal gives the process that Start starts a terminal in the place of its streams:
// what it prints on either comes as standard output. It must come before Start, and only
// machines without a process have one to start. Sizes that come from resized while Stream
// carries the streams are the terminal's from then on.
func (c *Conn) Terminal(size Size, resized <-chan Size) error {
	c.resized = resized
	if err := c.resize(size); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

func (c *Conn) resize(size Size) error {
	p := binary.BigEndian.AppendUint16(nil, size.Columns)
	return c.send(contract.FrameTerminal, binary.BigEndian.AppendUint16(p, size.Rows))
}

// RefusedError means that a fresh process ended before it took its start: it did not
// like its arguments.
type RefusedError struct {
	Words string // what it printed, at most maxEarly bytes
	End   End
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the process ended with exit code %d before its start: %.2000s", e.End.Code, e.Words)
}

// maxEarly bounds what a process may print before its start: that its debugger listens,
// or that it does not take its arguments.
const maxEarly = 64 << 10

// Start starts the code, with fresh entropy for it, and waits until the program has taken both. The error is a
// *RefusedError if a process with arguments of its own did not come that far.
func (c *Conn) Start(ctx context.Context, s Start) error {
	text, err := startFrame(s, "")
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, c.abort)
	defer stop()
	limit := c.startTime()
	c.within(limit)
	defer c.within(0)
	if err := c.send(contract.FrameStart, text); err != nil {
		return fmt.Errorf("start: %w", stalled(err, "took no more files", limit))
	}
	kind, payload, err := c.read()
	for c.process && err == nil && (kind == contract.FrameStdout || kind == contract.FrameStderr) {
		if c.early = append(c.early, payload...); len(c.early) > maxEarly {
			return violation("it printed more than %d bytes before the code was started", maxEarly)
		}
		kind, payload, err = c.read()
	}
	err = stalled(err, "did not start the code", limit)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("start: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("start: %w", err)
	case kind == contract.FrameExit && c.process:
		end, err := decodeEnd(payload)
		if err != nil {
			return err
		}
		return &RefusedError{strings.TrimSpace(string(c.early)), end}
	case kind == contract.FrameExit:
		return ErrGone
	case kind == contract.FrameStderr:
		return violation("the program printed before the code was started: %.500q", payload)
	case kind != contract.FrameStarted:
		return violation("frame %q before the code was started", kind)
	}
	return nil
}

// startFrame returns a start with fresh entropy.
func startFrame(s Start, rehearsal string) ([]byte, error) {
	var entropy [contract.EntropySize]byte
	if _, err := rand.Read(entropy[:]); err != nil {
		return nil, err
	}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	text, err := json.Marshal(struct {
		Start
		Entropy   string `json:"entropy"`
		Rehearsal string `json:"rehearsal,omitempty"`
	}{s, hex.EncodeToString(entropy[:]), rehearsal})
	if err != nil {
		return nil, err
	}
	if len(text) > contract.MaxFrame {
		return nil, fmt.Errorf("start: arguments and environment take %d bytes; %d is the most", len(text), contract.MaxFrame)
	}
	return text, nil
}
