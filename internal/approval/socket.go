package approval

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/run"
)

// controlSocket is the socket in a run's folder. Processes of the same user read and answer the run's question there,
// and change its policy.
const controlSocket = "control.sock"

const (
	talkTime     = 5 * time.Second // of one connection to the socket
	talkBytes    = 16 << 10        // of a message, and of its answer
	maxApprovers = 8               // at once
)

// asked is a message to the socket: an empty one asks for the question, one with a Host answers it.
type asked struct {
	Host    string      `json:"host,omitempty"`
	Request string      `json:"request,omitempty"` // AllowOnce must have it if the question has one
	Verdict run.Verdict `json:"verdict,omitempty"`
	// Until, if given, is the deadline of the question that was shown: only that question is answered.
	Until time.Time `json:"until,omitzero"`

	Policy *run.PolicyChange `json:"policy,omitempty"` // the change; then nothing else is set
}

// told is the socket's answer.
type told struct {
	Open    *run.Question `json:"open,omitempty"`
	Ceiling string        `json:"ceiling,omitempty"` // the run's, if it asks something
	Error   string        `json:"error,omitempty"`
}

func (a *Asker) listen(l *net.UnixListener, group *sync.WaitGroup) {
	localsocket.Serve(l, maxApprovers, group, func(conn *net.UnixConn) {
		_ = conn.SetDeadline(time.Now().Add(a.talk))
		var said asked
		if json.NewDecoder(io.LimitReader(conn, talkBytes)).Decode(&said) == nil {
			_ = json.NewEncoder(conn).Encode(a.handle(said))
		}
	})
}

// handle answers the open question if the message names its host.
func (a *Asker) handle(said asked) told {
	if said.Policy != nil {
		if err := a.change(*said.Policy); err != nil {
			return told{Error: runlog.Shorten(err.Error())}
		}
		return told{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if said == (asked{}) {
		if a.open == nil {
			return told{}
		}
		return told{Open: &a.open.Question, Ceiling: a.open.ceiling}
	}
	switch {
	case a.open == nil:
		return told{Error: "it asks nothing now"}
	case a.open.Host != said.Host:
		return told{Error: fmt.Sprintf("it asks about %s, not about %.300q", a.open.Host, said.Host)}
	case !said.Until.IsZero() && !(a.open.Until.Equal(said.Until) && a.open.Request == said.Request):
		return told{Error: "it asks another question now"}
	case said.Verdict == run.AllowOnce && a.open.Request != said.Request: // another question may have been opened since
		return told{Error: fmt.Sprintf("it asks about %q, not about %.300q: once is for that request alone, so name it",
			a.open.Request, said.Request)}
	case !said.Verdict.Valid():
		return told{Error: fmt.Sprintf("%.20q: use %s, %s or %s", said.Verdict, run.Deny, run.AllowOnce, run.AllowRun)}
	}
	if !a.open.answer(said.Verdict, byCommand) {
		return told{Error: "it was answered already"}
	}
	return told{}
}
