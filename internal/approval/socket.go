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

// controlSocket is, in a run's folder, where processes of its user see its question and answer it, and change its
// policy.
const controlSocket = "control.sock"

const (
	talkTime     = 5 * time.Second // of one process with the socket
	talkBytes    = 16 << 10        // that it says, or is told
	maxApprovers = 8               // at once
)

// asked is what is said to the socket: nothing asks for the question, a Host answers it.
type asked struct {
	Host    string      `json:"host,omitempty"`
	Request string      `json:"request,omitempty"` // which AllowOnce must name, where the question does
	Verdict run.Verdict `json:"verdict,omitempty"`

	Policy *run.PolicyChange `json:"policy,omitempty"` // asks for this, and nothing else
}

// told is what it says.
type told struct {
	Open  *run.Question `json:"open,omitempty"`
	Error string        `json:"error,omitempty"`
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

// handle answers the question that is open, if it is about the host that is named.
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
		return told{Open: &a.open.Question}
	}
	switch {
	case a.open == nil:
		return told{Error: "it asks nothing now"}
	case a.open.Host != said.Host:
		return told{Error: fmt.Sprintf("it asks about %s, not about %.300q", a.open.Host, said.Host)}
	case said.Verdict == run.AllowOnce && a.open.Request != said.Request: // another may have come since it was read
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
