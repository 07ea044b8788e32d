// Package pykernel starts a program in a session's machine that runs cells of Python code, and passes lines of JSON to
// and from it. What comes from the machine is limited in size, and is neither read nor trusted here. Packages e2b and
// jupyter call it.
package pykernel

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"

	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/internal/tail"
	"github.com/unitask/unitask/session"
)

//go:embed kernel.py
var source string

// Limits of a kernel.
const (
	MaxMessage = 12 << 20 // bytes of a message from a kernel: a picture, in base64
	MaxQueued  = 16 << 20 // bytes of messages that nobody has taken: a kernel with more is ended
	PieceCost  = 128      // bytes of memory that a message uses beside its text
	maxUnread  = 64 << 20 // bytes of messages that a kernel leaves unread: one with more is ended
	sendCost   = 4 << 10  // bytes of memory that such a message uses beside its text
	maxKept    = 600      // bytes of the end of standard error, to say why the kernel has ended
)

// Kernel is a program that runs cells.
type Kernel struct {
	Over chan struct{} // closed when it has ended
	More chan struct{} // has an element if there is something to Take

	run    session.Running
	stdin  *io.PipeWriter
	why    error // once over
	stop   context.CancelFunc
	errors tail.Buffer

	mu     sync.Mutex
	queue  [][]byte // messages that nobody has taken yet
	queued int      // their bytes
	unsent [][]byte // messages to it that it has not read; the first is being written
	unread int      // their bytes
	broke  string   // the limit that it broke
}

// Options say how a kernel runs.
type Options struct {
	// Jupyter has the kernel speak in Jupyter's terms, without IPython if there is none. Without it, it speaks in E2B's.
	Jupyter   bool
	Dir, User string
	Env       map[string]string
}

// Start starts a kernel. It returns once the program runs, which is before it takes code. The kernel stays when ctx has
// ended, until End.
func Start(ctx context.Context, s *session.Session, opts Options) (*Kernel, error) {
	from, to := io.Pipe()
	life, stop := context.WithCancel(context.Background())
	k := &Kernel{stdin: to, More: make(chan struct{}, 1), Over: make(chan struct{}), stop: stop,
		errors: tail.Buffer{Size: maxKept}}
	args := []string{"python3", "-c", source}
	if opts.Jupyter {
		args = append(args, "jupyter", python.Notebook)
	}
	started := make(chan struct{})
	c := session.Command{Args: args, Dir: opts.Dir, Env: opts.Env, User: opts.User, Endless: true, Unbounded: true,
		ResultBytes: 1, Stdin: from, Stdout: &lines{to: k}, Stderr: &k.errors,
		Started: func(run session.Running) { k.run = run; close(started) }}
	go func() {
		_, k.why = s.Exec(life, c)
		stop()
		from.Close()
		close(k.Over)
	}()
	select {
	case <-started:
		return k, nil
	case <-k.Over:
		return nil, k.Err()
	case <-ctx.Done():
		k.End()
		return nil, context.Cause(ctx)
	}
}

// Send sends a message. It does not wait until the kernel reads it. A kernel that leaves too much unread is ended.
func (k *Kernel) Send(text []byte) {
	size := len(text) + sendCost
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unread += size; k.unread > maxUnread {
		k.unread -= size
		k.fail(fmt.Sprintf("it left over %d bytes of messages unread", maxUnread))
		return
	}
	k.unsent = append(k.unsent, append(text, '\n'))
	if len(k.unsent) == 1 {
		go k.write()
	}
}

// write writes the messages in their order, until none is left.
func (k *Kernel) write() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.unsent) > 0 {
		text := k.unsent[0]
		k.mu.Unlock()
		_, _ = k.stdin.Write(text)
		k.mu.Lock()
		k.unsent = k.unsent[1:]
		k.unread -= len(text) - 1 + sendCost
	}
}

// Signal sends a signal to the kernel and the processes that the code has started.
func (k *Kernel) Signal(sig syscall.Signal) error { return k.run.Signal(sig) }

// End ends the kernel.
func (k *Kernel) End() {
	k.stop()
	<-k.Over
}

// Err says why the kernel, which is over, has ended.
func (k *Kernel) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broke != "" {
		return fmt.Errorf("the kernel was ended: %s", k.broke)
	}
	said := strings.TrimSpace(k.errors.String())
	if k.why != nil {
		return fmt.Errorf("%w: %s", k.why, said)
	}
	return fmt.Errorf("the kernel's process has ended: %s", said)
}

// Take removes the messages.
func (k *Kernel) Take() [][]byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := k.queue
	k.queue, k.queued = nil, 0
	return list
}

// put queues a message. The machine's output must not wait for whoever takes it.
func (k *Kernel) put(text []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broke != "" {
		return
	}
	if k.queued += len(text) + PieceCost; k.queued > MaxQueued {
		k.fail(fmt.Sprintf("it printed over %d bytes before they could be read", MaxQueued))
		return
	}
	k.queue = append(k.queue, text)
	select {
	case k.More <- struct{}{}:
	default:
	}
}

// fail ends the kernel because it broke a limit. The caller has the lock.
func (k *Kernel) fail(limit string) {
	if k.broke == "" {
		k.broke = limit
	}
	k.queue = nil
	k.stop()
}

// lines splits a kernel's output into lines. A kernel with a line that is too long is ended.
type lines struct {
	to   *Kernel
	held []byte
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, found := bytes.Cut(p, []byte("\n"))
		if len(l.held)+len(line) > MaxMessage {
			l.to.mu.Lock()
			l.to.fail(fmt.Sprintf("a message had over %d bytes", MaxMessage))
			l.to.mu.Unlock()
			return n, nil
		}
		l.held = append(l.held, line...)
		if !found {
			return n, nil
		}
		if len(l.held) > 0 {
			l.to.put(l.held)
		}
		l.held, p = nil, rest
	}
}
