package netstack

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
)

// Question asks whether a connection may be made that a rule allows only on approval (Rule.Ask): to exactly this
// name, or address, and port. The name is in normal form: its only characters are a-z, 0-9, hyphen, underscore
// and dot.
type Question struct {
	Name string // "" if the code named an address
	Addr netip.Addr
	Port uint16
	Rule string // the rule that requires the question
	// Method and Path are those of the waiting request if the broker reads requests to the name; else "". The
	// guest chose them: they are printable ASCII, of maxLogged bytes at most.
	Method, Path string
}

// Target returns HOST:PORT.
func (q Question) Target() string {
	host := q.Name
	if host == "" {
		host = q.Addr.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(q.Port)))
}

// Answer is the answer to a Question. The zero value denies.
type Answer struct {
	Allow bool
	Once  bool   // ask again for the next connection or request to the same target
	None  bool   // nobody answered
	Known bool   // nobody had to be asked: it does not count as a question
	Why   string // for the netlog
}

const (
	// maxQuestions bounds the questions of a run.
	maxQuestions = 16
	// maxUnanswered is the number of unanswered questions after which nobody is asked any more.
	maxUnanswered = 2
)

// Reasons for a denial about which nobody was asked.
var (
	tooManyQuestions = "more than " + strconv.Itoa(maxQuestions) + " questions in a run"
	tooFewAnswers    = "nobody has answered before"
)

// Unasked reports whether a rule asks about the connection, but nobody was asked any more.
func (d Decision) Unasked() bool {
	return strings.HasSuffix(d.Reason, tooManyQuestions) || strings.HasSuffix(d.Reason, tooFewAnswers)
}

// Asker asks one question at a time, and remembers the answers. It may outlive a Network: a Network that
// continues another one (Detach, a paused machine) takes over its Asker, with the limits.
type Asker struct {
	ask  func(context.Context, Question) Answer
	turn chan struct{} // held while asking

	mu                sync.Mutex
	known             map[string]known // by target
	forgotten         int              // how often answers were forgotten
	asked, unanswered int
}

// NewAsker returns an Asker. ask must return soon after its context has ended.
func NewAsker(ask func(context.Context, Question) Answer) *Asker {
	return &Asker{ask: ask, turn: make(chan struct{}, 1), known: map[string]known{}}
}

// known is an answer that also applies to later connections.
type known struct {
	Answer
	about Question
}

// answer waits for somebody to decide whether a connection may be made. A nil Asker denies.
func (a *Asker) answer(ctx context.Context, q Question) Answer {
	if a == nil {
		return Answer{Why: "nobody is there to be asked"}
	}
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return Answer{Why: "the run has ended"}
	}
	if said, ok := a.decided(q); ok {
		return said
	}
	a.mu.Lock()
	forgotten := a.forgotten
	a.mu.Unlock()
	said := a.ask(ctx, q)
	a.mu.Lock()
	defer a.mu.Unlock()
	if ctx.Err() != nil { // the connection is gone, alone or with its network: nothing was decided
		said.Allow = false
		return said
	}
	if said.Known {
		a.asked--
	}
	if said.None {
		said.Allow = false
		a.unanswered++
	}
	if (!said.Allow || !said.Once) && forgotten == a.forgotten { // otherwise the answer may concern what is denied now
		a.known[q.Target()] = known{said, q}
	}
	return said
}

// knows reports whether the answer to a question is already known and stays valid. A nil Asker knows every
// answer.
func (a *Asker) knows(q Question) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.known[q.Target()]
	return ok
}

// forget drops the answers to the questions that about matches, so that they are asked again.
func (a *Asker) forget(about func(Question) bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten++
	maps.DeleteFunc(a.known, func(_ string, k known) bool { return about(k.about) })
}

// decided returns the answer if the question need not be asked; otherwise it counts the question.
func (a *Asker) decided(q Question) (Answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if said, ok := a.known[q.Target()]; ok {
		return said.Answer, true
	}
	switch {
	case a.asked == maxQuestions:
		return Answer{Why: tooManyQuestions}, true
	case a.unanswered == maxUnanswered:
		return Answer{Why: tooFewAnswers}, true
	}
	a.asked++
	return Answer{}, false
}

// approved returns the rule for an approved connection: it allows exactly the question's target.
func (q Question) approved() *Rule {
	return &Rule{Text: q.Rule, Host: q.Name, Addr: q.Addr, Port: q.Port}
}
