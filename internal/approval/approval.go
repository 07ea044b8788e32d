// Package approval asks somebody when a run's code makes a connection that its policy asks about. The machine is
// stopped until there is an answer. It comes from the run's starter, or over a socket in the run's folder from another
// process of the same user. The same socket accepts changes of the policy.
package approval

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
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// maxAskedRequest bounds the request in a question.
const maxAskedRequest = 200

// askedRequest returns a question's request, redacted and limited: a cut request is marked.
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

// Patience is how long somebody has to answer.
const Patience = time.Minute

const (
	byCaller  = "the caller of the run" // IO.Approve: a terminal, an MCP client
	byCommand = "unitask approve"
	byBefore  = policy.ApprovedFile // the connection was always allowed
)

// Clock does not count the time while a machine is stopped.
type Clock interface {
	Stop()
	Resume()
}

// Config holds the parts of a run that questions need.
type Config struct {
	Home     string
	Record   *record.Run
	Redactor *record.Redactor
	// Result gets the questions and changes. Answers that are remembered must fit the ceiling of its policy.
	Result *run.Result
	Tell   func(run.Event)
	// Note writes an entry into the audit log.
	Note func(kind audit.Kind, detail any)
	// Approver is asked first; nil for nobody.
	Approver func() run.Approver
	// Hold returns the clock to stop during a question. Until release the machine is neither paused nor forked. Hold
	// returns an error if a pause or fork is about to begin.
	Hold func(ctx context.Context) (clock Clock, release func(), err error)
	// Live holds the rules that may change, in addition to the grants; Upstream dials for them.
	Live     *egress.LiveRules
	Granted  policy.Effective
	Upstream netstack.Upstream
	// Keep stores all changes of a session, which continues after a pause. It may be nil.
	Keep func([]run.PolicyChange) error
	// Wait is how long somebody has to answer.
	Wait time.Duration
}

// Asker asks a run's questions.
type Asker struct {
	Config
	talk time.Duration // with one process

	mu      sync.Mutex
	machine *machine.Machine // once there is one
	open    *openQuestion
	told    int           // answers that Denied has looked at
	turn    chan struct{} // held while asking
	tools   toolAnswers
}

// openQuestion is a question that waits for an answer.
type openQuestion struct {
	run.Question
	ceiling  string      // the file of the run's, "" for none
	said     run.Verdict // and by whom, once answered is closed
	by       string
	answered chan struct{}
}

// answer accepts only the first answer; a.mu is held.
func (q *openQuestion) answer(said run.Verdict, by string) bool {
	if q.said != "" {
		return false
	}
	q.said, q.by = said, by
	close(q.answered)
	return true
}

// Open returns the asker of a run. Other processes of the user can reach it until done is called.
func Open(c Config) (a *Asker, done func(), err error) {
	a = &Asker{Config: c, talk: talkTime, turn: make(chan struct{}, 1)}
	l, err := localsocket.Listen(c.Record.Dir(), controlSocket)
	if err != nil {
		return nil, nil, err
	}
	var group sync.WaitGroup
	group.Go(func() { a.listen(l, &group) })
	return a, func() {
		l.Close()
		group.Wait()
		_ = os.Remove(filepath.Join(c.Record.Dir(), controlSocket))
	}, nil
}

// SetMachine sets the machine to stop during questions. A nil asker has no questions.
func (a *Asker) SetMachine(m *machine.Machine) {
	if a == nil {
		return
	}
	a.Live.Lock()
	defer a.Live.Unlock()
	a.TakeMachine(m)
}

// TakeMachine is SetMachine for a caller that has locked Live. Nil means no machine.
func (a *Asker) TakeMachine(m *machine.Machine) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machine = m
	if m != nil && len(a.Live.Taken) > 0 { // they may have changed since its start
		m.SetRules(a.Live.Rules(a.Upstream, a.Granted))
	}
}

// Denied returns a hint at the first question since the last call that was not answered with yes, "" if there is none.
func (a *Asker) Denied() string {
	if a == nil {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	since := a.told
	a.told = len(a.Result.Approvals)
	for _, done := range a.Result.Approvals[min(since, a.told):] {
		if done.Verdict == run.Deny {
			return done.String()
		}
	}
	return ""
}

// Ask asks one question; the network asks one at a time.
func (a *Asker) Ask(ctx context.Context, about netstack.Question) netstack.Answer {
	a.mu.Lock()
	m := a.machine
	a.mu.Unlock()
	if said, known := a.before(about); known {
		return said
	}
	done := run.Approval{Host: about.Target(), Request: askedRequest(a.Redactor, about), Verdict: run.Deny}
	if !a.ask(ctx, m, about.Rule, &done) {
		return netstack.Answer{Why: pausing}
	}
	if done.Verdict == run.AllowAlways {
		a.remember(&done)
	}
	return a.note(done)
}

// pausing is the reason while a session is about to be paused: the code asks again after its resume.
const pausing = "the session is paused or forked"

// ask asks one question while the machine is stopped, and fills in the answer. It returns false if a pause begins.
func (a *Asker) ask(ctx context.Context, m *machine.Machine, rule string, done *run.Approval) bool {
	begin := time.Now()
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		done.Why = "the run has ended"
		return true
	}
	clock, release, err := a.Hold(ctx)
	if err != nil {
		return false
	}
	defer release()
	thaw, err := func() (func() error, error) {
		if m == nil {
			return nil, errors.New("the machine has not started yet")
		}
		return m.Freeze(ctx)
	}()
	if err == nil {
		clock.Stop()
		done.Verdict, done.By = a.put(ctx, run.Question{
			RunID: a.Record.ID, Host: done.Host, Request: done.Request, Rule: rule,
			Until: time.Now().Add(a.Wait),
		})
		if done.Verdict == "" {
			done.Verdict, done.Why = run.Deny, fmt.Sprintf("nobody answered within %g s", a.Wait.Seconds())
			if ctx.Err() != nil {
				done.Why = "the run has ended"
			}
		}
		clock.Resume()
		if err = thaw(); err != nil {
			done.Verdict = run.Deny
		}
	}
	if err != nil {
		done.Why = err.Error()
	}
	done.Ms = time.Since(begin).Milliseconds()
	return true
}

// remember stores an approval in the home. If that fails, the approval is for this run only.
func (a *Asker) remember(done *run.Approval) {
	e := policy.Approved{
		Host: done.Host, Ceiling: a.Result.Policy.Ceiling, By: a.Record.Owner, Run: a.Record.ID, At: time.Now(),
	}
	if err := policy.OpenApprovals(a.Home).Add(e); err != nil {
		done.Verdict, done.Why = run.AllowRun, "for this run only: "+err.Error()
		a.Tell(run.Event{Kind: run.EventStore, Message: done.Why})
	}
}

// note records an approval, and returns the network's answer.
func (a *Asker) note(done run.Approval) netstack.Answer {
	a.mu.Lock()
	a.Result.Approvals = append(a.Result.Approvals, done)
	a.mu.Unlock()
	a.Note(audit.NetAsked, done)
	once := done.Verdict == run.AllowOnce
	return netstack.Answer{Allow: done.Verdict != run.Deny, Once: once, None: done.By == "", Why: done.String()}
}

// before returns the answer if the run's user has always allowed the connection. If the list can't be read, somebody is
// asked.
func (a *Asker) before(about netstack.Question) (netstack.Answer, bool) {
	if a.Record.Via == run.ViaHTTP {
		return netstack.Answer{}, false
	}
	_, ok, err := policy.OpenApprovals(a.Home).Find(about.Target(), a.Result.Policy.Ceiling, a.Record.Owner)
	if err != nil {
		a.Tell(run.Event{Kind: run.EventStore, Message: err.Error()})
	}
	if !ok {
		return netstack.Answer{}, false
	}
	said := a.note(run.Approval{Host: about.Target(), Verdict: run.AllowAlways, By: byBefore})
	said.Known = true
	return said, true
}

// attended reports whether the starter of a run by this interface may give permanent answers.
func attended(via record.Via) bool { return via == run.ViaCLI || via == run.ViaAPI }

// put opens a question until somebody answers it, or its time is over.
func (a *Asker) put(ctx context.Context, q run.Question) (said run.Verdict, by string) {
	ctx, cancel := context.WithDeadline(ctx, q.Until)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	open := &openQuestion{Question: q, answered: make(chan struct{})}
	if a.Result != nil {
		open.ceiling = a.Result.Policy.Ceiling
	}
	a.mu.Lock()
	a.open = open
	a.mu.Unlock()
	if approve := a.Approver(); approve != nil {
		group.Go(func() {
			if said := approve(ctx, q); (said.Valid() || said == run.AllowAlways && attended(a.Record.Via)) &&
				ctx.Err() == nil { // else others may
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
