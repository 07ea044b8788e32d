package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/policy"
)

// SDK is the server as the SDK knows it: tests add tools to it, and connect to it
// without a wire.
func SDK(s *Server) *sdk.Server { return s.sdk }

// Watch answers those who subscribe to a resource that a test has added, as it answers
// those who ping: with an empty result.
func Watch(s *Server, uri string) {
	s.sdk.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if asked, ok := req.(*sdk.SubscribeRequest); ok && asked.Params.URI == uri {
				return next(ctx, "ping", &sdk.ServerRequest[*sdk.PingParams]{Session: asked.Session, Params: &sdk.PingParams{}})
			}
			return next(ctx, method, req)
		}
	})
}

// QueueIs waits until so many calls wait and so many runs are under way.
func QueueIs(ctx context.Context, s *Server, waiting, running int) error {
	is, once := make(chan struct{}), sync.Once{}
	s.queue.change(func() {
		told := s.queue.gauge
		s.queue.gauge = func(w, r int) {
			told(w, r)
			if w == waiting && r == running {
				once.Do(func() { close(is) })
			}
		}
	})
	select {
	case <-is:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Granted is what a principal's call of run_code would get.
func Granted(s *Server, principal, args string) (policy.Effective, []policy.Denial, error) {
	var in runArgs
	if err := json.Unmarshal([]byte(args), &in); err != nil {
		return policy.Effective{}, nil, err
	}
	caller := unitask.Caller{Name: principal, Ceiling: s.opts.Ceiling.For(principal)}
	req, err := s.request(caller, in)
	if err != nil {
		return policy.Effective{}, nil, err
	}
	return unitask.Resolve(req, caller.Ceiling)
}

// SetDoctor puts another doctor in.
func SetDoctor(s *Server, check func(context.Context) *doctor.Report) { s.checkups.check = check }

// Doctor calls the tool, without a wire.
func Doctor(ctx context.Context, s *Server) (*doctor.Report, error) {
	return s.report(ctx, s.caller(nil))
}

// MaxCallerSessions and MaxCallerStreams bound what one caller holds.
const (
	MaxCallerSessions = maxCallerSessions
	MaxCallerStreams  = maxCallerStreams
	MaxCallerBodies   = maxCallerBodies
	BodyBytes         = bodyBytes
	DoctorFresh       = doctorFresh
	LivePeriod        = livePeriod
)

// Line is a queue for tests: enter waits for a slot and returns how it is left.
type Line struct{ q *queue }

func NewLine(slots, most int, shared bool) Line {
	q := newQueue(slots, most, 0, 0, func(int, int) {})
	if shared {
		q.share()
	}
	return Line{q}
}

func (l Line) Enter(ctx context.Context, caller string) (leave func(), err error) {
	return l.q.enter(ctx, caller, func(int) {})
}

// HidePaths is what a remote caller is told in the place of a message.
func HidePaths(dir, home, text string) string { return newHider(dir, home).all(text) }

// Report is a result as a model reads it.
func Report(res *unitask.Result) string { return report(res) }

// FindSocket looks for a socket in a table of the kernel's.
var FindSocket func(table io.Reader, local, remote netip.AddrPort) (uid int, err error)

// KeyFetches is how often an issuer's keys are fetched at once.
const KeyFetches = keyFetches

// Verdict is what a client's answer to a question means; Asks says that a caller's client is asked.
var Verdict = verdict

func Asks(caller unitask.Caller) bool { return approver(context.Background(), caller, nil) != nil }

// Secrets is what a remote caller's call of run_code would have of the secrets that it asks for; the
// caller may be known by several names.
func Secrets(ctx context.Context, s *Server, args string, names ...string) (map[string]string, error) {
	var in runArgs
	if err := json.Unmarshal([]byte(args), &in); err != nil {
		return nil, err
	}
	caller := unitask.Caller{Name: names[0], Via: unitask.ViaHTTP, Ceiling: s.opts.Ceiling.For(names...)}
	req, err := s.request(caller, in)
	if err != nil {
		return nil, err
	}
	return req.Secrets, s.readSecrets(ctx, caller, names, &req)
}

// Command is session_command of a caller's in a session that comes to nothing when it is used: what refuses it is what
// comes before.
func Command(ctx context.Context, s *Server, caller string, background bool) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("it reached the session")
		}
	}()
	_, _, err = s.commandNow(ctx, &live{done: make(chan struct{})}, unitask.Caller{Name: caller, Via: unitask.ViaMCP},
		&heldSession{}, commandArgs{Command: "true", Background: background}, nil)
	return err
}

// Take takes a slot of a caller's.
func Take(ctx context.Context, s *Server, caller string) (leave func(), err error) {
	return s.queue.enter(ctx, caller, func(int) {})
}

// Names are those of the caller with a token.
func Names(ctx context.Context, a *Auth, token string) ([]string, error) {
	info, err := a.verify(ctx, token, nil)
	if err != nil {
		return nil, err
	}
	return callerNames(&sdk.RequestExtra{TokenInfo: info}), nil
}

// Budget is memory that callers share.
type Budget struct{ b *budget }

func NewBudget(most, first int64) Budget { return Budget{newBudget(most, first)} }

func (b Budget) Draw(ctx context.Context, caller string, bytes int64, patience time.Duration) error {
	return b.b.draw(ctx, caller, bytes, patience)
}

// Answer draws room for the answers of the calls of one request, one after another; over gives it back.
func (b Budget) Answer(ctx context.Context, caller string, bytes ...int64) (over func(), errs []error) {
	l := &lease{budget: b.b, caller: caller}
	for _, n := range bytes {
		errs = append(errs, l.part().draw(ctx, n, 10*time.Second))
	}
	return l.close, errs
}

func (b Budget) Held() int64 { return b.b.held }

func (b Budget) Add(caller string, bytes int64) { b.b.add(caller, bytes) }

// Steady is a connection whose writes go on as long as the client takes some of them.
func Steadily(next http.Handler, stall time.Duration) http.Handler { return steadily(next, stall) }

func Steady(c net.Conn, stall time.Duration) net.Conn { return newSteadyConn(c, stall) }

// JSONSize is about what a value takes as JSON, and Members are those of an object.
var (
	JSONSize = jsonSize
	Members  = members
)

// Look begins a listing of a caller's.
func Look(ctx context.Context, s *Server, caller string) (leave func(), err error) {
	return s.look(ctx, unitask.Caller{Name: caller, Via: unitask.ViaHTTP})
}

// NewEvents keeps events of streams, and EventBytes is how many bytes these are.
func NewEvents(most, own int64, whose func(context.Context) string) sdk.EventStore {
	return newEvents(most, own, whose)
}

func EventBytes(e sdk.EventStore) int64 { return e.(*events).bytes }

// Doors are connections.
type Doors struct{ d *doors }

func NewDoors(most, strange, ofAddr, ofCaller int, patience time.Duration) Doors {
	d := newDoors()
	d.most, d.strange, d.ofAddr, d.ofCaller, d.patience = most, strange, ofAddr, ofCaller, patience
	return Doors{d}
}

func OpenDoor(d Doors, c net.Conn) net.Conn {
	if one := d.d.open(c); one != nil {
		return one
	}
	return nil
}

func Introduce(d Doors, c net.Conn, caller string) error {
	return d.d.introduce(c.(*door), caller)
}

func SetIdle(d Doors, c net.Conn, idle bool) { d.d.state(c.(*door), idle) }

func DoorsAre(d Doors) string {
	d.d.mu.Lock()
	defer d.d.mu.Unlock()
	return fmt.Sprintf("%d open, %d strange", d.d.all, d.d.waiting)
}
