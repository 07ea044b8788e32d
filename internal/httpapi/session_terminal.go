package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/session"
)

// Limits of a terminal.
const (
	maxMessage   = 64 << 10         // bytes of a client's message
	maxUnread    = 1 << 20          // bytes that the client may leave unread
	messageBytes = 32 << 10         // of a message to the client
	messageTime  = 30 * time.Second // in which the client must take one
)

// outbox holds what a terminal prints until its client takes it. Writing never waits.
type outbox struct {
	mu    sync.Mutex
	text  []byte
	lost  bool          // the client took too little
	ended bool          // nothing more comes
	more  chan struct{} // has an element if there is something new
}

// errUnread means that a client reads too slowly.
var errUnread = errors.New("the terminal's client left too much unread")

func (o *outbox) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.wake()
	if len(o.text)+len(p) > maxUnread {
		o.text, o.lost = nil, true
	}
	if o.lost {
		return 0, errUnread
	}
	o.text = append(o.text, p...)
	return len(p), nil
}

func (o *outbox) wake() {
	select {
	case o.more <- struct{}{}:
	default:
	}
}

func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.wake()
}

// take removes what there is.
func (o *outbox) take() (text []byte, lost, ended bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	text, o.text = o.text, nil
	return text, o.lost, o.ended
}

// shell is the default command of a terminal.
var shell = []string{"/bin/sh", "-c", "exec $(command -v bash || echo /bin/sh)"}

// terminal is an open one.
type terminal struct {
	out   outbox
	in    *io.PipeWriter
	sizes chan unitask.TerminalSize
	typed atomic.Int64  // when the command last took input, in Unix nanoseconds; future while it has not
	over  chan struct{} // closed when res and err are there
	res   *unitask.Result
	err   error
}

func (s *Server) openTerminal(c *call) (*answer, error) {
	if !strings.EqualFold(c.r.Header.Get("Upgrade"), "websocket") {
		c.w.Header().Set("Upgrade", "websocket")
		return nil, &Problem{Status: http.StatusUpgradeRequired, Code: "usage",
			Detail: "the request does not ask for a WebSocket", Remedy: "connect with a WebSocket client"}
	}
	of, err := s.session(c)
	if err == nil {
		err = s.shared.Admit(c.caller)
	}
	if err != nil {
		return nil, err
	}
	leave, err := s.sessions.runs.take(c.caller.Name, maxRuns, maxRunsOf, "steps and commands that go on")
	if err != nil {
		return nil, err
	}
	defer leave()
	s.going.Add(1) // an HTTP server forgets about a connection that is a WebSocket
	defer s.going.Done()
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	t := &terminal{sizes: make(chan unitask.TerminalSize, 1), over: make(chan struct{})}
	if err := s.startTerminal(ctx, c, t, of); err != nil {
		return nil, err
	}
	defer func() { // before its place is free
		cancel()
		t.in.Close()
		<-t.over
	}()
	// The server has checked the origin, and knows others than its own. Accept answers if it fails.
	conn, err := websocket.Accept(c.w, c.r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return nil, nil
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(maxMessage)
	go func() {
		defer cancel()
		if err := t.receive(ctx, conn); err != nil {
			_ = conn.Close(websocket.StatusPolicyViolation, err.Error())
		}
	}()
	go func() {
		defer cancel()
		t.beat(ctx, conn)
	}()
	t.send(ctx, conn)
	return nil, nil
}

// beat returns when the client is lost: it does not answer pings, or its connection has gone. While the command takes
// no input, nobody reads the client's answers.
func (t *terminal) beat(ctx context.Context, conn *websocket.Conn) {
	beats := time.NewTicker(heartbeat)
	defer beats.Stop()
	for {
		select {
		case <-beats.C:
		case <-ctx.Done():
			return
		}
		asked := time.Now()
		timed, cancel := context.WithTimeout(ctx, messageTime)
		err := conn.Ping(timed)
		late := timed.Err() != nil
		cancel()
		if err != nil && !(late && t.typed.Load() > asked.UnixNano()) {
			return
		}
	}
}

// startTerminal starts a terminal's command, and returns once it runs.
func (s *Server) startTerminal(ctx context.Context, c *call, t *terminal, of *unitask.Session) error {
	t.out.more = make(chan struct{}, 1)
	size := terminalSize{Columns: uint16(c.number("columns", 80)), Rows: uint16(c.number("rows", 24))}
	from, in := io.Pipe()
	t.in = in
	begun := make(chan struct{})
	shown := of.RedactTo(&t.out)
	does := unitask.Command{Args: shell, User: c.text("user"), Endless: true, Terminal: size.terminal(), Stdin: from,
		Stdout: shown, Started: func(session.Running) { close(begun) }}
	does.Terminal.Resized = t.sizes
	if line := c.text("command"); line != "" {
		does.Args = []string{"/bin/sh", "-c", line}
	}
	go func() {
		defer close(t.over)
		t.res, t.err = s.recovering(func() (*unitask.Result, error) { return of.Exec(ctx, does) }, func(error) {})
		_ = from.CloseWithError(io.ErrClosedPipe)
		_ = shown.Close()
		t.out.end()
	}()
	select {
	case <-begun:
		return nil
	case <-t.over:
		select {
		case <-begun:
			return nil
		default:
		}
		if t.err == nil {
			return ended("the command ended before it began")
		}
		return t.err
	}
}

// receive passes on what the client sends, until it leaves. The error is about a message that is wrong.
func (t *terminal) receive(ctx context.Context, conn *websocket.Conn) error {
	for {
		kind, text, err := conn.Read(ctx)
		if err != nil {
			return nil
		}
		if kind == websocket.MessageBinary {
			t.typed.Store(math.MaxInt64)
			if _, err := t.in.Write(text); err != nil {
				return nil
			}
			t.typed.Store(time.Now().UnixNano())
			continue
		}
		var in struct {
			Resize []int `json:"resize"`
		}
		if err := json.Unmarshal(text, &in); err != nil || len(in.Resize) != 2 ||
			min(in.Resize[0], in.Resize[1]) < 1 || max(in.Resize[0], in.Resize[1]) > 10_000 {
			return errors.New(`a text message is {"resize":[columns,rows]}, each from 1 to 10000`)
		}
		select {
		case t.sizes <- unitask.TerminalSize{Columns: uint16(in.Resize[0]), Rows: uint16(in.Resize[1])}:
		case <-t.over:
		case <-ctx.Done():
		}
	}
}

// send sends what the terminal prints, until its command ends or the client leaves.
func (t *terminal) send(ctx context.Context, conn *websocket.Conn) {
	write := func(kind websocket.MessageType, text []byte) bool {
		timed, cancel := context.WithTimeout(ctx, messageTime)
		defer cancel()
		return conn.Write(timed, kind, text) == nil
	}
	for {
		text, lost, ended := t.out.take()
		if lost {
			_ = conn.Close(websocket.StatusPolicyViolation, errUnread.Error())
			return
		}
		for len(text) > 0 {
			n := min(len(text), messageBytes)
			if !write(websocket.MessageBinary, text[:n]) {
				return
			}
			text = text[n:]
		}
		if ended {
			code := -1
			if t.res != nil {
				code = t.res.ExitCode
			}
			last, _ := json.Marshal(map[string]int{"exitCode": code})
			write(websocket.MessageText, last)
			_ = conn.Close(websocket.StatusNormalClosure, "")
			return
		}
		select {
		case <-t.out.more:
		case <-ctx.Done():
			_ = conn.Close(websocket.StatusGoingAway, "")
			return
		}
	}
}
