package unitask

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/localsocket"
)

// controlSocket is, in a run's folder, where processes of its user see its question and answer it, and change its
// policy.
const controlSocket = "control.sock"

const (
	approvalTalk  = 5 * time.Second // of one process with the socket
	approvalBytes = 16 << 10        // that it says, or is told
	maxApprovers  = 8               // at once
)

// approvalAsked is what is said to the socket: nothing asks for the question, a Host answers it.
type approvalAsked struct {
	Host    string  `json:"host,omitempty"`
	Request string  `json:"request,omitempty"` // which AllowOnce must name, where the question does
	Verdict Verdict `json:"verdict,omitempty"`

	Policy *PolicyChange `json:"policy,omitempty"` // asks for this, and nothing else
}

// approvalTold is what it says.
type approvalTold struct {
	Open  *Question `json:"open,omitempty"`
	Error string    `json:"error,omitempty"`
}

func (a *approvals) listen(l *net.UnixListener, group *sync.WaitGroup) {
	localsocket.Serve(l, maxApprovers, group, func(conn *net.UnixConn) {
		_ = conn.SetDeadline(time.Now().Add(a.talk))
		var asked approvalAsked
		if json.NewDecoder(io.LimitReader(conn, approvalBytes)).Decode(&asked) == nil {
			_ = json.NewEncoder(conn).Encode(a.hear(asked))
		}
	})
}

// hear answers the question that is open, if it is about the host that is named.
func (a *approvals) hear(asked approvalAsked) approvalTold {
	if asked.Policy != nil {
		if err := a.change(*asked.Policy); err != nil {
			return approvalTold{Error: runlog.Shorten(err.Error())}
		}
		return approvalTold{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if asked == (approvalAsked{}) {
		if a.open == nil {
			return approvalTold{}
		}
		return approvalTold{Open: &a.open.Question}
	}
	switch {
	case a.open == nil:
		return approvalTold{Error: "it asks nothing now"}
	case a.open.Host != asked.Host:
		return approvalTold{Error: fmt.Sprintf("it asks about %s, not about %.300q", a.open.Host, asked.Host)}
	case asked.Verdict == AllowOnce && a.open.Request != asked.Request: // another may have come since it was read
		return approvalTold{Error: fmt.Sprintf("it asks about %q, not about %.300q: once is for that request alone, so name it", a.open.Request, asked.Request)}
	case !asked.Verdict.Valid():
		return approvalTold{Error: fmt.Sprintf("%.20q: use %s, %s or %s", asked.Verdict, Deny, AllowOnce, AllowRun)}
	}
	if !a.open.answer(asked.Verdict, byCommand) {
		return approvalTold{Error: "it was answered already"}
	}
	return approvalTold{}
}

// Questions are those that runs of this user, in this home, ask now.
func (rt *Runtime) Questions(ctx context.Context) ([]Question, error) {
	sockets, err := filepath.Glob(filepath.Join(rt.runs.Dir(), "*", controlSocket))
	if err != nil {
		return nil, err
	}
	list := []Question{}
	for _, socket := range sockets {
		told, err := rt.talk(ctx, filepath.Dir(socket), approvalAsked{})
		if err == nil && told.Open != nil { // else it has just ended
			list = append(list, *told.Open)
		}
	}
	return list, nil
}

// Question is what a run or session of this user asks now, nil if that is nothing. The error is that it has ended, or
// never was.
func (rt *Runtime) Question(ctx context.Context, id string) (*Question, error) {
	id, err := rt.runs.Find(id)
	if err != nil {
		return nil, err
	}
	told, err := rt.talk(ctx, filepath.Join(rt.runs.Dir(), id), approvalAsked{})
	return told.Open, err
}

// Approve answers the question that a run of the same user asks now. The host must be the one that
// it asks about: HOST:PORT; and for AllowOnce the request, where it asks about one.
func (rt *Runtime) Approve(ctx context.Context, id, host, request string, v Verdict) error {
	id, err := rt.runs.Find(id)
	if err != nil {
		return err
	}
	told, err := rt.talk(ctx, filepath.Join(rt.runs.Dir(), id), approvalAsked{Host: host, Request: request, Verdict: v})
	if err != nil {
		return fmt.Errorf("run %s asks nothing: it has ended, or has nothing to ask about: %w", id, err)
	}
	if told.Error != "" {
		return fmt.Errorf("run %s: %s", id, told.Error)
	}
	return nil
}

// talk says one thing to a run's socket.
func (rt *Runtime) talk(ctx context.Context, dir string, say approvalAsked) (told approvalTold, err error) {
	timed, cancel := context.WithTimeout(ctx, approvalTalk)
	defer cancel()
	conn, err := localsocket.Dial(timed, dir, controlSocket)
	if err != nil {
		return told, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(approvalTalk))
	if err := localsocket.SameUser(conn); err != nil {
		return told, err
	}
	if err := json.NewEncoder(conn).Encode(say); err != nil {
		return told, err
	}
	err = json.NewDecoder(io.LimitReader(conn, approvalBytes)).Decode(&told)
	return told, err
}
