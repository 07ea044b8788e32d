package mcp

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The memory of calls over HTTP is reserved before it is used. A call needs memory to decode its request, and to build
// its answer and hold it until its client has read it.

// UsualMemory is the maximum that a server over HTTP uses with the worst callers. It is below 1 GiB, and does not
// limit work that needs more.
const UsualMemory = 768 << 20

// Limits of that memory.
const (
	budgetBytes    = 256 << 20        // of all calls; with the rest of a server it stays below 1 GiB
	budgetPatience = 10 * time.Second // how long a request waits for its share
	answerPatience = 30 * time.Second // the same for the result of a run, which is then sent without its output

	decodeCost = 6       // bytes of memory for a byte of a request during decoding
	keptCost   = 3       // and afterwards, during the call
	tokenCost  = 128     // bytes of memory for a token of a request beyond its text
	answerCost = 4       // bytes of memory for a byte of an answer, as JSON
	freeBytes  = 4 << 10 // of a request, and of an answer, without waiting: small calls always pass

	firstBytes = 1 << 20 // bytes that a caller without other memory always gets at once

	largeBytes = 256 << 10       // of a request that waits for its turn to be decoded, a slow step
	decodeTime = 2 * time.Second // how long its decoding may take until the next one begins
)

// newDecoding bounds the large requests that are decoded at once: half of the processors stay for everything
// else.
func newDecoding() *filing { return newFiling(max(runtime.GOMAXPROCS(0)/2, 1)) }

// budget is memory that callers share. The waiting caller that holds the least is next, so a caller who holds
// much blocks nobody.
type budget struct {
	most, first int64

	mu      sync.Mutex
	held    int64
	own     map[string]int64 // held, by caller
	waiting []*claim         // the oldest first
}

// claim is a share that a caller waits for.
type claim struct {
	caller string
	bytes  int64
	in     chan struct{} // closed when it is granted
}

// newBudget returns a budget with an amount of memory, and beyond it a first share for each caller.
func newBudget(most, first int64) *budget {
	return &budget{most: most, first: first, own: map[string]int64{}}
}

// draw waits for a caller's share. The error is a *LimitError if the share does not become free in time, or never
// can.
func (b *budget) draw(ctx context.Context, caller string, bytes int64, patience time.Duration) error {
	if bytes > b.most/4*3 {
		text := fmt.Sprintf("the call would take %d MiB of memory, and %d is the bound: send or ask for less", bytes>>20,
			b.most/4*3>>20)
		return &LimitError{Limit: "memory", Most: int(b.most / 4 * 3), Text: text}
	}
	b.mu.Lock()
	if b.own[caller] == 0 && bytes <= b.first {
		b.take(caller, bytes)
		b.mu.Unlock()
		return nil
	}
	c := &claim{caller, bytes, make(chan struct{})}
	b.waiting = append(b.waiting, c)
	b.grant()
	b.mu.Unlock()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-c.in:
		return nil
	case <-late.C:
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, other := range b.waiting {
		if other == c {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.grant() // those after it may fit
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return errNoMemory
		}
	}
	return nil // it was granted meanwhile
}

// add changes the memory that a caller holds, without waiting.
func (b *budget) add(caller string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.take(caller, bytes)
	b.grant()
}

func (b *budget) take(caller string, bytes int64) {
	b.held += bytes
	if b.own[caller] += bytes; b.own[caller] == 0 {
		delete(b.own, caller)
	}
}

// errNoMemory means that a share did not become free in time.
var errNoMemory = &LimitError{Limit: "memory", Most: budgetBytes,
	Text: "calls, and answers that nobody has read, take all the memory: read them, or try again in a moment"}

// grant grants waiting claims as far as memory is free. A caller that holds more than a quarter waits without blocking
// others. Nobody overtakes the next claim, which could otherwise wait forever.
func (b *budget) grant() {
	for {
		next := -1
		for i, c := range b.waiting {
			if b.own[c.caller] <= b.most/4 && (next < 0 || b.own[c.caller] < b.own[b.waiting[next].caller]) {
				next = i
			}
		}
		if next < 0 || b.held+b.waiting[next].bytes > b.most {
			return
		}
		c := b.waiting[next]
		b.waiting = append(b.waiting[:next], b.waiting[next+1:]...)
		b.take(c.caller, c.bytes)
		close(c.in)
	}
}

// lease is the memory of one request over HTTP until its answer is written. A nil lease, of a call that did not
// arrive over HTTP, costs nothing.
type lease struct {
	budget *budget
	caller string

	mu      sync.Mutex
	request int64  // held for the request
	answer  int64  // held for the answer
	kept    int64  // of the request, to be held after decoding
	turn    func() // releases the turn to decode
	over    bool
	parts   []*lease // of the calls of a batch, for their answers
}

// part returns the lease for the answer of one call of the request: a batch has several calls, and their answers
// do not share room.
func (l *lease) part() *lease {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &lease{budget: l.budget, caller: l.caller, over: l.over}
	l.parts = append(l.parts, p)
	return p
}

// enter waits for a large request's turn to be decoded.
func (l *lease) enter(ctx context.Context, decoding *filing, body int) error {
	if body <= largeBytes {
		return nil
	}
	busy := &LimitError{Limit: "decoding", Most: cap(decoding.all),
		Text: "other large requests are being decoded: try again in a moment"}
	timed, cancel := context.WithTimeoutCause(ctx, budgetPatience, busy)
	defer cancel()
	leave, err := decoding.enter(timed, l.caller)
	if err != nil {
		return err
	}
	leave = sync.OnceFunc(leave)
	time.AfterFunc(decodeTime, leave)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn = leave
	return nil
}

// decode reserves the memory to decode a request.
func (l *lease) decode(ctx context.Context, body, tokens int) error {
	if body <= freeBytes {
		return nil
	}
	cost := int64(body)*decodeCost + int64(tokens)*tokenCost
	if err := l.budget.draw(ctx, l.caller, cost, budgetPatience); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.request, l.kept = cost, int64(body)*keptCost
	return nil
}

// decoded releases the memory for decoding.
func (l *lease) decoded() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endTurn()
	if l.request > l.kept {
		l.budget.add(l.caller, l.kept-l.request)
		l.request = l.kept
	}
}

func (l *lease) endTurn() {
	if l.turn != nil {
		l.turn()
	}
}

// draw reserves room for an answer of that many bytes of JSON. With room already reserved it does not wait: the
// estimate was close.
func (l *lease) draw(ctx context.Context, bytes int64, patience time.Duration) error {
	if l == nil || bytes <= freeBytes {
		return nil
	}
	cost := bytes * answerCost
	l.mu.Lock()
	first := l.answer == 0
	if !first && l.answer != cost {
		l.budget.add(l.caller, cost-l.answer)
		l.answer = cost
	}
	l.mu.Unlock()
	if !first {
		return nil
	}
	if err := l.budget.draw(ctx, l.caller, cost, patience); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer += cost
	if l.over { // its client has gone, and a resumable stream receives the answer; it is built within moments
		time.AfterFunc(answerPatience, l.close)
	}
	return nil
}

// lend holds the memory of the request until a run has ended that outlives its call.
func (l *lease) lend(ended <-chan struct{}) {
	if l == nil {
		return
	}
	l.mu.Lock()
	bytes := l.request
	l.mu.Unlock()
	if bytes == 0 {
		return
	}
	l.budget.add(l.caller, bytes)
	go func() {
		<-ended
		l.budget.add(l.caller, -bytes)
	}()
}

// close releases everything.
func (l *lease) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.endTurn()
	for _, p := range l.parts {
		p.close()
	}
	l.parts = nil
	if n := l.request + l.answer; n > 0 {
		l.budget.add(l.caller, -n)
	}
	l.request, l.kept, l.answer = 0, 0, 0
}

// leaseHeader identifies the lease of a request for its handler: the SDK passes on a request's header, but not
// its context.
const leaseHeader = "Unitask-Lease"

// leases are the leases of the current requests.
type leases struct {
	mu   sync.Mutex
	last int64
	all  map[string]*lease
}

// openLease registers a request's lease until the request is over.
func (s *Server) openLease(r *http.Request) (l *lease, over func()) {
	l = &lease{budget: s.budget, caller: callerOf(r)}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	if s.leases.all == nil {
		s.leases.all = map[string]*lease{}
	}
	s.leases.last++
	id := strconv.FormatInt(s.leases.last, 10)
	s.leases.all[id] = l
	r.Header.Set(leaseHeader, id)
	return l, func() {
		s.leases.mu.Lock()
		delete(s.leases.all, id)
		s.leases.mu.Unlock()
		l.close()
	}
}

// lease returns the lease of a request, nil if the request did not arrive over HTTP or is over.
func (s *Server) lease(extra *sdk.RequestExtra) *lease {
	if extra == nil || extra.Header == nil {
		return nil
	}
	s.leases.mu.Lock()
	defer s.leases.mu.Unlock()
	return s.leases.all[extra.Header.Get(leaseHeader)]
}

// leaseKey is the context key for the lease of a tool's call.
type leaseKey struct{}

func withLease(ctx context.Context, l *lease) context.Context {
	return context.WithValue(ctx, leaseKey{}, l)
}

// leaseOf returns the lease of a tool's call: that of its request, even when the request is over.
func leaseOf(ctx context.Context) *lease {
	l, _ := ctx.Value(leaseKey{}).(*lease)
	return l
}

// countAnswers reserves the memory of an answer before it becomes JSON. Tools do so themselves (told).
func (s *Server) countAnswers(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		l := s.lease(req.GetExtra())
		if method == "tools/call" || l == nil {
			return next(ctx, method, req)
		}
		l.decoded()
		l = l.part()
		res, err := next(withLease(ctx, l), method, req)
		if err != nil {
			return nil, err
		}
		if err := l.draw(ctx, jsonSize(res), budgetPatience); err != nil {
			return nil, err
		}
		return res, nil
	}
}
