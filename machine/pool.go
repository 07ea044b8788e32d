package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// PoolSize bounds the number of idle clones that are ready. Each clone serves one run and is then destroyed.
type PoolSize struct {
	// Min clones are ready for the pool's own class as soon as possible; with 0, none is made before the first
	// run.
	Min int
	// Max bounds all clones together; 0 means no pool. Between Min and Max, demand decides: the pool keeps as
	// many clones as runs arrived in the last half minute.
	Max int
}

// Check returns an error if a size is invalid.
func (s PoolSize) Check() error {
	if s.Min < 0 || s.Max < s.Min || s.Max > maxPool {
		return fmt.Errorf("use MIN:MAX, with 0 ≤ MIN ≤ MAX ≤ %d", maxPool)
	}
	return nil
}

// ParsePoolSize parses MIN:MAX, or one number for both.
func ParsePoolSize(s string) (PoolSize, error) {
	low, high, ok := strings.Cut(s, ":")
	if !ok {
		high = low
	}
	lo, err := strconv.Atoi(low)
	hi, err2 := strconv.Atoi(high)
	size := PoolSize{lo, hi}
	if err != nil || err2 != nil {
		size.Min = -1
	}
	if err := size.Check(); err != nil {
		return PoolSize{}, fmt.Errorf("pool size %q: %w", s, err)
	}
	return size, nil
}

const (
	maxPool = 256
	// demandWindow is the period of the demand: as many clones are ready as runs arrived in it.
	demandWindow = 30 * time.Second
	// poolIdle is the time without a run after which the pool is emptied; the next run fills it.
	poolIdle = 10 * time.Minute
	// standbyAge bounds the age of a ready clone; its template is not much older.
	standbyAge = time.Hour
	// poolTick is the interval at which the pool checks itself.
	poolTick = time.Second
	// runsFirst is the pause after a run took the first clone. No clone is made then: most runs end by then, and have
	// the processors to themselves.
	runsFirst = 250 * time.Millisecond
	// makerRest is the pause after a clone of a class could not be made.
	makerRest = 10 * time.Second
)

// standby is a machine that is ready or becoming ready.
type standby interface {
	Alive() bool
	Close() error
	// Resident returns the memory that it uses, in bytes.
	Resident() int64
}

// making produces a pool's machines. Several goroutines call it at once.
type making[M standby] interface {
	// spawn starts a machine that is not ready yet: a spare.
	spawn(context.Context, Spec) (M, error)
	// ready prepares a spawned machine as far as possible without a run.
	ready(context.Context, M) error
	// rest is called while no machine may be ready.
	rest()
}

// pool decides how many machines are ready. One goroutine decides (tend); at most half as many others as there
// are processors make machines.
type pool[M standby] struct {
	size   PoolSize
	maker  making[M]
	memory func() (total, free int64) // in bytes
	makers int                        // machines made at once: the other half of the processors is for runs
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	group  sync.WaitGroup

	mu     sync.Mutex
	groups map[string]*group[M] // by the spec's key
	making int
	last   time.Time // of the last run
	due    time.Time // when to replace taken machines; zero while none is missing
	stats  PoolStats
	fault  string // why the pool's own class can't be made
	held   string // why no machine may be ready
}

// group holds the machines of one spec.
type group[M standby] struct {
	spec   Spec
	floor  int // number of ready machines without demand
	ready  []kept[M]
	spare  *kept[M] // waits for its state: saves a start
	making bool
	takes  []time.Time // of the last runs
	rest   time.Time   // no machine is made before this time
	failed error       // why the last machine could not be made, or nil
}

type kept[M standby] struct {
	machine M
	since   time.Time
}

func (k kept[M]) good(now time.Time) bool {
	return k.machine.Alive() && now.Sub(k.since) < standbyAge
}

// PoolStats are a pool's figures.
type PoolStats struct {
	Idle   int   `json:"idle"`   // clones that are ready
	Spare  int   `json:"spare"`  // QEMUs that wait for a state
	Making int   `json:"making"` // clones being made
	Served int64 `json:"served"` // runs that got a ready clone
	Missed int64 `json:"missed"` // runs that did not
	// MemoryMB is the proportional memory of all idle clones.
	MemoryMB int64  `json:"memoryMb"`
	Held     string `json:"held,omitempty"` // why no clone is made now
}

func newPool[M standby](size PoolSize, maker making[M], memory func() (total, free int64)) *pool[M] {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pool[M]{size: size, maker: maker, memory: memory, makers: max(1, runtime.GOMAXPROCS(0)/2), ctx: ctx,
		cancel: cancel,
		wake:   make(chan struct{}, 1), groups: map[string]*group[M]{}, last: time.Now()}
	p.group.Go(p.tend)
	return p
}

// stock keeps Min machines of a spec ready from now on.
func (p *pool[M]) stock(spec Spec) {
	p.mu.Lock()
	p.groupOf(spec).floor = p.size.Min
	p.last = time.Now()
	p.mu.Unlock()
	p.ring()
}

// fail notes why the pool's own class can't be made.
func (p *pool[M]) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = err.Error()
}

// groupOf returns the group for a spec. The caller holds mu.
func (p *pool[M]) groupOf(spec Spec) *group[M] {
	s := p.groups[spec.Key()]
	if s == nil {
		s = &group[M]{spec: spec}
		p.groups[spec.Key()] = s
	}
	return s
}

func (p *pool[M]) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take returns a ready machine, else a spare, and whether there was one. The request counts as demand.
func (p *pool[M]) take(spec Spec) (got M, ok bool) {
	if spec.Accel == "" || p.ctx.Err() != nil {
		return got, false
	}
	p.mu.Lock()
	s := p.groupOf(spec)
	now := time.Now()
	p.last = now
	if p.due.IsZero() {
		p.due = now.Add(runsFirst)
	}
	if s.takes = append(s.takes, now); len(s.takes) > maxPool {
		s.takes = s.takes[1:]
	}
	var dead []kept[M]
	for !ok && len(s.ready) > 0 {
		first := s.ready[0]
		s.ready = s.ready[1:]
		if ok = first.machine.Alive(); ok {
			got = first.machine
		} else {
			dead = append(dead, first)
		}
	}
	if ok {
		p.stats.Served++
	} else {
		p.stats.Missed++
		if spare := s.spare; spare != nil {
			s.spare = nil
			if ok = spare.machine.Alive(); ok {
				got = spare.machine
			} else {
				dead = append(dead, *spare)
			}
		}
	}
	p.mu.Unlock()
	p.ring()
	destroy(dead)
	return got, ok
}

func destroy[M standby](list []kept[M]) {
	for _, k := range list {
		k.machine.Close()
	}
}

// tend keeps the pool at its size until the pool is closed.
func (p *pool[M]) tend() {
	tick := time.NewTicker(poolTick)
	defer tick.Stop()
	var due <-chan time.Time
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		case <-p.wake:
		case <-due:
		}
		now := time.Now()
		why := p.closed(now)
		p.mu.Lock()
		p.held = why
		p.mu.Unlock()
		if why != "" {
			p.maker.rest()
		}
		destroy(p.surplus(now, why != ""))
		if due = nil; why == "" {
			if wait := p.refill(now); wait > 0 {
				due = time.After(wait)
			}
		}
	}
}

// target returns how many machines of a group should be ready.
func (p *pool[M]) target(s *group[M], now time.Time) int {
	for len(s.takes) > 0 && now.Sub(s.takes[0]) > demandWindow {
		s.takes = s.takes[1:]
	}
	return min(max(len(s.takes), s.floor), p.size.Max)
}

// surplus removes and returns the machines that are no longer wanted.
func (p *pool[M]) surplus(now time.Time, closed bool) (out []kept[M]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, s := range p.groups {
		keep := p.target(s, now)
		if closed {
			keep = 0
		}
		var stay []kept[M]
		for i, k := range s.ready {
			if i < keep && k.good(now) {
				stay = append(stay, k)
			} else {
				out = append(out, k)
			}
		}
		s.ready = stay
		if s.spare != nil && (keep == 0 || !s.spare.good(now)) {
			out, s.spare = append(out, *s.spare), nil
		}
		if keep == 0 && s.floor == 0 && !s.making && len(s.takes) == 0 {
			delete(p.groups, key)
		}
	}
	return out
}

// closed returns why no machine may be ready now, or "".
func (p *pool[M]) closed(now time.Time) string {
	if total, free := p.memory(); free < total/10 { // the rest is for other programs
		return "memory is short"
	}
	if now.Sub(p.lastRun()) > poolIdle {
		return "no run for " + poolIdle.String()
	}
	return ""
}

// lastRun returns the time of the last run's request.
func (p *pool[M]) lastRun() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// refill starts makers for missing machines. If runs need the processors first, it returns how long to wait.
func (p *pool[M]) refill(now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait = p.due.Sub(now); p.ctx.Err() != nil || wait > 0 {
		return wait
	}
	total, spares, missing := 0, 0, false
	for _, s := range p.groups {
		total += len(s.ready)
		if s.spare != nil {
			spares++
		}
	}
	for _, s := range p.groups {
		want := p.target(s, now)
		full := len(s.ready) >= want || total+p.making >= p.size.Max
		if want == 0 || full && !s.making && (s.spare != nil || spares+p.making >= p.size.Max) {
			continue
		}
		missing = true
		if s.making || now.Before(s.rest) || p.making >= p.makers {
			continue
		}
		s.making = true
		p.making++
		p.group.Go(func() { p.make(s, full) })
	}
	if !missing {
		p.due = time.Time{}
	}
	return 0
}

// make makes one ready machine for a group, or only a spare.
func (p *pool[M]) make(s *group[M], onlySpare bool) {
	p.mu.Lock()
	spare := s.spare
	if !onlySpare {
		s.spare = nil
	}
	p.mu.Unlock()
	var c *kept[M]
	var err error
	if c = spare; onlySpare || c == nil {
		var m M
		if m, err = p.maker.spawn(p.ctx, s.spec); err == nil {
			c = &kept[M]{m, time.Now()}
		} else {
			c = nil
		}
	}
	if err == nil && !onlySpare {
		err = p.maker.ready(p.ctx, c.machine)
	}
	p.mu.Lock()
	s.making = false
	p.making--
	s.failed = err
	switch {
	case err != nil:
		s.rest = time.Now().Add(makerRest)
	case p.ctx.Err() != nil:
	case onlySpare:
		s.spare, c = c, nil
	default:
		s.ready, c = append(s.ready, kept[M]{c.machine, time.Now()}), nil
	}
	p.mu.Unlock()
	if c != nil {
		c.machine.Close()
	}
	p.ring()
}

// figures returns the pool's figures.
func (p *pool[M]) figures() PoolStats {
	st, idle := p.count()
	for _, m := range idle { // takes milliseconds each: no run waits for it
		st.MemoryMB += m.Resident() >> 20
	}
	return st
}

// count returns the figures without the memory, and the idle machines.
func (p *pool[M]) count() (st PoolStats, idle []M) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st = p.stats
	st.Making, st.Held = p.making, cmp.Or(p.held, p.fault)
	for _, s := range p.groups {
		st.Idle += len(s.ready)
		for _, k := range s.ready {
			idle = append(idle, k.machine)
		}
		if s.spare != nil {
			st.Spare++
		}
		if s.floor > 0 && errors.As(s.failed, new(*GivenUp)) { // another class that runs want holds nothing up
			st.Held = cmp.Or(st.Held, s.failed.Error())
		}
	}
	return st, idle
}

// close destroys every machine, and returns when all are gone. It may be called again.
func (p *pool[M]) close() {
	p.cancel()
	p.group.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, s := range p.groups {
		destroy(s.ready)
		if s.spare != nil {
			s.spare.machine.Close()
		}
		delete(p.groups, key)
	}
}
