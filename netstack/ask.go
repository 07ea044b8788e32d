package netstack

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"strconv"
	"sync"
)

// Question is about a connection that a rule allows only if somebody says so (Rule.Ask): to
// exactly this name, or address, and port. The name is in normal form, which has no
// character but a-z, 0-9, hyphen, underscore and dot.
type Question struct {
	Name string // "" where the code named an address
	Addr netip.Addr
	Port uint16
	Rule string // that has it asked
	// Method and Path are those of the request that waits, where the broker reads requests to the
	// name; else "". The guest chose them: they are printable ASCII, of maxLogged bytes at most.
	Method, Path string
}

// Target is HOST:PORT.
func (q Question) Target() string {
	host := q.Name
	if host == "" {
		host = q.Addr.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(q.Port)))
}

// Answer is what came of a Question. The zero value denies.
type Answer struct {
	Allow bool
	Once  bool   // the next connection, or request, to the same is asked about again
	None  bool   // nobody answered
	Known bool   // nobody had to be asked: it counts as no question
	Why   string // for the netlog
}

const (
	// maxQuestions bounds what the people around a run are asked.
	maxQuestions = 16
	// maxUnanswered is after how many questions without an answer nobody is asked any more.
	maxUnanswered = 2
)

// Asker asks one question at a time, and remembers the answers. It may outlive a Network: one that continues where
// another was (Detach, a machine that was paused) takes it over, with its bounds.
type Asker struct {
	ask  func(context.Context, Question) Answer
	turn chan struct{} // held by who asks

	mu                sync.Mutex
	known             map[string]known // by target
	forgotten         int              // how often some were
	asked, unanswered int
}

// NewAsker returns one. ask must return soon after its context has ended.
func NewAsker(ask func(context.Context, Question) Answer) *Asker {
	return &Asker{ask: ask, turn: make(chan struct{}, 1), known: map[string]known{}}
}

// known is an answer that holds for all that follow it.
type known struct {
	Answer
	about Question
}

// answer waits for somebody to say whether a connection may be made. A nil Asker has nobody.
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
	if ctx.Err() != nil { // the connection is gone, with its network or alone: nothing was decided
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
	if (!said.Allow || !said.Once) && forgotten == a.forgotten { // else it may be about what is denied now
		a.known[q.Target()] = known{said, q}
	}
	return said
}

// knows reports whether the answer to a question holds for all that follow it.
func (a *Asker) knows(q Question) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.known[q.Target()]
	return ok
}

// forget drops answers, so that somebody is asked again.
func (a *Asker) forget(about func(Question) bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forgotten++
	maps.DeleteFunc(a.known, func(_ string, k known) bool { return about(k.about) })
}

// decided returns the answer to a question that is not asked; one that is to be asked is counted.
func (a *Asker) decided(q Question) (Answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if said, ok := a.known[q.Target()]; ok {
		return said.Answer, true
	}
	switch {
	case a.asked == maxQuestions:
		return Answer{Why: "more than " + strconv.Itoa(maxQuestions) + " questions in a run"}, true
	case a.unanswered == maxUnanswered:
		return Answer{Why: "nobody has answered before"}, true
	}
	a.asked++
	return Answer{}, false
}

// approved returns the rule by which a connection that was asked about is made: to what was asked
// about, and nothing else that the rule is about.
func (q Question) approved() *Rule {
	return &Rule{Text: q.Rule, Host: q.Name, Addr: q.Addr, Port: q.Port}
}
