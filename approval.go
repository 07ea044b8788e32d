package unitask

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// maxAskedRequest bounds the request in a question.
const maxAskedRequest = 200

// askedRequest is a question's request without secrets, and bounded: one that was cut says so.
func askedRequest(redactor *record.Redactor, about netstack.Question) string {
	if about.Method == "" {
		return ""
	}
	text := redactor.String(about.Method + " " + about.Path)
	if len(text) > maxAskedRequest {
		text = strings.ToValidUTF8(text[:maxAskedRequest], "") + " [cut]"
	}
	return text
}

// approvalTime is how long somebody has to answer.
const approvalTime = time.Minute

const (
	byCaller  = "the caller of the run" // IO.Approve: a terminal, an MCP client
	byCommand = "unitask approve"
	byBefore  = policy.ApprovedFile // it was allowed for good
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

// approvals has the network ask where the policy says so, and others of the user reach the run.
func (x *execution) approvals(network *netstack.Config) error {
	x.asked = &approvals{x: x, wait: x.rt.approvalTime, talk: approvalTalk}
	l, err := localsocket.Listen(x.rec.Dir(), controlSocket)
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	group.Go(func() { x.asked.listen(l, &group) })
	x.later(func() {
		l.Close()
		group.Wait()
		_ = os.Remove(filepath.Join(x.rec.Dir(), controlSocket))
	})
	network.Asker = netstack.NewAsker(x.asked.ask)
	return nil
}

// over says which machine stands still for questions. A nil one has no questions.
func (a *approvals) over(m *machine.Machine) {
	if a == nil {
		return
	}
	l := a.x.live
	l.Lock()
	defer l.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machine = m
	if len(l.Taken) > 0 { // maybe since it was begun
		m.SetRules(l.Rules(a.x.rt.opts.Upstream, a.x.granted))
	}
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

// ask asks one question; the network asks one at a time.
func (a *approvals) ask(ctx context.Context, about netstack.Question) netstack.Answer {
	a.mu.Lock()
	m := a.machine
	a.mu.Unlock()
	if said, known := a.before(about); known {
		return said
	}
	done := Approval{Host: about.Target(), Request: askedRequest(a.x.redactor, about), Verdict: Deny}
	begin := time.Now()
	clock, release, err := a.still(ctx)
	if err != nil { // the session is about to be paused: it connects again when it goes on
		return netstack.Answer{Why: "the session is paused or forked"}
	}
	defer release()
	goOn, err := func() (func() error, error) {
		if m == nil {
			return nil, errors.New("the machine has not started yet")
		}
		return m.Stand(ctx)
	}()
	if err == nil {
		clock.Stop()
		done.Verdict, done.By = a.put(ctx, Question{RunID: a.x.rec.ID, Host: done.Host, Request: done.Request, Rule: about.Rule, Until: begin.Add(a.wait)})
		if done.Verdict == "" {
			done.Verdict, done.Why = Deny, fmt.Sprintf("nobody answered within %g s", a.wait.Seconds())
			if ctx.Err() != nil {
				done.Why = "the run has ended"
			}
		}
		clock.Resume()
		if err = goOn(); err != nil {
			done.Verdict = Deny
		}
	}
	if err != nil {
		done.Why = err.Error()
	}
	done.Ms = time.Since(begin).Milliseconds()
	if done.Verdict == AllowAlways {
		a.remember(&done)
	}
	return a.note(done)
}

// still is the clock that stands while somebody is asked; until release the machine is neither paused
// nor forked.
func (a *approvals) still(ctx context.Context) (clock questionClock, release func(), err error) {
	s := a.x.look.session
	if s == nil {
		return a.x.clock, func() {}, nil
	}
	release, err = s.standing(ctx)
	return &s.clocks, release, err
}

// approver is who is asked first.
func (a *approvals) approver() Approver {
	if a.x.look.session != nil {
		return a.x.look.session.approver()
	}
	return a.x.streams.Approve
}

// remember has the home remember an approval, or makes it one for the run.
func (a *approvals) remember(done *Approval) {
	e := policy.Approved{Host: done.Host, Ceiling: a.x.res.Policy.Ceiling, By: a.x.rec.Owner, Run: a.x.rec.ID, At: time.Now()}
	if err := policy.OpenApprovals(a.x.rt.opts.Home).Add(e); err != nil {
		done.Verdict, done.Why = AllowRun, "for this run only: "+err.Error()
		a.x.streams.Events(Event{Kind: EventStore, Message: done.Why})
	}
}

// note writes an approval down.
func (a *approvals) note(done Approval) netstack.Answer {
	a.mu.Lock()
	a.x.res.Approvals = append(a.x.res.Approvals, done)
	a.mu.Unlock()
	a.x.audit.Note(audit.NetAsked, done)
	return netstack.Answer{Allow: done.Verdict != Deny, Once: done.Verdict == AllowOnce, None: done.By == "", Why: done.String()}
}

// before answers what was allowed for good by the user whose run this is. A list that can't be read
// answers nothing: somebody is asked, then.
func (a *approvals) before(about netstack.Question) (netstack.Answer, bool) {
	if a.x.rec.Via == ViaHTTP {
		return netstack.Answer{}, false
	}
	_, ok, err := policy.OpenApprovals(a.x.rt.opts.Home).Find(about.Target(), a.x.res.Policy.Ceiling, a.x.rec.Owner)
	if err != nil {
		a.x.streams.Events(Event{Kind: EventStore, Message: err.Error()})
	}
	if !ok {
		return netstack.Answer{}, false
	}
	said := a.note(Approval{Host: about.Target(), Verdict: AllowAlways, By: byBefore})
	said.Known = true
	return said, true
}

// attended says that somebody who asks for a run by it may answer for good.
func attended(via record.Via) bool { return via == ViaCLI || via == ViaAPI }

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
	if approve := a.approver(); approve != nil {
		group.Go(func() {
			if said := approve(ctx, q); (said.Valid() || said == AllowAlways && attended(a.x.rec.Via)) && ctx.Err() == nil { // else unitask approve may still answer
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
