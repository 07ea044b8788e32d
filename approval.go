package unitask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/unitask/unitask/audit"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
)

// Question is what somebody is asked: whether the code of a run may connect to a host, as it is
// named here and nowhere else, on this port.
type Question struct {
	RunID string `json:"run"`
	// Host is HOST:PORT; of a name in ASCII, as xn--… where it has other letters.
	Host string `json:"host"`
	// Rule is why it is asked: "ask *.example.com".
	Rule string `json:"rule"`
	// Until is when it is denied.
	Until time.Time `json:"until"`
}

// Verdict answers a Question; "" is no answer.
type Verdict string

const (
	Deny      Verdict = "deny"  // for this run
	AllowOnce Verdict = "once"  // this connection
	AllowRun  Verdict = "allow" // and all others of the run to the same host and port
)

// Approval is a question that was asked, and what became of it.
type Approval struct {
	Host    string  `json:"host"` // HOST:PORT
	Verdict Verdict `json:"verdict"`
	By      string  `json:"by,omitempty"`  // "" where nobody answered
	Why     string  `json:"why,omitempty"` // it was denied, where nobody denied it
	Ms      int64   `json:"ms"`            // for which the machine stood still
}

// approvalTime is how long somebody has to answer.
const approvalTime = time.Minute

const (
	byCaller  = "the caller of the run" // IO.Approve: a terminal, an MCP client
	byCommand = "unitask approve"
)

// approvals are a run's questions.
type approvals struct {
	x    *execution
	wait time.Duration // for an answer
	talk time.Duration // with one process

	mu      sync.Mutex
	machine *machine.Machine // once there is one
	open    *openQuestion
}

// openQuestion is one that waits.
type openQuestion struct {
	Question
	said     Verdict // and by whom, once answered is closed
	by       string
	answered chan struct{}
}

// answer takes the first answer; a.mu is held.
func (q *openQuestion) answer(said Verdict, by string) bool {
	if q.said != "" {
		return false
	}
	q.said, q.by = said, by
	close(q.answered)
	return true
}

// approvals has the network ask, if the policy says that somebody is to be asked. In a session
// nobody is: its steps have clocks of their own.
func (x *execution) approvals(network *netstack.Config) error {
	if len(x.granted.Ask) == 0 || x.code.session != nil {
		return nil
	}
	x.asked = &approvals{x: x, wait: x.rt.approvalTime, talk: approvalTalk}
	l, err := listenIn(x.rec.Dir(), approvalSocket)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	group.Go(func() { x.asked.listen(l, &group) })
	x.later(func() {
		l.Close()
		group.Wait()
		_ = os.Remove(filepath.Join(x.rec.Dir(), approvalSocket))
	})
	network.Ask = x.asked.ask
	return nil
}

// over says which machine stands still for questions. A nil one has no questions.
func (a *approvals) over(m *machine.Machine) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machine = m
}

// denied is a hint at the first question that was not answered with yes, "" if there is none.
func (a *approvals) denied() string {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, done := range a.x.res.Approvals {
		if done.Verdict == Deny {
			return done.String()
		}
	}
	return ""
}

func (a Approval) String() string {
	if a.Verdict != Deny {
		return fmt.Sprintf("%s was allowed by %s (%s)", a.Host, a.By, a.Verdict)
	}
	if a.By != "" {
		return fmt.Sprintf("%s was denied by %s", a.Host, a.By)
	}
	return fmt.Sprintf("%s was denied: %s; --allow-net allows it without a question", a.Host, a.Why)
}

// ask asks one question; the network asks one at a time.
func (a *approvals) ask(ctx context.Context, about netstack.Question) netstack.Answer {
	a.mu.Lock()
	m := a.machine
	a.mu.Unlock()
	done := Approval{Host: about.Target(), Verdict: Deny}
	begin := time.Now()
	goOn, err := func() (func() error, error) {
		if m == nil {
			return nil, errors.New("the machine has not started yet")
		}
		return m.Stand(ctx)
	}()
	if err == nil {
		a.x.clock.stand()
		done.Verdict, done.By = a.put(ctx, Question{RunID: a.x.rec.ID, Host: done.Host, Rule: about.Rule, Until: begin.Add(a.wait)})
		if done.Verdict == "" {
			done.Verdict, done.Why = Deny, fmt.Sprintf("nobody answered within %g s", a.wait.Seconds())
			if ctx.Err() != nil {
				done.Why = "the run has ended"
			}
		}
		a.x.clock.goOn()
		if err = goOn(); err != nil {
			done.Verdict = Deny
		}
	}
	if err != nil {
		done.Why = err.Error()
	}
	done.Ms = time.Since(begin).Milliseconds()
	a.mu.Lock()
	a.x.res.Approvals = append(a.x.res.Approvals, done)
	a.mu.Unlock()
	a.x.audit.write(a.x.audit.entry(audit.NetAsked, done))
	return netstack.Answer{Allow: done.Verdict != Deny, Once: done.Verdict == AllowOnce, None: done.By == "", Why: done.String()}
}

// put has a question open until somebody answers it, or its time is over.
func (a *approvals) put(ctx context.Context, q Question) (said Verdict, by string) {
	ctx, cancel := context.WithDeadline(ctx, q.Until)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	open := &openQuestion{Question: q, answered: make(chan struct{})}
	a.mu.Lock()
	a.open = open
	a.mu.Unlock()
	if approve := a.x.streams.Approve; approve != nil {
		group.Go(func() {
			if said := approve(ctx, q); said.valid() && ctx.Err() == nil { // else unitask approve may still answer
				a.mu.Lock()
				defer a.mu.Unlock()
				open.answer(said, byCaller)
			}
		})
	}
	select {
	case <-open.answered:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open = nil
	return open.said, open.by
}

func (v Verdict) valid() bool { return v == Deny || v == AllowOnce || v == AllowRun }

// approvalSocket is, in a run's folder, where processes of its user see its question and answer it.
const approvalSocket = "approve.sock"

const (
	approvalTalk  = 5 * time.Second // of one process with the socket
	approvalBytes = 4 << 10         // that it says, or is told
	maxApprovers  = 8               // at once
)

// approvalAsked is what is said to the socket: nothing asks for the question, a Host answers it.
type approvalAsked struct {
	Host    string  `json:"host,omitempty"`
	Verdict Verdict `json:"verdict,omitempty"`
}

// approvalTold is what it says.
type approvalTold struct {
	Open  *Question `json:"open,omitempty"`
	Error string    `json:"error,omitempty"`
}

func (a *approvals) listen(l *net.UnixListener, group *sync.WaitGroup) {
	slots := make(chan struct{}, maxApprovers)
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		group.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(a.talk))
			if machine.SameUser(conn) != nil {
				return
			}
			var asked approvalAsked
			if json.NewDecoder(io.LimitReader(conn, approvalBytes)).Decode(&asked) == nil {
				_ = json.NewEncoder(conn).Encode(a.hear(asked))
			}
		})
	}
}

// hear answers the question that is open, if it is about the host that is named.
func (a *approvals) hear(asked approvalAsked) approvalTold {
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
	case !asked.Verdict.valid():
		return approvalTold{Error: fmt.Sprintf("%.20q: use %s, %s or %s", asked.Verdict, Deny, AllowOnce, AllowRun)}
	}
	if !a.open.answer(asked.Verdict, byCommand) {
		return approvalTold{Error: "it was answered already"}
	}
	return approvalTold{}
}

// Questions are those that runs of this user, in this home, ask now.
func (rt *Runtime) Questions(ctx context.Context) ([]Question, error) {
	sockets, err := filepath.Glob(filepath.Join(rt.runs.Dir(), "*", approvalSocket))
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

// Approve answers the question that a run of the same user asks now. The host must be the one that
// it asks about: HOST:PORT.
func (rt *Runtime) Approve(ctx context.Context, id, host string, v Verdict) error {
	id, err := rt.runs.Find(id)
	if err != nil {
		return err
	}
	told, err := rt.talk(ctx, filepath.Join(rt.runs.Dir(), id), approvalAsked{host, v})
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
	path, done, err := short(dir, approvalSocket)
	if err != nil {
		return told, err
	}
	defer done()
	conn, err := (&net.Dialer{Timeout: approvalTalk}).DialContext(ctx, "unix", path)
	if err != nil {
		return told, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(approvalTalk))
	if err := machine.SameUser(conn.(*net.UnixConn)); err != nil {
		return told, err
	}
	if err := json.NewEncoder(conn).Encode(say); err != nil {
		return told, err
	}
	err = json.NewDecoder(io.LimitReader(conn, approvalBytes)).Decode(&told)
	return told, err
}
