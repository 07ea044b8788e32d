// Package codexexec serves the protocol by which Codex runs its commands elsewhere (exec-server, JSON-RPC on two
// pipes), with a session's machine. A connection has one session. It reads no file of the host and starts no program
// there. The codex-exec command calls it.
package codexexec

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/unitask/unitask/session"
)

// Options configure a connection.
type Options struct {
	// Start starts the session. It is called at once, in a goroutine; calls of the client wait for it.
	Start func(context.Context) (*session.Session, error)
	// Host and Guest are the project's folder on the host and in the machine. A path below Host means that below Guest.
	// RealHost is Host with its links resolved: a client may have started in either. Host "" means no project.
	Host, RealHost, Guest string
	Shell                 string // the shell's path in the machine
}

// Limits of a connection.
const (
	MaxMessage   = 64 << 20 // bytes of a message: the most that Codex' own server takes
	maxCalls     = 64       // at once
	maxAnswers   = 64       // messages that wait for the client to read
	maxProcesses = 64       // that run, or whose output is kept
	maxOutput    = 1 << 20  // bytes of output kept of each process: as Codex' own server
	maxChunks    = 8 << 10  // pieces of that output: a process may print single bytes
	maxInput     = 4 << 20  // bytes that wait for a process to read
	maxHandles   = 128      // open files
	maxRead      = 32 << 20 // bytes of a file in one answer: base64 of it fits a message
	maxBlock     = 1 << 20  // bytes of a block of an open file
	maxName      = 256      // bytes of an id

	writeTime = 2 * time.Second // for the last messages, at the end
)

// Codes of errors, as Codex' own server has them.
const (
	codeRequest  = -32600
	codeMethod   = -32601
	codeParams   = -32602
	codeInternal = -32603
	codeMissing  = -32004
)

// callError is an error in the protocol's terms.
type callError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *callError) Error() string { return e.Message }

func fail(code int, format string, args ...any) error {
	return &callError{code, fmt.Sprintf(format, args...)}
}

// message is a request or a notification of the client.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
}

// parse reads a message.
func parse(line []byte) (m message, err error) {
	line = bytes.TrimSpace(line)
	if len(line) > 0 && line[0] == '[' {
		return m, fail(codeRequest, "a batch: send its messages one by one")
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return message{}, fail(codeRequest, "no JSON-RPC message: %v", err)
	}
	if string(m.ID) == "null" {
		m.ID = nil
	}
	if len(m.ID) > maxName || len(m.ID) > 0 && bytes.ContainsAny(m.ID[:1], "{[tf") {
		return message{}, fail(codeRequest, "the id must be a number or a text of %d bytes at most", maxName)
	}
	if m.Method == "" || len(m.Method) > maxName {
		return message{ID: m.ID}, fail(codeRequest, "the message has no method")
	}
	return m, nil
}

// params reads a request's parameters.
func params[T any](m message) (p T, err error) {
	if len(m.Params) == 0 {
		return p, fail(codeParams, "%s: params are missing", m.Method)
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return p, fail(codeParams, "%s: %v", m.Method, err)
	}
	return p, nil
}

// answer is a message to the client. sent, if not nil, is called when it is written.
type answer struct {
	line []byte
	sent func()
}

// server is a connection.
type server struct {
	Options
	ctx     context.Context
	stop    context.CancelFunc
	answers chan answer
	working sync.WaitGroup
	calls   chan struct{} // an element for each call
	large   chan struct{} // an element for each call with a large message or answer

	started chan struct{} // closed when session and err are set
	session *session.Session
	err     error

	initialized bool // only the reader uses it

	mu        sync.Mutex
	processes map[string]*process
	order     []*process        // the oldest first
	handles   map[string]string // open files, by the client's names for them
}

// Serve serves one client until its input ends, or ctx does. Then the processes are gone, and the session, which stays,
// is returned; it is nil if it did not start.
func Serve(ctx context.Context, opts Options, in io.Reader, out io.Writer) (*session.Session, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	s := &server{Options: opts, ctx: ctx, stop: stop, answers: make(chan answer, maxAnswers),
		calls: make(chan struct{}, maxCalls), large: make(chan struct{}, 2), started: make(chan struct{}),
		processes: map[string]*process{}, handles: map[string]string{}}
	go func() {
		defer close(s.started)
		s.session, s.err = opts.Start(ctx)
	}()
	written := make(chan error, 1)
	go func() { written <- s.write(out) }()
	lines, ended := make(chan []byte), make(chan error, 1)
	go func() { ended <- s.read(in, lines) }() // a Read of a pipe can't be interrupted: it may outlive us
	err := s.serve(lines, ended)
	stop()
	<-s.started
	s.working.Wait()
	close(s.answers)
	select {
	case e := <-written:
		err = cmp.Or(err, e)
	case <-time.After(writeTime): // the client does not read
	}
	if s.session == nil {
		err = errors.Join(err, s.err)
	}
	return s.session, err
}

// read sends the lines of the input.
func (s *server) read(in io.Reader, lines chan<- []byte) error {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, MaxMessage)
	for scanner.Scan() {
		if len(bytes.TrimSpace(scanner.Bytes())) == 0 {
			continue
		}
		select {
		case lines <- bytes.Clone(scanner.Bytes()):
		case <-s.ctx.Done():
			return nil
		}
	}
	return scanner.Err()
}

func (s *server) serve(lines <-chan []byte, ended <-chan error) error {
	for {
		select {
		case line := <-lines:
			s.take(line)
		case err := <-ended:
			if errors.Is(err, bufio.ErrTooLong) {
				s.answer(nil, nil, fail(codeRequest, "a message has over %d bytes", MaxMessage))
			}
			return err
		case <-s.ctx.Done():
			return nil
		}
	}
}

// write writes what is to be sent. If the client reads no more, the connection ends.
func (s *server) write(out io.Writer) error {
	var err error
	for a := range s.answers {
		if err == nil {
			if _, err = out.Write(append(a.line, '\n')); err != nil {
				s.stop()
			}
		}
		if a.sent != nil {
			a.sent()
		}
	}
	return err
}

// send queues a message; it is dropped when the connection has ended.
func (s *server) send(v any, sent func()) {
	line, err := json.Marshal(v)
	if err != nil {
		line = []byte(`{"id":-1,"error":{"code":-32603,"message":"the answer can't be written"}}`)
	}
	select {
	case s.answers <- answer{line, sent}:
	case <-s.ctx.Done():
	}
}

// answer answers a request; without an id, as Codex' own server, the id -1.
func (s *server) answer(id json.RawMessage, result any, err error) {
	s.answerLarge(id, result, err, nil)
}

// answerLarge is answer, and calls sent when the answer is written.
func (s *server) answerLarge(id json.RawMessage, result any, err error, sent func()) {
	if len(id) == 0 {
		id = json.RawMessage("-1")
	}
	if err == nil {
		s.send(map[string]any{"id": id, "result": result}, sent)
		return
	}
	told := &callError{codeInternal, err.Error()}
	_ = errors.As(err, &told)
	s.send(map[string]any{"id": id, "error": told}, sent)
}

// notify sends a notification.
func (s *server) notify(method string, params any) {
	s.send(map[string]any{"method": method, "params": params}, nil)
}

// take handles a message: at once if it can't take long, otherwise in a goroutine.
func (s *server) take(line []byte) {
	m, err := parse(line)
	switch {
	case err != nil:
		s.answer(m.ID, nil, err)
		return
	case len(m.ID) == 0:
		if m.Method != "initialized" {
			s.answer(nil, nil, fail(codeRequest, "unknown notification %.80q", m.Method))
		}
		return
	case m.Method == "initialize":
		result, err := s.initialize(m)
		s.answer(m.ID, result, err)
		return
	case !s.initialized:
		s.answer(m.ID, nil, fail(codeRequest, "%.80q: call initialize first", m.Method))
		return
	case m.Method == "process/write": // in the order of arrival
		result, err := s.writeInput(m)
		s.answer(m.ID, result, err)
		return
	}
	does, known := methods[m.Method]
	if !known {
		s.answer(m.ID, nil, fail(codeMethod, "unitask does not implement %.80q", m.Method))
		return
	}
	select {
	case s.calls <- struct{}{}:
	default:
		s.answer(m.ID, nil, fail(codeInternal, "%d calls are running: try again", maxCalls))
		return
	}
	var sent func() // until then a large answer uses memory
	if len(line) > maxBlock*2 || m.Method == "fs/readFile" || m.Method == "fs/walk" {
		select {
		case s.large <- struct{}{}:
			sent = func() { <-s.large }
		case <-s.ctx.Done():
			return
		}
	}
	s.working.Go(func() {
		result, err := s.call(does, m)
		if !errors.Is(err, errAnswered) {
			s.answerLarge(m.ID, result, err, sent)
		} else if sent != nil {
			sent()
		}
		<-s.calls
	})
}

// method handles a request in a session.
type method = func(*server, *session.Session, message) (any, error)

// methods are those that need the session.
var methods = map[string]method{
	"process/start": (*server).start, "process/read": (*server).readProcess, "process/signal": (*server).signal,
	"process/terminate": (*server).terminate, "environment/info": (*server).environment,
	"fs/readFile": (*server).readFile, "fs/open": (*server).open, "fs/readBlock": (*server).readBlock,
	"fs/close": (*server).close, "fs/writeFile": (*server).writeFile, "fs/createDirectory": (*server).makeDir,
	"fs/getMetadata": (*server).metadata, "fs/canonicalize": (*server).canonicalize, "fs/readDirectory": (*server).list,
	"fs/walk": (*server).walk, "fs/remove": (*server).remove, "fs/copy": (*server).copy,
	"http/request": (*server).request,
}

// call waits for the session and handles a request.
func (s *server) call(does method, m message) (any, error) {
	select {
	case <-s.started:
	case <-s.ctx.Done():
		return nil, fail(codeInternal, "the connection has ended")
	}
	if s.err != nil {
		return nil, fail(codeInternal, "the machine did not start: %v", s.err)
	}
	return does(s, s.session, m)
}

func (s *server) initialize(m message) (any, error) {
	p, err := params[struct {
		ClientName      string `json:"clientName"`
		ResumeSessionID string `json:"resumeSessionId"`
	}](m)
	if err != nil {
		return nil, err
	}
	if p.ResumeSessionID != "" {
		return nil, fail(codeRequest, "unknown session id %.80q: a session ends with its connection", p.ResumeSessionID)
	}
	if s.initialized {
		return nil, fail(codeRequest, "initialize may only be sent once per connection")
	}
	s.initialized = true
	info, err := s.environment(nil, m)
	return map[string]any{"sessionId": "unitask", "environmentInfo": info}, err
}

// request refuses HTTP requests from outside of a process: the netlog would not say whose they are.
func (s *server) request(*session.Session, message) (any, error) {
	return nil, fail(codeRequest, "http/request: only processes of the machine have its network, under its policy")
}
