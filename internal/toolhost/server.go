package toolhost

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/policy"
)

const (
	startTime   = 60 * time.Second       // of a server, until it has listed its tools; npx and uvx may install it first
	wrapTime    = 10 * time.Minute       // of a server's machine; packages may be installed first
	endTime     = 300 * time.Millisecond // for a server to end by itself
	maxStarts   = 3                      // of a server in a run
	lineReserve = 256 << 10              // of a message, beside the result
	maxMessages = 10_000                 // of a server's process since a call began
	maxStream   = 64 << 20               // bytes that a server over HTTP sends beside its answers
)

// server is one server of a run. It starts with the first call.
type server struct {
	*policy.ToolServer
	own   *sdk.Server // the embedding program's; nil for others
	wrap  Wrap
	list  *List
	calls atomic.Int64

	mu      sync.Mutex
	conn    *connection // nil while it does not run
	starts  int
	changed bool // its list was changed: it is not used any more
	closed  bool
}

// connection is a running server.
type connection struct {
	session *sdk.ClientSession
	large   *atomic.Bool  // an answer was too large
	left    *atomic.Int64 // messages that the process may send; a call begins anew
	stale   atomic.Bool   // the server says that its list has changed
	gone    chan struct{}
	end     func()
}

// connected returns the connection of the server, which is started if it does not run.
func (s *server) connected(ctx context.Context) (*connection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		select {
		case <-s.conn.gone:
			s.conn.end()
			s.conn = nil
		default:
		}
	}
	switch {
	case s.closed:
		return nil, fail("cut", "the run has ended")
	case s.changed:
		return nil, s.listChanged()
	case s.conn != nil:
		return s.reviewed(ctx)
	case s.starts == maxStarts:
		return nil, fail("server", "the server %s has ended %d times in this run, and is not started again", s.Name,
			maxStarts)
	}
	s.starts++
	c, list, err := s.start(ctx)
	if err != nil {
		return nil, fail("server", "the server %s did not start: %v", s.Name, err)
	}
	if list.Digest() != s.Pin {
		s.changed = true
		c.end()
		return nil, s.listChanged()
	}
	s.conn = c
	return c, nil
}

func (s *server) start(ctx context.Context) (*connection, *List, error) {
	if s.own != nil {
		return connectOwn(ctx, s.own)
	}
	return connect(ctx, s.ToolServer, nil, s.wrap)
}

func (s *server) listChanged() error {
	if s.own != nil {
		return fail("changed", "the program has changed the list of tools of %s during the run", s.Name)
	}
	return changed(s.Name)
}

func changed(name string) error {
	return fail("changed", "the server %s has another list of tools than the one that was reviewed: unitask tools pin %s",
		name, name)
}

// reviewed returns the running connection. If the server says that its list has changed, the list is read again; a
// server with another list than the reviewed one is closed. The caller holds s.mu.
func (s *server) reviewed(ctx context.Context) (*connection, error) {
	if !s.conn.stale.Swap(false) {
		return s.conn, nil
	}
	timed, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	list, err := s.conn.fetchList(timed)
	if err != nil {
		s.conn.stale.Store(true)
		return nil, fail("server", "the server %s does not tell its tools: %s", s.Name, cut(err.Error(), maxKeptError))
	}
	if list.Digest() != s.Pin {
		s.changed = true
		s.conn.end()
		s.conn = nil
		return nil, s.listChanged()
	}
	return s.conn, nil
}

// endAfter ends the connection if its user does not return soon after the end of ctx. A write to a server that does not
// read ignores its context. The user calls returned when it has returned.
func (c *connection) endAfter(ctx context.Context) (returned func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-done:
		case <-time.After(endTime):
			c.end()
		}
	})
	return func() {
		close(done)
		stop()
	}
}

func (s *server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.conn != nil {
		s.conn.end()
		s.conn = nil
	}
}

// connect starts a server, or connects to it, and asks for its list of tools.
func connect(ctx context.Context, s *policy.ToolServer, stderr io.Writer, wrap Wrap) (*connection, *List, error) {
	c := newConnection()
	var transport sdk.Transport
	var stop func()
	most := int(s.MaxResult) + lineReserve
	if s.URL != "" {
		next := http.DefaultTransport.(*http.Transport).Clone()
		stop = next.CloseIdleConnections
		transport = &sdk.StreamableClientTransport{Endpoint: s.URL, MaxRetries: -1, MaxEventSize: 2 * most,
			HTTPClient: &http.Client{Transport: &limitedHTTP{token: os.Getenv(s.TokenEnv), most: int64(most), over: c.large,
				next: next},
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	} else {
		start := startProcess
		if s.Wrap {
			start = wrap.start
		}
		p, err := start(ctx, s, stderr)
		if err != nil {
			return nil, nil, err
		}
		stop = p.End
		transport = &sdk.IOTransport{Writer: p.Stdin, MaxLineLength: most,
			Reader: &lines{ReadCloser: p.Stdout, most: most, over: c.large, left: c.left}}
	}
	return c.open(ctx, transport, stop)
}

// connectOwn connects to a server of the embedding program, and asks for its list of tools.
func connectOwn(ctx context.Context, own *sdk.Server) (*connection, *List, error) {
	ours, its := sdk.NewInMemoryTransports()
	served, err := own.Connect(context.WithoutCancel(ctx), its, nil)
	if err != nil {
		return nil, nil, err
	}
	c, list, err := newConnection().open(ctx, ours, func() { _ = served.Close() })
	if err == nil {
		end := c.end
		c.end = func() { // nobody can end a handler that goes on: it is not waited for
			ended := make(chan struct{})
			go func() {
				end()
				close(ended)
			}()
			select {
			case <-ended:
			case <-time.After(2 * endTime):
			}
		}
	}
	return c, list, err
}

func newConnection() *connection {
	c := &connection{large: new(atomic.Bool), left: new(atomic.Int64), gone: make(chan struct{})}
	c.left.Store(maxMessages)
	return c
}

// open begins the session, and asks for the server's list of tools. stop ends what the transport uses.
func (c *connection) open(ctx context.Context, transport sdk.Transport, stop func()) (*connection, *List, error) {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	client := sdk.NewClient(&sdk.Implementation{Name: "unitask", Version: "1"}, &sdk.ClientOptions{
		Capabilities:           &sdk.ClientCapabilities{}, // neither roots, nor sampling, nor elicitation
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { c.stale.Store(true) },
	})
	session, err := client.Connect(ctx, transport, nil)
	if err != nil {
		stop()
		return nil, nil, err
	}
	c.session = session
	go func() {
		_ = session.Wait()
		close(c.gone)
	}()
	c.end = sync.OnceFunc(func() {
		closed := make(chan struct{})
		go func() {
			_ = session.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(endTime):
		}
		stop()
		<-closed
	})
	list, err := c.fetchList(ctx)
	if err != nil {
		c.end()
		return nil, nil, err
	}
	return c, list, nil
}

// limitedHTTP adds the token to requests, and bounds answers.
type limitedHTTP struct {
	token string
	most  int64
	over  *atomic.Bool
	next  http.RoundTripper
}

func (l *limitedHTTP) RoundTrip(req *http.Request) (*http.Response, error) {
	if l.token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+l.token)
	}
	res, err := l.next.RoundTrip(req)
	if err == nil && req.Method == http.MethodPost {
		res.Body = &bounded{ReadCloser: res.Body, left: l.most, over: l.over}
	} else if err == nil { // a stream of events
		res.Body = &bounded{ReadCloser: res.Body, left: maxStream, over: new(atomic.Bool)}
	}
	return res, err
}

// bounded ends with an error after some bytes.
type bounded struct {
	io.ReadCloser
	left int64
	over *atomic.Bool
}

var errLarge = errors.New("the answer is too large")

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		b.over.Store(true)
		return 0, errLarge
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// lines ends with an error in a line that is too long, or after too many.
type lines struct {
	io.ReadCloser
	most, line int
	over       *atomic.Bool
	left       *atomic.Int64
}

func (l *lines) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	for _, c := range p[:n] {
		if l.line++; c == '\n' {
			l.line = 0
			if l.left.Add(-1) < 0 {
				return 0, fmt.Errorf("the server sent more than %d messages", maxMessages)
			}
		}
	}
	if l.line > l.most {
		l.over.Store(true)
		return 0, errLarge
	}
	return n, err
}

// Process is a server's process. End ends it, and returns when it is gone; it may be called more than once.
type Process struct {
	Stdin  io.WriteCloser
	Stdout io.ReadCloser
	End    func()
}

// Wrap starts a server in a machine of its own. The context bounds the start only. stderr may be nil.
type Wrap func(ctx context.Context, s *policy.ToolServer, stderr io.Writer) (*Process, error)

// start starts a server with a time limit.
func (w Wrap) start(ctx context.Context, s *policy.ToolServer, stderr io.Writer) (*Process, error) {
	if w == nil {
		return nil, errors.New("no machine can start here: wrap = true needs one")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wrapTime, fmt.Errorf("its machine did not start within %s", wrapTime))
	defer cancel()
	return w(ctx, s, stderr)
}

// startProcess starts a server's command in a process group of its own, without a shell.
func startProcess(_ context.Context, s *policy.ToolServer, stderr io.Writer) (*Process, error) {
	program, err := exec.LookPath(s.Command[0])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Command[0], errors.Unwrap(err))
	}
	dir, remove := s.Dir, func() {}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "unitask-tools-"); err != nil {
			return nil, err
		}
		remove = func() { _ = os.RemoveAll(dir) }
	}
	cmd := exec.Command(program, s.Command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, environment(s), stderr
	cmd.SysProcAttr = attributes()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		var stdout io.ReadCloser
		if stdout, err = cmd.StdoutPipe(); err == nil {
			p := &Process{Stdin: stdin, Stdout: stdout}
			if err = p.run(cmd, remove); err == nil {
				return p, nil
			}
		}
	}
	remove()
	return nil, err
}

// run starts the command, on a thread that lives as long as the process: the kernel kills it when that thread ends.
func (p *Process) run(cmd *exec.Cmd, remove func()) error {
	started, ended := make(chan error), make(chan struct{})
	go func() {
		lockThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_, _ = cmd.Process.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.End = sync.OnceFunc(func() {
		_ = p.Stdin.Close()
		select {
		case <-ended:
		case <-time.After(endTime):
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the group: also what the server started
		_ = cmd.Process.Kill()                              // if it has left its group
		<-ended
		_ = p.Stdout.Close()
		remove()
	})
	return nil
}

// passed are the variables that every server gets.
var passed = []string{"PATH", "HOME", "LANG", "TMPDIR", "USER"}

func environment(s *policy.ToolServer) []string {
	env := []string{}
	for _, name := range append(append([]string{}, passed...), s.PassEnv...) {
		if value, ok := os.LookupEnv(name); ok && s.Env[name] == "" {
			env = append(env, name+"="+value)
		}
	}
	for name, value := range s.Env {
		env = append(env, name+"="+value)
	}
	return env
}

func readAll(r io.Reader, most int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(bufio.NewReader(r), most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("has more than %d bytes", most)
	}
	return text, err
}
