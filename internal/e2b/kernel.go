package e2b

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/session"
)

//go:embed kernel/kernel.py
var kernelSource string

// kernel is a program in a sandbox that runs the code of a Python context.
type kernel struct {
	run   session.Running
	stdin *io.PipeWriter
	over  chan struct{} // closed when it has ended
	why   error         // once over
	stop  context.CancelFunc

	more   chan struct{} // has an element if there is something new
	mu     sync.Mutex
	queue  [][]byte // messages that nobody has taken yet
	queued int      // their bytes
}

// maxQueued bounds the bytes of a kernel's messages that nobody has taken. One with more is ended: its writer must not
// wait.
const maxQueued = 16 << 20

// put queues a message.
func (k *kernel) put(text []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.queued += len(text) + pieceCost; k.queued > maxQueued {
		k.queue = nil
		k.stop()
		return
	}
	k.queue = append(k.queue, text)
	select {
	case k.more <- struct{}{}:
	default:
	}
}

// take removes the messages.
func (k *kernel) take() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := k.queue
	k.queue, k.queued = nil, 0
	return list
}

// newKernel starts a kernel, and waits until it takes code.
func (box *sandbox) newKernel(ctx context.Context, cwd string) (*kernel, error) {
	from, to := io.Pipe()
	life, stop := context.WithCancel(context.Background())
	k := &kernel{stdin: to, more: make(chan struct{}, 1), over: make(chan struct{}), stop: stop}
	started, errors := make(chan struct{}), &tailWriter{most: maxKept}
	c := unitask.Command{Args: []string{"python3", "-c", kernelSource}, Dir: cwd, Env: box.environment(defaultUser, nil),
		User: defaultUser, Endless: true, Unbounded: true, ResultBytes: 1, Stdin: from,
		Stdout: &messageReader{to: k}, Stderr: errors, Started: func(run session.Running) { k.run = run; close(started) }}
	go func() {
		_, k.why = box.session.Exec(life, c)
		stop()
		from.Close()
		close(k.over)
	}()
	for {
		select {
		case <-k.more:
			if !slices.ContainsFunc(k.take(), isReady) {
				continue
			}
			select {
			case <-started:
				return k, nil
			case <-k.over:
			case <-ctx.Done():
			}
			stop()
			return nil, errKernel
		case <-k.over:
			return nil, fmt.Errorf("the template has no Python with IPython, which the code interpreter needs: %v %.300s", k.why,
				errors.kept)
		case <-ctx.Done():
			stop()
			return nil, ctx.Err()
		}
	}
}

func isReady(text []byte) bool {
	var m struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(text, &m) == nil && m.Type == "ready"
}

// end ends a kernel.
func (k *kernel) end() {
	k.stop()
	<-k.over
}

// tailWriter keeps the end of what is written.
type tailWriter struct {
	most int
	kept []byte
}

func (t *tailWriter) Write(p []byte) (int, error) {
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-t.most):]
	return len(p), nil
}

// messageReader splits a kernel's output into lines. A kernel with a line that is too long is ended.
type messageReader struct {
	to   *kernel
	held []byte
}

func (m *messageReader) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, found := bytes.Cut(p, []byte("\n"))
		if len(m.held)+len(line) > maxMessage {
			m.to.stop()
			return n, nil
		}
		m.held = append(m.held, line...)
		if !found {
			return n, nil
		}
		if len(m.held) > 0 {
			m.to.put(m.held)
		}
		m.held, p = nil, rest
	}
}

// fields are the members of a kernel's messages that clients get, by the messages' types.
var fields = map[string][]string{
	"stdout": {"text", "timestamp"}, "stderr": {"text", "timestamp"},
	"error":                {"name", "value", "traceback"},
	"number_of_executions": {"execution_count"},
	"result": {"text", "html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript", "data", "chart",
		"extra", "is_main_result"},
}

// warmUp starts the kernel of the first Python context, so that its first code need not wait as long.
func (box *sandbox) warmUp() {
	of, err := box.contexts.find("", "python")
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	select {
	case of.turn <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-of.turn }()
	if of.kernel != nil {
		return
	}
	if k, err := box.newKernel(ctx, of.Cwd); err == nil {
		of.kernel = k
	}
}

// runCell runs code in a Python context.
func (box *sandbox) runCell(ctx context.Context, of *codeContext, in execution, out *lines) error {
	if of.kernel == nil {
		k, err := box.newKernel(ctx, of.Cwd)
		if err != nil {
			return err
		}
		of.kernel = k
	}
	k := of.kernel
	cell, err := json.Marshal(map[string]any{"code": in.Code, "env": in.Env})
	if err != nil {
		return err
	}
	go func() { _, _ = k.stdin.Write(append(cell, '\n')) }()
	left := maxPrinted
	done, interrupted, late := ctx.Done(), error(nil), (<-chan time.Time)(nil)
	for {
		select {
		case <-k.more:
			for _, text := range k.take() {
				if left -= len(text); left < 0 && interrupted == nil {
					done, late = nil, time.After(interrupts)
					interrupted = fmt.Errorf("the code printed more than %d bytes", maxPrinted)
					_ = k.run.Signal(syscall.SIGINT)
				}
				if over := pass(text, out, interrupted != nil); over {
					return interrupted
				}
			}
		case <-done: // the client has gone
			done, late, interrupted = nil, time.After(interrupts), context.Cause(ctx)
			_ = k.run.Signal(syscall.SIGINT)
		case <-late:
			k.end()
			of.kernel = nil
			return errors.Join(interrupted, errKernel)
		case <-k.over:
			of.kernel = nil
			return errKernel
		}
	}
}

// pass passes a kernel's message on, with the members that clients know; silent drops it. over reports that the
// code has ended.
func pass(text []byte, out *lines, silent bool) (over bool) {
	var m map[string]json.RawMessage
	var kind string
	if json.Unmarshal(text, &m) != nil || json.Unmarshal(m["type"], &kind) != nil {
		return false
	}
	if kind == "end_of_execution" {
		return true
	}
	known := fields[kind]
	if known == nil || silent {
		return false
	}
	sent := map[string]any{"type": kind}
	for _, name := range known {
		if value, ok := m[name]; ok {
			sent[name] = value
		}
	}
	out.message(sent)
	return false
}
