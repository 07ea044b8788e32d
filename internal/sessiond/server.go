package sessiond

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/accepting"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/machine"
)

// ErrRuns means that a daemon runs already.
var ErrRuns = errors.New("a process that holds sessions runs already")

// Bounds of a daemon.
const (
	maxClients = 256  // connections at once
	maxFiles   = 4    // operations on files at once: each may have a file in memory
	maxLarge   = 4    // steps with large code at once: the code is in memory
	maxAway    = 100  // sessions that an earlier daemon has left
	maxListed  = 1000 // entries of a folder in an answer
)

// Daemon holds the sessions of its user.
type Daemon struct {
	rt      *unitask.Runtime
	home    string
	dir     string
	files   chan struct{}
	large   chan struct{}
	leave   context.CancelFunc
	clients sync.WaitGroup // connections
	ends    sync.WaitGroup // sessions

	mu       sync.Mutex
	sessions map[string]*held         // by id
	names    map[string]bool          // taken, also by sessions that are starting
	away     []View                   // paused or lost sessions that nobody holds
	reviving map[string]chan struct{} // sessions that resume, by id; closed at the end
	busy     int                      // connections, and sessions that are starting
	since    time.Time                // when the last thing ended
	ending   bool
}

// held is a live session.
type held struct {
	*unitask.Session
	view View
}

// Serve holds sessions of a runtime until ctx ends, or until there has been no session and no request for
// idle. It closes the runtime, which ends the sessions.
func Serve(ctx context.Context, home string, rt *unitask.Runtime, idle time.Duration) error {
	dir, err := folder(home)
	if err != nil {
		return err
	}
	lock, err := filelock.Try(filepath.Join(dir, lockName))
	if errors.Is(err, filelock.ErrHeld) {
		return ErrRuns
	}
	if err != nil {
		return err
	}
	defer lock.Unlock()
	sweep(home, dir, rt.Runs())
	h := &Daemon{rt: rt, home: home, dir: dir, files: make(chan struct{}, maxFiles), large: make(chan struct{}, maxLarge),
		sessions: map[string]*held{}, names: map[string]bool{}, reviving: map[string]chan struct{}{}, since: time.Now(),
		away: left(home, dir)}
	for _, v := range h.away {
		h.names[v.Name] = true
	}
	l, err := listen(dir)
	if err != nil {
		return err
	}
	ctx, h.leave = context.WithCancel(ctx)
	defer h.leave()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	go h.sleep(ctx, idle)
	h.accept(ctx, l.AcceptUnix)
	h.leave()
	h.clients.Wait()
	h.park()
	err = rt.Close()
	h.ends.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep()
	_ = os.Remove(filepath.Join(dir, socketName))
	return err
}

// parkPatience bounds the time for pausing the sessions when the daemon ends.
const parkPatience = 20 * time.Second

// park pauses every session that it can: the next daemon continues them.
func (h *Daemon) park() {
	ctx, cancel := context.WithTimeout(context.Background(), parkPatience)
	defer cancel()
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.sessions))
	h.mu.Unlock()
	var pausing sync.WaitGroup
	for _, s := range all {
		pausing.Go(func() { _ = s.Pause(ctx) }) // a session that can't be paused ends
	}
	pausing.Wait()
}

// sleep ends the daemon when it has had nothing to do for a while.
func (h *Daemon) sleep(ctx context.Context, idle time.Duration) {
	for ctx.Err() == nil {
		h.mu.Lock()
		left := idle
		if len(h.sessions) == 0 && h.busy == 0 {
			left = idle - time.Since(h.since)
		}
		if _, err := os.Lstat(filepath.Join(h.dir, socketName)); errors.Is(err, fs.ErrNotExist) {
			left = 0 // nobody can ask any more
		}
		h.ending = left <= 0
		h.mu.Unlock()
		if left <= 0 {
			h.leave()
			return
		}
		select {
		case <-time.After(max(left, 10*time.Millisecond)):
		case <-ctx.Done():
		}
	}
}

// accept serves the clients from next, a listener's method, until the listener is closed.
func (h *Daemon) accept(ctx context.Context, next func() (*net.UnixConn, error)) {
	for {
		conn, err := accepting.Next(next)
		if err != nil {
			return
		}
		if ctx.Err() != nil {
			conn.Close()
			return
		}
		h.mu.Lock()
		full := h.busy >= maxClients || h.ending
		if !full {
			h.busy++
		}
		h.mu.Unlock()
		if full || localsocket.SameUser(conn) != nil {
			conn.Close()
			if !full {
				h.done()
			}
			continue
		}
		h.clients.Go(func() {
			defer h.done()
			defer conn.Close()
			h.serve(ctx, &wire{Conn: conn})
		})
	}
}

func (h *Daemon) done() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.busy--
	h.since = time.Now()
}

// serve answers one connection.
func (h *Daemon) serve(ctx context.Context, w *wire) {
	if w.send(kindGreeting, []byte(version)) != nil {
		return
	}
	_ = w.SetReadDeadline(time.Now().Add(patience))
	stop := context.AfterFunc(ctx, func() { _ = w.Close() }) // a client that sends nothing must not delay the end
	_, text, err := w.receive(string(rune(kindRequest)))
	if !stop() || err != nil {
		return
	}
	_ = w.SetReadDeadline(time.Time{})
	var req Request
	if err := json.Unmarshal(text, &req); err != nil {
		_ = w.sendJSON(kindAnswer, Answer{Error: &Error{Code: CodeUsage, Message: "the request is not one: " + err.Error()}})
		return
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	c := &client{wire: w, input: make(chan []byte, 1), resized: make(chan unitask.TerminalSize, 1), ctx: ctx,
		cancel: cancel}
	var reading sync.WaitGroup
	reading.Go(c.read)
	answer, err := h.do(ctx, c, req)
	if err != nil {
		answer.Error = WireError(err)
	}
	if answer.Result != nil {
		brief := *answer.Result
		brief.Stdout, brief.Stderr = nil, nil
		answer.Result = &brief
	}
	if err := w.sendJSON(kindAnswer, answer); err != nil {
		_ = w.sendJSON(kindAnswer, Answer{Error: &Error{Code: CodeFailed, Message: err.Error()}})
	}
	cancel(nil)
	w.Close()
	reading.Wait()
}

// client is the client of a request, and a reader of its input. It hides its connection's methods: whoever ends a read
// of the input must not end the connection.
type client struct {
	wire    *wire
	input   chan []byte
	rest    []byte
	taken   bool // the client does not know yet that rest's piece was taken
	ended   bool // the input has ended
	resized chan unitask.TerminalSize
	ctx     context.Context
	cancel  context.CancelCauseFunc
}

// codePatience bounds the time for receiving the code of a large step.
const codePatience = 2 * time.Minute

var errLate = fmt.Errorf("the step's code did not come within %s", codePatience)

// errLeft means that the command line has gone away.
var errLeft = errors.New("the command line has gone away")

// read receives the client's frames until the client goes away. It waits for nobody else, so it notices
// that.
func (c *client) read() {
	for {
		kind, text, err := c.wire.receive(string([]rune{kindInput, kindResize}))
		var size unitask.TerminalSize
		switch {
		case err != nil:
			err = errLeft
		case kind == kindInput:
			select {
			case c.input <- text:
			default:
				err = errFrame // the client had to wait
			}
		case json.Unmarshal(text, &size) != nil:
			err = errFrame
		default:
			select { // only the newest counts
			case <-c.resized:
			default:
			}
			c.resized <- size
		}
		if err != nil {
			c.cancel(err)
			return
		}
	}
}

// Read returns the input.
func (c *client) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if c.ended {
			return 0, io.EOF
		}
		if c.taken {
			c.taken = false
			if err := c.wire.send(kindTaken, nil); err != nil {
				return 0, err
			}
		}
		select {
		case c.rest = <-c.input:
			c.ended = len(c.rest) == 0
			c.taken = !c.ended
		case <-c.ctx.Done():
			return 0, io.EOF
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *client) out(kind byte) io.Writer { return stream{c.wire, kind, c.cancel} }

func (h *Daemon) do(ctx context.Context, c *client, req Request) (Answer, error) {
	switch req.Op {
	case OpNew:
		return h.begin(ctx, req.New)
	case OpList:
		return Answer{Sessions: h.list()}, nil
	case OpEnd:
		return Answer{}, h.end(req.Session)
	case OpWait, OpStop:
		return h.behind(ctx, c, req)
	}
	s, err := h.reach(ctx, req.Session, req.Secrets)
	var elsewhere *machine.OtherHostError
	if errors.As(err, &elsewhere) {
		return Answer{}, h.rescue(c, req, err)
	}
	if err != nil {
		return Answer{}, err
	}
	switch {
	case req.Op == OpRun && req.Step != nil:
		return c.run(ctx, s, *req.Step)
	case req.Op == OpRunBy && req.Step != nil:
		return h.runBy(ctx, c, s, *req.Step)
	case req.Op == OpExec && req.Command != nil:
		r := req.Command
		cmd := unitask.Command{Args: r.Args, Dir: r.Dir, Env: r.Env, Timeout: time.Duration(r.TimeoutMS), Endless: r.Endless}
		if r.Detach {
			run, err := s.Start(ctx, cmd)
			return Answer{Run: run}, err
		}
		cmd.Stdout, cmd.Stderr = c.out(kindStdout), c.out(kindStderr)
		if r.Input {
			cmd.Stdin = c
		}
		if r.Size != nil {
			cmd.Terminal = &unitask.Terminal{Name: r.Terminal, Size: *r.Size, Resized: c.resized}
		}
		res, err := s.Exec(ctx, cmd)
		return Answer{Result: res}, err
	case req.Op == OpPause:
		return Answer{}, s.Pause(ctx)
	case req.Op == OpResume:
		return Answer{}, s.Resume(ctx)
	case req.Op == OpExtend:
		if err := s.Extend(ctx, time.Duration(req.LifeMS)); err != nil {
			return Answer{}, err
		}
		return Answer{Sessions: []View{h.extended(s)}}, nil
	case req.Op == OpFork:
		return h.fork(ctx, s, req.Count)
	case req.Op == OpForward:
		return Answer{}, forward(ctx, c, s, req.Ports)
	case req.Op == OpPut:
		return Answer{}, s.Put(ctx, req.Name, req.Value)
	case req.Op == OpGet && req.Name == "":
		names, more, err := s.Values(ctx)
		return Answer{Names: names, More: more}, err
	case req.Op == OpGet:
		value, err := s.Get(ctx, req.Name)
		return Answer{Value: value}, err
	case req.Op == OpFiles:
		files, more, err := s.List(ctx, req.Path, 1)
		some := listed(files)
		return Answer{Files: some, More: more || len(some) < len(files)}, err
	case slices.Contains([]string{OpRead, OpWrite, OpPack, OpUnpack, OpCopy, OpChanges}, req.Op):
		return Answer{}, h.file(ctx, c, s, req)
	}
	return Answer{}, &Error{Code: CodeUsage, Message: fmt.Sprintf("op %.40q is not one", req.Op)}
}

// listed returns the entries of a folder that fit in an answer. In JSON a byte may become six, and an entry has its
// folder's name.
func listed(files []unitask.SessionFile) []unitask.SessionFile {
	left := maxText / 2
	for i, f := range files {
		if left -= 6*len(f.Path) + 200; left < 0 || i == maxListed {
			return files[:i]
		}
	}
	return files
}

// run runs a step.
func (c *client) run(ctx context.Context, s *held, of Step) (Answer, error) {
	step := unitask.Step{Code: of.Code, Language: of.Language, Timeout: time.Duration(of.TimeoutMS)}
	step.Stdout, step.Stderr = c.out(kindStdout), c.out(kindStderr)
	res, err := s.Run(ctx, step)
	return Answer{Result: res}, err
}

// runBy runs a step whose code follows the request.
func (h *Daemon) runBy(ctx context.Context, c *client, s *held, step Step) (Answer, error) {
	select {
	case h.large <- struct{}{}:
		defer func() { <-h.large }()
	default:
		what := fmt.Sprintf("%d steps with more than %d KiB of code are under way", maxLarge, maxInline>>10)
		return Answer{}, &unitask.BusyError{What: what, After: time.Second}
	}
	late := time.AfterFunc(codePatience, func() { c.cancel(errLate) }) // a client that sends nothing must not delay others
	var text strings.Builder
	_, err := io.Copy(&text, io.LimitReader(c, unitask.MaxCode+1)) // one byte too many is refused
	late.Stop()
	if err == nil {
		err = context.Cause(ctx) // cut code must not run
	}
	if err != nil {
		return Answer{}, err
	}
	step.Code = text.String()
	return c.run(ctx, s, step)
}

// file reads or writes one of a session's files.
func (h *Daemon) file(ctx context.Context, c *client, s *held, req Request) error {
	select {
	case h.files <- struct{}{}:
		defer func() { <-h.files }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	switch req.Op {
	case OpCopy:
		to, err := h.reach(ctx, req.To, nil)
		if err != nil {
			return err
		}
		return s.Copy(ctx, req.Path, to.Session, req.ToPath)
	case OpChanges:
		err := s.Changes(ctx, req.Paths, req.Texts, c.out(kindStdout))
		if errors.Is(err, project.ErrNone) {
			err = &Error{Code: CodeUsage, Message: err.Error()}
		}
		return err
	case OpPack:
		return s.Pack(ctx, req.Path, c.out(kindStdout))
	case OpUnpack:
		return s.Unpack(ctx, req.Path, c)
	case OpRead:
		text, err := s.ReadFile(ctx, req.Path, 0, 0)
		if err == nil {
			_, err = c.out(kindStdout).Write(text)
		}
		return err
	}
	text, err := io.ReadAll(io.LimitReader(c, unitask.MaxSessionFile+1))
	if err == nil {
		err = context.Cause(ctx) // a cut file must not be written
	}
	if err != nil {
		return err
	}
	return s.WriteFile(ctx, req.Path, text, fs.FileMode(req.Mode).Perm())
}

// forward forwards ports for as long as the client stays connected.
func forward(ctx context.Context, c *client, s *held, ports []Port) error {
	for _, p := range ports {
		f, err := s.Forward(p.Guest, p.Host)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := fmt.Fprintf(c.out(kindStdout), "%s %d\n", f.Addr, f.Port); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.Done():
		return errGone(s.ID)
	}
}
