package netstack

import (
	"context"
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
	Once  bool   // the next connection to the same is asked about again
	None  bool   // nobody answered
	Why   string // for the netlog
}

const (
	// maxQuestions bounds what the people around a run are asked.
	maxQuestions = 16
	// maxUnanswered is after how many questions without an answer nobody is asked any more.
	maxUnanswered = 2
)

// asker asks one question at a time, and remembers the answers.
type asker struct {
	ask  func(context.Context, Question) Answer // nil: there is nobody
	turn chan struct{}                          // held by who asks

	mu                sync.Mutex
	known             map[string]Answer // by target
	asked, unanswered int
}

func newAsker(ask func(context.Context, Question) Answer) *asker {
	return &asker{ask: ask, turn: make(chan struct{}, 1), known: map[string]Answer{}}
}

// answer waits for somebody to say whether a connection may be made.
func (a *asker) answer(ctx context.Context, q Question) Answer {
	if a.ask == nil {
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
	said := a.ask(ctx, q)
	a.mu.Lock()
	defer a.mu.Unlock()
	if said.None {
		said.Allow = false
		a.unanswered++
	}
	if !said.Allow || !said.Once {
		a.known[q.Target()] = said
	}
	return said
}

// forget has all be asked about again, as long as there are questions left.
func (a *asker) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.known)
}

// decided returns the answer to a question that is not asked; one that is to be asked is counted.
func (a *asker) decided(q Question) (Answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if said, ok := a.known[q.Target()]; ok {
		return said, true
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

// approved is the rule by which a connection that was asked about is made: to what was asked
// about, and nothing else that the rule is about.
func (q Question) approved() *Rule {
	return &Rule{Text: q.Rule, Host: q.Name, Addr: q.Addr, Port: q.Port}
}
