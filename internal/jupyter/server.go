// Package jupyter is a Jupyter kernel whose code runs in a session's machine. It speaks Jupyter's messaging protocol
// over ZeroMQ. It runs no code on the host and reads no file there but the connection file. What the machine sends is
// checked: by default no output can run a script in the client's browser, or fetch anything. The kernel command calls
// it.
package jupyter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"github.com/google/uuid"

	"github.com/unitask/unitask/internal/pykernel"
	"github.com/unitask/unitask/internal/zmtp"
	"github.com/unitask/unitask/session"
)

// Options configure a kernel.
type Options struct {
	// Start starts the session. It is called at once, in a goroutine; code waits for it.
	Start func(context.Context) (*session.Session, error)
	Dir   string // where the code begins; "" is the session's folder
	// TrustOutput passes what the code shows to the client as it is.
	TrustOutput bool
	Version     string // unitask's
	// Interrupts are requests to interrupt the code, beside the client's.
	Interrupts <-chan struct{}
}

// Limits of a kernel.
const (
	maxMessage    = 32 << 20  // bytes of a client's message
	maxSmall      = 64 << 10  // bytes of a message on iopub (subscriptions) and of the heartbeat
	maxCode       = 4 << 20   // bytes of a cell
	maxWaiting    = 1000      // requests that wait for their turn: a notebook's cells
	maxWaitingSum = 64 << 20  // bytes of them
	maxPrinted    = 128 << 20 // bytes that a cell prints and shows
	maxQuestions  = 1000      // of a cell, by input()
	maxAnswer     = 1 << 20   // bytes of an answer to input()
)

// server is a kernel.
type server struct {
	Options
	signer
	session string // of the messages: a new one for each process
	ctx     context.Context
	stop    context.CancelCauseFunc

	shell, control, iopub, stdin, heartbeat *zmtp.Socket
	started                                 chan struct{} // closed when python or err is set
	python                                  *pykernel.Kernel
	version                                 string // Python's, once started
	err                                     error
	inputs                                  chan string   // answers to input()
	interrupts                              chan struct{} // has an element if the code is to be interrupted
	more                                    chan struct{} // has an element if there is something in requests
	open                                    chan struct{} // closed when all sockets are there

	mu       sync.Mutex
	requests []*message // that wait for their turn
	waiting  int        // their bytes
	asked    string     // who may answer input(); "" is nobody

	count      int      // executions; only the goroutine of serve uses it
	questionID int      // of input(); likewise
	last       *message // whose turn it was; likewise
	left       int      // bytes that may be shown after its end; likewise
}

// errShutdown means that the client has ended the kernel.
var errShutdown = errors.New("the client has ended the kernel")

// Serve serves the clients until one of them ends the kernel, or ctx ends. The error says why the machine or its Python
// has ended before.
func Serve(ctx context.Context, c Connection, opts Options) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	s := &server{Options: opts, signer: signer{[]byte(c.Key)}, session: uuid.NewString(), ctx: ctx, stop: stop,
		started: make(chan struct{}), inputs: make(chan string, 1), interrupts: make(chan struct{}, 1),
		more: make(chan struct{}, 1), open: make(chan struct{})}
	if err := s.listen(c); err != nil {
		return err
	}
	var work sync.WaitGroup
	work.Go(func() {
		defer close(s.started)
		s.python, s.version, s.err = s.begin(ctx)
	})
	work.Go(s.interrupted)
	s.publish(nil, "status", map[string]any{"execution_state": "starting"}, false)
	err := s.serve()
	stop(nil)
	for _, socket := range []*zmtp.Socket{s.shell, s.control, s.iopub, s.stdin, s.heartbeat} {
		work.Go(socket.Close)
	}
	work.Wait()
	if s.python != nil {
		s.python.End()
	}
	return err
}

// listen opens the five sockets.
func (s *server) listen(c Connection) error {
	ports := []int{c.Shell, c.Control, c.IOPub, c.Stdin, c.Heartbeat}
	listeners := make([]net.Listener, 0, len(ports))
	for _, port := range ports {
		l, err := c.listen(port)
		if err != nil {
			for _, l := range listeners {
				l.Close()
			}
			return err
		}
		listeners = append(listeners, l)
	}
	s.iopub = zmtp.Serve(listeners[2], zmtp.Pub, maxSmall, nil)
	s.heartbeat = zmtp.Serve(listeners[4], zmtp.Rep, maxSmall, nil)
	s.stdin = zmtp.Serve(listeners[3], zmtp.Router, maxMessage, s.handle(s.takeInput))
	s.shell = zmtp.Serve(listeners[0], zmtp.Router, maxMessage, s.handle(s.queue))
	s.control = zmtp.Serve(listeners[1], zmtp.Router, maxMessage, s.handle(s.controlled))
	close(s.open)
	return nil
}

// handle returns a handler that drops messages which are not valid.
func (s *server) handle(take func(*message)) func(string, zmtp.Message) {
	return func(peer string, frames zmtp.Message) {
		<-s.open // a handler may use every socket
		if m, err := s.parse(peer, frames); err == nil {
			take(m)
		}
	}
}

// queue adds a request to those that wait for their turn.
func (s *server) queue(m *message) {
	s.mu.Lock()
	full := len(s.requests) >= maxWaiting || s.waiting+m.large > maxWaitingSum
	if !full {
		s.requests = append(s.requests, m)
		s.waiting += m.large
	}
	s.mu.Unlock()
	if full {
		s.reply(s.shell, m, failure("Busy", fmt.Sprintf("%d requests wait: send fewer at a time", maxWaiting)))
		return
	}
	wake(s.more)
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// next returns the request whose turn it is, nil if there is none.
func (s *server) next() *message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.requests) == 0 {
		return nil
	}
	m := s.requests[0]
	s.requests = s.requests[1:]
	s.waiting -= m.large
	return m
}

// serve handles the requests of the shell channel, one at a time.
func (s *server) serve() error {
	started := s.started
	var output, over <-chan struct{}
	for {
		for m := s.next(); m != nil && s.ctx.Err() == nil; m = s.next() {
			s.last, s.left = m, maxPrinted
			if err := s.answer(s.shell, m); err != nil {
				return err
			}
		}
		select {
		case <-s.more:
		case <-started:
			if started = nil; s.python != nil {
				output, over = s.python.More, s.python.Over
			}
		case <-output:
			if err := s.between(); err != nil {
				return err
			}
		case <-over:
			return s.python.Err()
		case <-s.ctx.Done():
			return nil
		}
	}
}

// answer handles a request, and says on iopub when it begins and ends.
func (s *server) answer(from *zmtp.Socket, m *message) error {
	s.publish(m, "status", map[string]any{"execution_state": "busy"}, false)
	defer s.publish(m, "status", map[string]any{"execution_state": "idle"}, false)
	if m.aborted {
		s.reply(from, m, map[string]any{"status": "aborted", "execution_count": s.count})
		return nil
	}
	switch m.kind {
	case "kernel_info_request":
		s.reply(from, m, s.information())
	case "execute_request":
		return s.execute(m)
	case "complete_request":
		return s.complete(m)
	case "inspect_request":
		return s.inspect(m)
	case "is_complete_request":
		return s.isComplete(m)
	case "history_request":
		s.reply(from, m, ok("history", []any{}))
	case "comm_info_request":
		s.reply(from, m, ok("comms", map[string]any{}))
	case "comm_open": // no widgets: they would run in the browser
		var in struct {
			ID string `json:"comm_id"`
		}
		_ = json.Unmarshal(m.content, &in)
		s.publish(m, "comm_close", map[string]any{"comm_id": in.ID, "data": map[string]any{}}, false)
	case "shutdown_request":
		s.shutdown(from, m)
	}
	return nil
}

// controlled handles a request of the control channel, while code runs, too.
func (s *server) controlled(m *message) {
	switch m.kind {
	case "interrupt_request":
		wake(s.interrupts)
		s.publish(m, "status", map[string]any{"execution_state": "busy"}, false)
		s.reply(s.control, m, ok("", nil))
		s.publish(m, "status", map[string]any{"execution_state": "idle"}, false)
	case "shutdown_request", "kernel_info_request":
		_ = s.answer(s.control, m)
	}
}

func (s *server) shutdown(from *zmtp.Socket, m *message) {
	var in struct {
		Restart bool `json:"restart"`
	}
	_ = json.Unmarshal(m.content, &in)
	s.publish(m, "shutdown_reply", ok("restart", in.Restart), false)
	s.reply(from, m, ok("restart", in.Restart))
	s.stop(errShutdown)
}

// interrupted sends interrupts to Python.
func (s *server) interrupted() {
	for {
		select {
		case <-s.interrupts:
		case <-s.Interrupts:
		case <-s.ctx.Done():
			return
		}
		select {
		case <-s.started:
			if s.python != nil {
				_ = s.python.Signal(syscall.SIGINT)
			}
		default: // nothing runs yet
		}
	}
}

// takeInput takes an answer to input().
func (s *server) takeInput(m *message) {
	var in struct {
		Value string `json:"value"`
	}
	s.mu.Lock()
	expected := m.kind == "input_reply" && s.asked != "" && s.asked == m.peer
	if expected {
		s.asked = ""
	}
	s.mu.Unlock()
	if !expected || json.Unmarshal(m.content, &in) != nil {
		return
	}
	select {
	case s.inputs <- in.Value:
	default:
	}
}

// information describes the kernel. The version of Python is that of the machine, if it runs already.
func (s *server) information() map[string]any {
	version := "3"
	select {
	case <-s.started:
		if s.version != "" {
			version = s.version
		}
	default:
	}
	info := ok("protocol_version", protocol)
	info["implementation"], info["implementation_version"] = "unitask", s.Version
	info["banner"] = "Python " + version + " in a machine of unitask " + s.Version
	info["help_links"] = []any{}
	info["language_info"] = map[string]any{"name": "python", "version": version, "mimetype": "text/x-python",
		"file_extension": ".py", "pygments_lexer": "ipython3", "nbconvert_exporter": "python",
		"codemirror_mode": map[string]any{"name": "ipython", "version": 3}}
	return info
}

// ok is the content of a reply, with one member beside its status if it has a name.
func ok(name string, value any) map[string]any {
	content := map[string]any{"status": "ok"}
	if name != "" {
		content[name] = value
	}
	return content
}

// failure is the content of a reply to a request that failed.
func failure(name, value string) map[string]any {
	return map[string]any{"status": "error", "ename": name, "evalue": value, "traceback": []string{name + ": " + value}}
}

// reply answers a request.
func (s *server) reply(from *zmtp.Socket, m *message, content any) {
	kind := m.kind
	if n := len(kind) - len("_request"); n > 0 && kind[n:] == "_request" {
		kind = kind[:n]
	}
	frames, err := s.encode(s.session, kind+"_reply", m.header, content)
	if err != nil { // the client waits for an answer
		frames, err = s.encode(s.session, kind+"_reply", m.header, failure("ValueError", err.Error()))
	}
	if err == nil {
		from.Send(m.peer, frames)
	}
}

// publish sends a message to all clients. Output may be dropped for those that read too slowly; lost reports it.
func (s *server) publish(parent *message, kind string, content any, mayDrop bool) (lost bool) {
	var of json.RawMessage
	if parent != nil {
		of = parent.header
	}
	frames, err := s.encode(s.session, kind, of, content)
	if err != nil {
		return mayDrop
	}
	return s.iopub.Publish(append(zmtp.Message{[]byte("kernel." + s.session + "." + kind)}, frames...), mayDrop)
}
