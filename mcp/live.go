package mcp

import (
	"context"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/tail"
)

// live sends a client the code's output while it runs. If the call has a progress token, it sends progress
// notifications. Otherwise it sends log messages to clients of revisions before 2026-07-28 that have requested some.
// Nothing waits for the client: output that it does not accept in time is left out, and is in the result.
type live struct {
	ctx   context.Context
	once  sync.Once
	req   *sdk.CallToolRequest
	token any
	log   bool

	mu      sync.Mutex
	pending []byte
	dropped int
	said    []string // our own messages, sent before pending
	sent    float64
	wake    chan struct{}
	done    chan struct{}
	ended   chan struct{} // closed when everything was sent; nil if nothing is

	kept  *tail.Buffer    // gets the output, too; may be nil
	onRun func(id string) // is told the record's id, if it is not nil
}

// Limits of progress notifications.
const (
	livePeriod  = 100 * time.Millisecond // between two notifications; the first is sent at once
	liveMessage = 8 << 10                // bytes of one notification; faster output is left out
	liveSaid    = 4                      // own messages that wait
	liveLast    = time.Second            // how long a result waits for earlier output to be sent
)

// stateless is the first revision without sessions and with deprecated logging.
const stateless = "2026-07-28"

func newLive(ctx context.Context, req *sdk.CallToolRequest) *live {
	l := &live{ctx: ctx, req: req, token: req.Params.GetProgressToken(), wake: make(chan struct{}, 1),
		done: make(chan struct{})}
	l.log = l.token == nil && req.ProtocolVersion() < stateless
	if l.token != nil || l.log {
		l.ended = make(chan struct{})
		go l.tell()
	}
	return l
}

// add sends the output of a stream, beginning with the incomplete character of the previous output. It returns
// the new incomplete character: output of another stream must not come between its parts.
func (l *live) add(rest, p []byte) []byte {
	if l.token == nil && !l.log {
		return nil
	}
	p = append(rest, p...)
	n := bounded.Whole(p)
	rest = append([]byte(nil), p[n:]...)
	p = p[:n]
	l.mu.Lock()
	defer l.mu.Unlock()
	room := max(0, liveMessage-len(l.pending))
	if len(p) > room {
		room = bounded.Whole(p[:room])
	}
	l.pending = append(l.pending, p[:min(len(p), room)]...)
	l.dropped += max(0, len(p)-room)
	l.woken()
	return rest
}

func (l *live) woken() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// say sends one message at once.
func (l *live) say(text string) {
	if l.token == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.said) < liveSaid {
		l.said = append(l.said, text)
	}
	l.woken()
}

// tell sends collected output, at once and then once in a period.
func (l *live) tell() {
	defer close(l.ended)
	defer l.flush()
	for {
		select {
		case <-l.done:
			return
		case <-l.wake:
		}
		l.flush()
		select {
		case <-l.done:
			return
		case <-time.After(livePeriod):
		}
	}
}

func (l *live) flush() {
	l.mu.Lock()
	said := l.said
	l.said = nil
	n := len(l.pending) + l.dropped
	message := strings.ToValidUTF8(string(l.pending), "\ufffd")
	if l.dropped > 0 {
		message += "…"
	}
	l.pending, l.dropped = nil, 0
	l.mu.Unlock()
	for _, text := range said {
		l.send(text, 1)
	}
	if message != "" {
		l.send(message, n)
	}
}

func (l *live) send(message string, n int) {
	l.mu.Lock()
	l.sent += float64(n)
	progress := l.sent
	l.mu.Unlock()
	if l.log {
		//lint:ignore SA1019 for clients of older revisions, which know nothing else
		_ = l.req.Session.Log(l.ctx, &sdk.LoggingMessageParams{Level: "info", Logger: "run_code", Data: message})
		return
	}
	_ = l.req.Session.NotifyProgress(l.ctx, &sdk.ProgressNotificationParams{ProgressToken: l.token, Progress: progress,
		Message: message})
}

// close sends the rest, if the client accepts it at once.
func (l *live) close() {
	l.once.Do(func() { close(l.done) })
	if l.ended == nil {
		return
	}
	late := time.NewTimer(liveLast)
	defer late.Stop()
	select {
	case <-l.ended:
	case <-late.C:
	case <-l.ctx.Done():
	}
}
