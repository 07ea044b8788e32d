package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Tasks, an extension of the protocol: a long call of a client that declares it ends with a task. The client asks for
// the task's state (tasks/get), answers its questions (tasks/update), and may cancel it (tasks/cancel). The same call
// of any other client waits, or leaves its run in the background (background.go).

// tasksExtension is the extension's name in the capabilities of clients and servers.
const tasksExtension = "io.modelcontextprotocol/tasks"

// Limits of tasks, and of runs in the background.
const (
	taskAfter    = 5 * time.Second  // a call that takes longer ends with a task
	taskKept     = 10 * time.Minute // how long a result is kept after the run
	taskPoll     = time.Second      // how often a client should ask
	maxTasks     = 64               // of all callers; the oldest result of the one with the most makes room
	callersTasks = 16               // of one caller
	taskBytes    = 256 << 10        // of a result with pictures; a larger one is kept without them
)

// errTask ends a call with a task; withTasks replaces it.
var errTask = errors.New("the call ends with a task")

// taskSlot receives the task with which a call ends.
type taskSlot struct {
	after time.Duration
	made  *round
}

type taskKey struct{}

// taskOf returns the slot of a call that may end with a task, nil if it must not.
func taskOf(ctx context.Context) *taskSlot {
	slot, _ := ctx.Value(taskKey{}).(*taskSlot)
	return slot
}

// timer fires when a call has taken so long that it ends with a task.
func (t *taskSlot) timer() <-chan time.Time {
	if t == nil {
		return nil
	}
	return time.After(t.after)
}

// capable is a request whose client's capabilities are known.
type capable interface {
	ClientCapabilities() *sdk.ClientCapabilities
	ProtocolVersion() string
}

// takesTasks reports whether the client of a request has declared the extension with it.
func takesTasks(req sdk.Request) bool {
	r, ok := req.(capable)
	if !ok || r.ProtocolVersion() < stateless {
		return false
	}
	can := r.ClientCapabilities()
	if can == nil {
		return false
	}
	_, ok = can.Extensions[tasksExtension]
	return ok
}

// taskParams are the parameters of the extension's methods.
type taskParams struct {
	sdk.ParamsBase
	TaskID         string                     `json:"taskId"`
	InputResponses map[string]json.RawMessage `json:"inputResponses,omitempty"`
}

// taskState is a task's state, as the result of a call that ends with it and of tasks/get.
type taskState struct {
	sdk.ResultBase
	ResultType    string              `json:"resultType"`
	TaskID        string              `json:"taskId"`
	Status        string              `json:"status"`
	StatusMessage string              `json:"statusMessage,omitempty"`
	CreatedAt     time.Time           `json:"createdAt"`
	LastUpdatedAt time.Time           `json:"lastUpdatedAt"`
	TTL           int64               `json:"ttlMs"`
	PollInterval  int64               `json:"pollIntervalMs"`
	InputRequests sdk.InputRequestMap `json:"inputRequests,omitempty"`
	Result        *sdk.CallToolResult `json:"result,omitempty"`
	Error         *jsonrpc.Error      `json:"error,omitempty"`
}

// taskDone is the answer to tasks/update and tasks/cancel.
type taskDone struct {
	sdk.ResultBase
	ResultType string `json:"resultType"`
}

func (s *Server) addTasks() {
	for method, serve := range map[string]func(*round, *taskParams) sdk.Result{
		"tasks/get": func(r *round, _ *taskParams) sdk.Result { return s.taskState(r, "complete") },
		"tasks/update": func(r *round, p *taskParams) sdk.Result {
			r.update(p.InputResponses)
			return &taskDone{ResultType: "complete"}
		},
		"tasks/cancel": func(r *round, _ *taskParams) sdk.Result {
			r.stop()
			return &taskDone{ResultType: "complete"}
		},
	} {
		// The error is that of a standard method's name.
		_ = sdk.AddReceivingCustomMethod(s.sdk, method,
			func(ctx context.Context, _ *sdk.ServerSession, p *taskParams) (sdk.Result, error) {
				caller, _ := ctx.Value(callerKey{}).(string)
				r := s.rounds.detached(p.TaskID, caller)
				if r == nil {
					return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
						Message: "taskId: there is no such task; it has expired, or never was: list_runs has the runs"}
				}
				return serve(r, p), nil
			})
	}
	s.tasked, s.taskAfter = map[string]bool{"run_code": true}, taskAfter
	s.sdk.AddReceivingMiddleware(s.withTasks)
}

// callerKey is the context key for the name of a task's caller.
type callerKey struct{}

// withTasks lets calls end with a task, and checks requests about tasks.
func (s *Server) withTasks(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		switch {
		case method == "tools/call" && s.tasked[toolOf(req)] && takesTasks(req):
			slot := &taskSlot{after: s.taskAfter}
			res, err := next(context.WithValue(ctx, taskKey{}, slot), method, req)
			if slot.made != nil {
				return s.taskState(slot.made, "task"), nil
			}
			return res, err
		case strings.HasPrefix(method, "tasks/"):
			if !takesTasks(req) {
				return nil, missingTasks()
			}
			if err := sameTask(req); err != nil {
				return nil, err
			}
			ctx = context.WithValue(ctx, callerKey{}, s.caller(req.GetExtra()).Name)
		}
		return next(ctx, method, req)
	}
}

// toolOf returns the name of the tool that a request calls.
func toolOf(req sdk.Request) string {
	if p, ok := req.GetParams().(*sdk.CallToolParamsRaw); ok {
		return p.Name
	}
	return ""
}

// missingTasks is the error for a client that has not declared the extension.
func missingTasks() error {
	return &jsonrpc.Error{Code: sdk.CodeMissingRequiredClientCapabilities,
		Message: "Missing required client capability",
		Data:    json.RawMessage(`{"requiredCapabilities":{"extensions":{"` + tasksExtension + `":{}}}}`)}
}

// sameTask checks over HTTP that a request's header names the same task as its body.
func sameTask(req sdk.Request) error {
	p, ok := req.GetParams().(*taskParams)
	extra := req.GetExtra()
	if !ok || extra == nil || extra.Header == nil || strings.TrimSpace(extra.Header.Get("Mcp-Name")) == p.TaskID {
		return nil
	}
	return &jsonrpc.Error{Code: sdk.CodeHeaderMismatch, Message: "the header Mcp-Name must be the request's taskId"}
}

// taskState returns the state of a task.
func (s *Server) taskState(r *round, kind string) *taskState {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &taskState{ResultType: kind, TaskID: r.id, Status: "working", CreatedAt: r.began.UTC(),
		LastUpdatedAt: r.changed.UTC(), PollInterval: taskPoll.Milliseconds()}
	end := time.Now()
	if r.expiry != nil {
		end = r.changed
	}
	t.TTL = (end.Sub(r.began) + r.kept).Milliseconds()
	switch {
	case kind == "task": // the rest is for tasks/get
	case r.expiry == nil && len(r.pending) > 0:
		t.Status, t.InputRequests = "input_required", sdk.InputRequestMap{}
		for _, q := range r.pending {
			t.InputRequests[q.state] = q.form()
		}
	case r.expiry == nil:
		t.StatusMessage = "the code runs"
		if r.runID != "" {
			t.StatusMessage = "run " + r.runID
		}
	case r.cancelled:
		t.Status = "cancelled"
	default:
		t.Status = "completed"
		if t.Result, t.Error = r.result(); t.Error != nil {
			t.Status, t.StatusMessage = "failed", t.Error.Message
		}
	}
	return t
}

// result returns what the call would have returned. The run has ended.
func (r *round) result() (*sdk.CallToolResult, *jsonrpc.Error) {
	if wire := (*jsonrpc.Error)(nil); errors.As(r.err, &wire) {
		return nil, wire
	}
	res := &sdk.CallToolResult{}
	if r.err != nil {
		res.SetError(r.err)
		res.Meta = sdk.Meta{errorKey: typed(r.err)}
		return res, nil
	}
	*res = *r.out
	if r.res != nil {
		data, err := json.Marshal(r.res)
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()}
		}
		res.StructuredContent = json.RawMessage(data)
	}
	return res, nil
}

// update answers a task's open questions. Others are left alone, as the extension asks for.
func (r *round) update(answers map[string]json.RawMessage) {
	for state, data := range answers {
		said := new(sdk.ElicitResult)
		if err := json.Unmarshal(data, said); err != nil {
			said.Action = "decline"
		}
		r.answer(state, verdict(said, nil))
	}
}

// stop cancels the run, unless it has ended.
func (r *round) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.expiry == nil {
		r.cancelled, r.changed = true, time.Now()
		r.cancel()
	}
}

// detach keeps a run for a client that asks for its state, if there is room.
func (all *rounds) detach(r *round) bool {
	all.mu.Lock()
	defer all.mu.Unlock()
	kept, n := map[string][]*round{}, 0 // by caller
	for _, o := range all.open {
		if o.isDetached() {
			kept[o.caller] = append(kept[o.caller], o)
			n++
		}
	}
	switch own := kept[r.caller]; {
	case len(own) >= callersTasks:
		if !all.forget(own) {
			return false
		}
	case n >= maxTasks: // the queue bounds those that have not ended
		most := slices.SortedFunc(maps.Values(kept), func(a, b []*round) int { return len(b) - len(a) })
		_ = slices.ContainsFunc(most, all.forget)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.detached, r.waits, r.kept = true, true, taskKept // no repeated call continues it
	if r.expiry != nil {
		r.trim()
		r.expiry.Reset(taskKept)
	}
	return true
}

// forget forgets the oldest run of a caller that has ended. It returns false if none has.
func (all *rounds) forget(own []*round) bool {
	own = slices.DeleteFunc(own, func(o *round) bool { return !o.ended() })
	if len(own) == 0 {
		return false
	}
	oldest := slices.MinFunc(own, func(a, b *round) int { return a.began.Compare(b.began) })
	oldest.expiry.Stop() // its timer would keep the result
	delete(all.open, oldest.id)
	return true
}

// trim drops the pictures of a large result. The caller holds the lock.
func (r *round) trim() {
	if r.out != nil && callSize(r.out, r.res) > taskBytes {
		r.out.Content = slices.DeleteFunc(r.out.Content, func(c sdk.Content) bool {
			_, is := c.(*sdk.ImageContent)
			return is
		})
	}
}

// detach keeps a call's run for a client that asks for its state, and the memory of the call's request for the run.
func (s *Server) detach(req *sdk.CallToolRequest, r *round) bool {
	if !s.rounds.detach(r) {
		return false
	}
	s.lease(req.Extra).lend(r.done)
	return true
}

// detached returns a caller's task, or run in the background, by its own id or that of its record.
func (all *rounds) detached(id, caller string) *round {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, r := range all.open {
		if r.caller == caller && r.isDetached() && (r.id == id || r.record() == id && id != "") {
			return r
		}
	}
	return nil
}

// end forgets all runs, which have ended.
func (all *rounds) end() {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, r := range all.open {
		r.mu.Lock()
		if r.expiry != nil {
			r.expiry.Stop()
		}
		r.mu.Unlock()
	}
	all.open = nil
}

func (r *round) isDetached() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.detached
}

func (r *round) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.expiry != nil
}

// record returns the id of the run's record, "" before it has one.
func (r *round) record() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runID
}
