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
	"github.com/unitask/unitask/record"
)

// SDK returns the SDK's server: tests add tools to it, and connect to it without a network.
func SDK(s *Server) *sdk.Server { return s.sdk }

// Watch answers subscribers of a resource that a test has added, as it answers a ping: with an empty result.
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

// QueueIs waits until this number of calls wait and this number of runs are in progress.
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

// Granted returns the grants of a principal's call of run_code.
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

// SetDoctor replaces the doctor.
func SetDoctor(s *Server, check func(context.Context) *doctor.Report) { s.checkups.check = check }

// Doctor calls the tool directly.
func Doctor(ctx context.Context, s *Server) (*doctor.Report, error) {
	return s.report(ctx, s.caller(nil))
}

// MaxCallerSessions and MaxCallerStreams limit one caller.
const (
	MaxCallerSessions = maxCallerSessions
	MaxCallerStreams  = maxCallerStreams
	MaxCallerBodies   = maxCallerBodies
	BodyBytes         = bodyBytes
	DoctorFresh       = doctorFresh
	LivePeriod        = livePeriod
)

// Line is a queue for tests: enter waits for a slot and returns the function that leaves it.
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

// HidePaths returns a message as a remote caller gets it.
func HidePaths(dir, home, text string) string { return newHider(dir, home).all(text) }

// Report returns a result as a model reads it.
func Report(res *unitask.Result) string { return report(res) }

// FindSocket finds a socket in a table of the kernel.
var FindSocket func(table io.Reader, local, remote netip.AddrPort) (uid int, err error)

// KeyFetches is how many fetches of an issuer's keys may run at once.
const KeyFetches = keyFetches

// AskFirst returns the hosts that a call may reach without a question, and the hosts that its user is asked about. form
// means that the client can show a form.
func AskFirst(s *Server, via record.Via, form bool, hosts ...string) (open, asked []string) {
	req := &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{}}
	if form {
		req.Params.Meta = canShowForms()
	}
	run := unitask.Request{AllowNet: hosts}
	s.askFirst(unitask.Caller{Via: via, Ceiling: s.opts.Ceiling}, req, &run)
	return run.AllowNet, run.Ask
}

func canShowForms() sdk.Meta { return canElicit(map[string]any{}) }

func canElicit(how map[string]any) sdk.Meta {
	return sdk.Meta{sdk.MetaKeyClientCapabilities: map[string]any{"elicitation": how}}
}

// AsksBy reports whether a client of our own user is asked that has this elicitation capability.
func AsksBy(how map[string]any) bool {
	req := &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Meta: canElicit(how)}}
	return canAsk(unitask.Caller{Via: unitask.ViaMCP}, req)
}

// Verdict returns the meaning of a client's answer to a question. Asks reports whether a caller's client is asked.
var Verdict = verdict

func Asks(caller unitask.Caller) bool {
	req := &sdk.CallToolRequest{Params: &sdk.CallToolParamsRaw{Meta: canShowForms()}}
	return askerOf(context.Background(), caller, req) != nil
}

// Secrets returns the secrets that a remote caller's call of run_code would get of the requested ones. The caller may
// have several names.
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

// Command makes a caller's session_command in a session that fails when used. Only earlier checks can refuse it.
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

// Take takes a slot of a caller.
func Take(ctx context.Context, s *Server, caller string) (leave func(), err error) {
	return s.queue.enter(ctx, caller, func(int) {})
}

// Names returns the names of the caller with a token.
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

// Answer reserves room for the answers of one request's calls, one after another; over returns it.
func (b Budget) Answer(ctx context.Context, caller string, bytes ...int64) (over func(), errs []error) {
	l := &lease{budget: b.b, caller: caller}
	for _, n := range bytes {
		errs = append(errs, l.part().draw(ctx, n, 10*time.Second))
	}
	return l.close, errs
}

func (b Budget) Held() int64 { return b.b.held }

func (b Budget) Add(caller string, bytes int64) { b.b.add(caller, bytes) }

// Steady is a connection whose writes continue as long as the client reads some data.
func Steadily(next http.Handler, stall time.Duration) http.Handler { return steadily(next, stall) }

func Steady(c net.Conn, stall time.Duration) net.Conn { return newSteadyConn(c, stall) }

// JSONSize estimates a value's size as JSON, and Members an object's.
var (
	JSONSize = jsonSize
	Members  = members
)

// Look starts a listing of a caller.
func Look(ctx context.Context, s *Server, caller string) (leave func(), err error) {
	return s.look(ctx, unitask.Caller{Name: caller, Via: unitask.ViaHTTP})
}

// NewEvents keeps events of streams, and EventBytes returns their size.
func NewEvents(most, own int64, whose func(context.Context) string) sdk.EventStore {
	return newEvents(most, own, whose)
}

func EventBytes(e sdk.EventStore) int64 { return e.(*events).bytes }

// Doors limits connections.
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

// AddHostCommands adds host_exec, as ServeStdio does.
func AddHostCommands(s *Server) { s.addHostCommands() }

// AddHostFiles adds host_files, as ServeStdio does.
func AddHostFiles(s *Server) { s.addHostFiles() }

// Ask asks a task's client, and returns its user's answer.
type Ask = func(context.Context, *sdk.ElicitParams) unitask.Verdict

// AddTaskTool adds a tool whose calls end with a task at once, if their client takes tasks. Other calls wait.
func AddTaskTool(s *Server, name string,
	run func(context.Context, *sdk.CallToolRequest, Ask) (*sdk.CallToolResult, error)) {
	s.tasked[name] = true
	s.sdk.AddTool(&sdk.Tool{Name: name, Description: "a test's", InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			slot := taskOf(ctx)
			if slot == nil {
				return run(ctx, req, nil)
			}
			slot.after = 0
			res, _, err := s.round(ctx, s.caller(req.Extra), req, func(life context.Context, ask asker) (*sdk.CallToolResult,
				any, error) {
				select { // the call has ended with the task before
				case <-time.After(100 * time.Millisecond):
				case <-life.Done():
				}
				res, err := run(life, req, func(ctx context.Context, form *sdk.ElicitParams) unitask.Verdict {
					return ask(ctx, func() *sdk.ElicitParams { return form })
				})
				return res, nil, err
			})
			return res, err
		})
}

// SetTaskAfter sets after how long a call ends with a task.
func SetTaskAfter(s *Server, after time.Duration) { s.taskAfter = after }

// MissingTasks is the error for a client without tasks.
func MissingTasks() error { return missingTasks() }

// CallersTasks bounds the tasks of one caller.
const CallersTasks = callersTasks

// Held is the memory that calls over HTTP hold.
func Held(s *Server) int64 {
	s.budget.mu.Lock()
	defer s.budget.mu.Unlock()
	return s.budget.held
}

// WaitedFor ends a run in the background with a result, and returns what wait_command gives two clients.
func WaitedFor(s *Server, out *sdk.CallToolResult, res any) (both [2]*sdk.CallToolResult, err error) {
	r := s.rounds.begin(context.Background(), "", [32]byte{}, func(context.Context, asker) (*sdk.CallToolResult, any,
		error) {
		return out, res, nil
	})
	s.rounds.detach(r)
	<-r.done
	for i := range both {
		var one error
		both[i], _, one = s.gathered(r, waitArgs{Run: r.id}, usualShown)
		err = errors.Join(err, one)
	}
	return both, err
}

// RanResult is a result of run_code.
func RanResult() any { return &ran{} }
