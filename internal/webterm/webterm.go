// Package webterm is a terminal over a WebSocket. Binary messages are its bytes in both directions. The client's text
// messages are {"resize":[columns,rows]}, and {"taken":bytes} if the server waits for that. The last one to the client
// is {"exitCode":n}.
package webterm

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/unitask/unitask/run"
)

// Limits of a terminal.
const (
	// MaxMessage bounds a client's message, in bytes.
	MaxMessage   = 64 << 10
	maxUnread    = 1 << 20          // bytes that the client may leave unread
	messageBytes = 32 << 10         // of a message to the client
	messageTime  = 30 * time.Second // in which the client must take one
	beat         = 15 * time.Second // between pings
)

// Options are what servers do differently.
type Options struct {
	// Waits means that the command waits while its client is behind, as on a slow line. The client says what it has
	// taken. Otherwise a client that is too slow is disconnected.
	Waits bool
	// Idle ends a terminal whose client has sent nothing for so long; 0 means never.
	Idle time.Duration
	// Says sends an error of the command to the client.
	Says bool
}

// Streams are what a command has of its terminal.
type Streams struct {
	Stdin  io.Reader
	Stdout io.Writer
	Sizes  <-chan run.TerminalSize
	Begun  func() // to be called once when the command runs
}

// Terminal is an open one.
type Terminal struct {
	Options
	out   outbox
	in    *io.PipeWriter
	sizes chan run.TerminalSize
	typed atomic.Int64  // when the command last took input, in Unix nanoseconds; future while it has not
	seen  atomic.Int64  // when the client last sent something, in Unix nanoseconds
	taken atomic.Int64  // bytes that the client has said to have taken
	over  chan struct{} // closed when code and err are there
	code  int
	err   error
	end   context.CancelFunc
}

// ErrNotBegun means that a command ended before it began, without an error.
var ErrNotBegun = errors.New("the command ended before it began")

// Start starts a terminal's command, and returns once it runs. The command must end when its context does.
func Start(ctx context.Context, o Options, command func(context.Context, Streams) (exitCode int, err error)) (*Terminal,
	error) {
	ctx, cancel := context.WithCancel(ctx)
	from, in := io.Pipe()
	t := &Terminal{Options: o, in: in, sizes: make(chan run.TerminalSize, 1), over: make(chan struct{}), end: cancel,
		out: outbox{waits: o.Waits, more: make(chan struct{}, 1), room: make(chan struct{}, 1)}}
	t.seen.Store(time.Now().UnixNano())
	begun := make(chan struct{})
	go func() {
		defer close(t.over)
		t.code, t.err = command(ctx, Streams{from, &t.out, t.sizes, func() { close(begun) }})
		_ = from.CloseWithError(io.ErrClosedPipe)
		t.out.end()
	}()
	select {
	case <-begun:
		return t, nil
	case <-t.over:
	}
	cancel()
	select {
	case <-begun:
		return t, nil
	default:
	}
	if t.err == nil {
		return nil, ErrNotBegun
	}
	return nil, t.err
}

// End ends the command, and waits for its end.
func (t *Terminal) End() {
	t.end()
	t.out.leave()
	t.in.Close()
	<-t.over
}

// Serve accepts the WebSocket of a request, and serves it until the command ends or the client leaves. The caller has
// checked the origin.
func (t *Terminal) Serve(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true}) // it answers if it fails
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	conn.SetReadLimit(MaxMessage)
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
}

// beat returns when the client is lost: it does not answer pings, its connection has gone, or it sent nothing for long.
// While the command takes no input, nobody reads the client's answers.
func (t *Terminal) beat(ctx context.Context, conn *websocket.Conn) {
	every := beat
	if t.Idle > 0 {
		every = min(every, t.Idle)
	}
	beats := time.NewTicker(every)
	defer beats.Stop()
	for {
		select {
		case <-beats.C:
		case <-ctx.Done():
			return
		}
		asked := time.Now()
		if t.Idle > 0 && asked.Sub(time.Unix(0, t.seen.Load())) >= t.Idle {
			_ = conn.Close(websocket.StatusPolicyViolation, "nobody typed for "+t.Idle.String())
			return
		}
		timed, cancel := context.WithTimeout(ctx, messageTime)
		err := conn.Ping(timed)
		late := timed.Err() != nil
		cancel()
		if err != nil && !(late && t.typed.Load() > asked.UnixNano()) {
			return
		}
	}
}

// said is a client's text message.
type said struct {
	Resize []int `json:"resize"`
	Taken  int64 `json:"taken"`
}

// receive passes on what the client sends, until it leaves. The error is about a message that is wrong.
func (t *Terminal) receive(ctx context.Context, conn *websocket.Conn) error {
	for {
		kind, text, err := conn.Read(ctx)
		if err != nil {
			return nil
		}
		if kind == websocket.MessageBinary {
			t.seen.Store(time.Now().UnixNano())
			t.typed.Store(math.MaxInt64)
			if _, err := t.in.Write(text); err != nil {
				return nil
			}
			t.typed.Store(time.Now().UnixNano())
			continue
		}
		var in said
		if err := json.Unmarshal(text, &in); err == nil && t.Waits && in.Resize == nil && in.Taken > 0 {
			t.taken.Add(min(in.Taken, maxUnread))
			wake(t.out.more)
			continue
		} else if err != nil || len(in.Resize) != 2 || min(in.Resize[0], in.Resize[1]) < 1 ||
			max(in.Resize[0], in.Resize[1]) > 10_000 {
			return errors.New(`a text message is {"resize":[columns,rows]}, each from 1 to 10000`)
		}
		select {
		case t.sizes <- run.TerminalSize{Columns: uint16(in.Resize[0]), Rows: uint16(in.Resize[1])}:
		case <-t.over:
		case <-ctx.Done():
		}
	}
}

// send sends what the terminal prints, until its command ends or the client leaves.
func (t *Terminal) send(ctx context.Context, conn *websocket.Conn) {
	write := func(kind websocket.MessageType, text []byte) bool {
		timed, cancel := context.WithTimeout(ctx, messageTime)
		defer cancel()
		return conn.Write(timed, kind, text) == nil
	}
	for sent := int64(0); ; {
		var text []byte
		var lost, ended bool
		if !t.Waits || sent-t.taken.Load() < maxUnread {
			text, lost, ended = t.out.take()
		}
		if lost {
			_ = conn.Close(websocket.StatusPolicyViolation, errUnread.Error())
			return
		}
		sent += int64(len(text))
		for len(text) > 0 {
			n := min(len(text), messageBytes)
			if !write(websocket.MessageBinary, text[:n]) {
				return
			}
			text = text[n:]
		}
		if ended {
			t.last(conn, write)
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

// last tells the client how the command has ended.
func (t *Terminal) last(conn *websocket.Conn, write func(websocket.MessageType, []byte) bool) {
	<-t.over
	end := map[string]any{"exitCode": t.code}
	if t.Says && t.err != nil {
		end["error"] = t.err.Error()
	}
	text, _ := json.Marshal(end)
	write(websocket.MessageText, text)
	_ = conn.Close(websocket.StatusNormalClosure, "")
}
