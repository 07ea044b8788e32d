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

// Start describes how the code is started.
type Start struct {
	// Argv is the absolute path of the main file, followed by the arguments: all of process.argv, or sys.argv,
	// except the language's program.
	Argv []string `json:"argv"`
	// Env is the whole environment.
	Env map[string]string `json:"env"`
	// Dir is the working directory; it must exist.
	Dir string `json:"cwd"`
	// Flags are the language's own arguments. The program sees all of them, and applies those that it can apply
	// while it runs.
	Flags []string `json:"flags,omitempty"`
	// CA contains certificates in PEM that TLS clients trust beside their own, or is "".
	CA string `json:"ca,omitempty"`
	// ReadOnly are paths that the code may not write to; a kernel with users does not need it.
	ReadOnly []string `json:"readOnly,omitempty"`
	// Compiled is contract.HandOut, or the path in the guest of the program that was compiled from the code
	// before; that program runs instead. "" compiles and runs the code.
	Compiled string `json:"compiled,omitempty"`
	// Session means that the program is the driver of a session's interpreter, in the machine's one process.
	Session bool `json:"session,omitempty"`
}

// Process describes how a fresh process is started.
type Process struct {
	// Dir is its working directory, absolute.
	Dir string
	// Args are inserted before the program, after the arguments that it always has.
	Args []string
	// Env is added to its environment: NAME=VALUE each.
	Env []string
}

// Process describes the differences of the process that Start starts. It must be called before Start, and only
// for machines without a running process.
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

// Session makes this the conversation of a session's program. It must be called before Start. A machine without a
// process starts the session's program instead; on Nanos the program continues as the session's interpreter.
func (c *Conn) Session() error {
	if err := c.send(contract.FrameSession, nil); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// Lasting makes the conversation outlive its connection (Rejoin). It must be called before Start.
func (c *Conn) Lasting() error {
	if err := c.send(contract.FrameLasting, nil); err != nil {
		return fmt.Errorf("lasting: %w", err)
	}
	return nil
}

// Layer makes the machine of a container's image send what the code has changed in the image, instead of /out: an
// archive, contract.LayerFile. It must be called before Start.
func (c *Conn) Layer() error {
	if err := c.send(contract.FrameLayer, nil); err != nil {
		return fmt.Errorf("layer: %w", err)
	}
	return nil
}

// Look has the guest tell at the end which files the code has left in a folder (End.Left). It must be called before
// Start.
func (c *Conn) Look(dir string) error {
	c.looks = true
	if err := c.write(contract.FrameLook, []byte(dir)); err != nil { // Start sends it
		return fmt.Errorf("look: %w", err)
	}
	return nil
}

// Processes limits the processes and threads that the code has at once, on the linux kernel. A further one is not made:
// the code gets EAGAIN. It must be called before Start.
func (c *Conn) Processes(most int) error {
	count := binary.BigEndian.AppendUint32(nil, uint32(most))
	if err := c.write(contract.FrameProcesses, count); err != nil { // Start sends it
		return fmt.Errorf("processes: %w", err)
	}
	return nil
}

// Size is the size of a terminal.
type Size struct{ Columns, Rows uint16 }

// Terminal gives the process that Start starts a terminal instead of its streams: all its output arrives as
// standard output. It must be called before Start, and only for machines without a running process. While Stream
// carries the streams, sizes from resized are applied to the terminal.
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

// RefusedError means that a fresh process ended before it read its start, because it rejected its arguments.
type RefusedError struct {
	Words string // its output, at most maxEarly bytes
	End   End
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the process ended with exit code %d before its start: %.2000s", e.End.Code, e.Words)
}

// maxEarly bounds a process's output before its start: that its debugger listens, or that it rejects its
// arguments.
const maxEarly = 64 << 10

// Start starts the code, with fresh entropy for it, and waits until the program has read both. The error is a
// *RefusedError if a process with its own arguments ended before that.
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

// startFrame encodes a start with fresh entropy.
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
