package unitask

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// PoolSize is how many idle clones stand ready. Each serves one run and is then
// destroyed.
type PoolSize struct {
	// Min stand ready for the pool's own shape as soon as they can be made; 0 makes
	// none before a run has asked.
	Min int
	// Max bounds all of them together; 0 is no pool. Between the two, demand decides:
	// as many as runs came in the last half minute.
	Max int
}

// ParsePoolSize reads MIN:MAX, or one number for both.
func ParsePoolSize(s string) (PoolSize, error) {
	low, high, ok := strings.Cut(s, ":")
	if !ok {
		high = low
	}
	lo, err := strconv.Atoi(low)
	hi, err2 := strconv.Atoi(high)
	if err != nil || err2 != nil || lo < 0 || hi < lo || hi > maxPool {
		return PoolSize{}, fmt.Errorf("pool size %q: use MIN:MAX, with 0 ≤ MIN ≤ MAX ≤ %d", s, maxPool)
	}
	return PoolSize{lo, hi}, nil
}

const (
	maxPool = 256
	// demandWindow: as many clones stand ready as runs came in this time.
	demandWindow = 30 * time.Second
	// poolIdle: without a run for so long, the pool is emptied; the next run fills it.
	poolIdle = 10 * time.Minute
	// standbyAge: a clone does not stand ready for longer; its template is not much
	// older.
	standbyAge = time.Hour
	// poolTick is how often the pool looks at itself without being asked.
	poolTick = time.Second
	// runsFirst: no clone is made for so long after a run took the first: most runs
	// are over by then, and have the processors to themselves.
	runsFirst = 250 * time.Millisecond
	// makerRest is how long no clone of a shape is made after one could not be.
	makerRest = 10 * time.Second
)

// pool keeps clones ready. One goroutine decides (tend); at most so many others as
// half the processors make clones.
type pool struct {
	rt     *Runtime
	size   PoolSize
	memory func() (total, free int64) // in bytes
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{}
	group  sync.WaitGroup

	mu      sync.Mutex
	shelves map[string]*shelf // by the spec's key
	making  int
	last    time.Time // of the last run
	due     time.Time // when to refill what was taken; zero while all is full
	stats   PoolStats
	fault   string // why the pool's own shape can't be made
	held    string // why nothing may stand ready
}

// shelf is the clones of one shape.
type shelf struct {
	spec   machineSpec
	floor  int // stand ready without demand
	ready  []*standby
	spare  *standby // a QEMU that waits for its state: saves its start
	making bool
	takes  []time.Time // of the last runs
	rest   time.Time   // no clone is made before
}

// PoolStats are a pool's figures.
type PoolStats struct {
	Idle   int   `json:"idle"`   // clones that stand ready
	Spare  int   `json:"spare"`  // QEMUs that wait for a state
	Making int   `json:"making"` // clones being made
	Served int64 `json:"served"` // runs that got a clone that stood ready
	Missed int64 `json:"missed"` // runs that did not
	// MemoryMB is the proportional memory of all idle clones.
	MemoryMB int64  `json:"memoryMb"`
	Held     string `json:"held,omitempty"` // why no clone is made now
}

func newPool(rt *Runtime, size PoolSize) *pool {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pool{rt: rt, size: size, memory: memory, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), shelves: map[string]*shelf{}, last: time.Now()}
	p.group.Go(func() { p.tend(ctx) })
	return p
}

// stock has Min clones of a shape stand ready, in the background. Why it can't is in
// the pool's figures.
func (p *pool) stock(sh Shape) {
	ctx := p.ctx
	p.group.Go(func() {
		err := p.floor(ctx, sh)
		p.mu.Lock()
		defer p.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			p.fault = err.Error()
		}
	})
}

func (p *pool) floor(ctx context.Context, sh Shape) error {
	if _, err := p.rt.MakeTemplate(ctx, sh); err != nil { // and finds out what boots here
		return err
	}
	spec, err := p.rt.resolve(ctx, sh)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.shelf(spec).floor = p.size.Min
	p.last = time.Now()
	p.mu.Unlock()
	p.ring()
	return nil
}

// shelf is the one for a spec; mu is held.
func (p *pool) shelf(spec machineSpec) *shelf {
	s := p.shelves[spec.key()]
	if s == nil {
		s = &shelf{spec: spec}
		p.shelves[spec.key()] = s
	}
	return s
}

func (p *pool) ring() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take returns a clone, nil where none stands ready. The pool sees the demand.
func (p *pool) take(spec machineSpec) *standby {
	if spec.accel == "" {
		return nil
	}
	p.mu.Lock()
	s := p.shelf(spec)
	now := time.Now()
	p.last = now
	if p.due.IsZero() {
		p.due = now.Add(runsFirst)
	}
	if s.takes = append(s.takes, now); len(s.takes) > maxPool {
		s.takes = s.takes[1:]
	}
	var got *standby
	var dead []*standby
	for got == nil && len(s.ready) > 0 {
		got, s.ready = s.ready[0], s.ready[1:]
		if !got.alive() {
			dead = append(dead, got)
			got = nil
		}
	}
	if got != nil {
		p.stats.Served++
	} else {
		p.stats.Missed++
		if got, s.spare = s.spare, nil; got != nil && !got.alive() {
			dead = append(dead, got)
			got = nil
		}
	}
	p.mu.Unlock()
	p.ring()
	destroy(dead)
	return got
}

func destroy(list []*standby) {
	for _, s := range list {
		s.close()
	}
}

// tend keeps the pool at its size until ctx ends.
func (p *pool) tend(ctx context.Context) {
	tick := time.NewTicker(poolTick)
	defer tick.Stop()
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-p.wake:
		case <-due:
		}
		now, why := time.Now(), p.closed()
		p.mu.Lock()
		p.held = why
		p.mu.Unlock()
		if why != "" {
			p.rt.loaded.drop()
		}
		destroy(p.surplus(now, why != ""))
		if due = nil; why == "" {
			if wait := p.refill(ctx, now); wait > 0 {
				due = time.After(wait)
			}
		}
	}
}

// target is how many clones of a shelf should stand ready.
func (p *pool) target(s *shelf, now time.Time) int {
	for len(s.takes) > 0 && now.Sub(s.takes[0]) > demandWindow {
		s.takes = s.takes[1:]
	}
	return min(max(len(s.takes), s.floor), p.size.Max)
}

// surplus takes out what should not be there (any more).
func (p *pool) surplus(now time.Time, closed bool) (out []*standby) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, s := range p.shelves {
		keep := p.target(s, now)
		if closed {
			keep = 0
		}
		kept := s.ready[:0]
		for i, c := range s.ready {
			if i < keep && c.alive() && now.Sub(c.since) < standbyAge {
				kept = append(kept, c)
			} else {
				out = append(out, c)
			}
		}
		s.ready = kept
		if s.spare != nil && (keep == 0 || !s.spare.alive() || now.Sub(s.spare.since) > standbyAge) {
			out, s.spare = append(out, s.spare), nil
		}
		if keep == 0 && s.floor == 0 && !s.making && len(s.takes) == 0 {
			delete(p.shelves, key)
		}
	}
	return out
}

// closed says why nothing may stand ready now, "" if it may.
func (p *pool) closed() string {
	if total, free := p.memory(); free < total/10 { // the rest of the machine's
		return "memory is short"
	}
	if time.Since(p.lastRun()) > poolIdle {
		return "no run for " + poolIdle.String()
	}
	return ""
}

// lastRun is when a run last asked.
func (p *pool) lastRun() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// refill starts makers for what is missing, or says how long to leave the processors
// to the runs.
func (p *pool) refill(ctx context.Context, now time.Time) (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if wait = p.due.Sub(now); ctx.Err() != nil || wait > 0 {
		return wait
	}
	total, missing := 0, false
	for _, s := range p.shelves {
		total += len(s.ready)
	}
	for _, s := range p.shelves {
		want := p.target(s, now)
		full := len(s.ready) >= want || total+p.making >= p.size.Max
		if want == 0 || (full && s.spare != nil && !s.making) {
			continue
		}
		missing = true
		if s.making || now.Before(s.rest) || p.making >= makers() {
			continue
		}
		s.making = true
		p.making++
		p.group.Go(func() { p.make(ctx, s, full) })
	}
	if !missing {
		p.due = time.Time{}
	}
	return 0
}

// makers is how many clones are made at once: half the processors are the runs'.
func makers() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// make makes one clone for a shelf, or only a spare. It makes the template that is
// missing.
func (p *pool) make(ctx context.Context, s *shelf, onlySpare bool) {
	p.mu.Lock()
	c := s.spare
	if !onlySpare {
		s.spare = nil
	}
	p.mu.Unlock()
	var err error
	if onlySpare || c == nil {
		c, err = p.rt.spawn(ctx, s.spec)
		if errors.Is(err, fs.ErrNotExist) {
			if _, err = p.rt.MakeTemplate(ctx, s.spec.shape()); err == nil {
				c, err = p.rt.spawn(ctx, s.spec)
			}
		}
	}
	if err == nil && !onlySpare {
		err = c.ready(ctx, s.spec)
	}
	p.mu.Lock()
	s.making = false
	p.making--
	switch {
	case err != nil:
		s.rest = time.Now().Add(makerRest)
	case ctx.Err() != nil:
	case onlySpare:
		s.spare, c = c, nil
	default:
		c.since = time.Now()
		s.ready, c = append(s.ready, c), nil
	}
	p.mu.Unlock()
	if c != nil {
		c.close()
	}
	p.ring()
}

// figures returns the pool's figures.
func (p *pool) figures() PoolStats {
	st, pids := p.count()
	for _, pid := range pids { // milliseconds each: no run waits for it
		st.MemoryMB += proportional(pid) >> 20
	}
	return st
}

// count returns the figures without the memory, and the idle clones' processes.
func (p *pool) count() (st PoolStats, pids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	st = p.stats
	st.Making, st.Held = p.making, cmp.Or(p.held, p.fault)
	for _, s := range p.shelves {
		st.Idle += len(s.ready)
		for _, c := range s.ready {
			pids = append(pids, c.machine.Pid())
		}
		if s.spare != nil {
			st.Spare++
		}
	}
	return st, pids
}

// close destroys every clone, and returns when all are gone.
func (p *pool) close() {
	p.cancel()
	p.group.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, s := range p.shelves {
		destroy(s.ready)
		if s.spare != nil {
			s.spare.close()
		}
		delete(p.shelves, key)
	}
}

// memory is what there is for us and what of it may be used without hurting others,
// in bytes: the machine's (MemTotal, MemAvailable), or what our cgroup (v2) has and
// still allows, its page cache aside, if that is less. What can't be read is without
// end.
func memory() (total, free int64) {
	total, free = machineMemory()
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return total, free
	}
	_, rest, ok := strings.Cut("\n"+string(self), "\n0::")
	if !ok {
		return total, free
	}
	dir := filepath.Join("/sys/fs/cgroup", strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	limit, errMax := readInt(filepath.Join(dir, "memory.max"))
	used, errUsed := readInt(filepath.Join(dir, "memory.current"))
	if errMax != nil || errUsed != nil {
		return total, free // "max" is no number: no limit
	}
	if stat, err := os.ReadFile(filepath.Join(dir, "memory.stat")); err == nil {
		for line := range strings.Lines(string(stat)) {
			if n, ok := strings.CutPrefix(line, "inactive_file "); ok {
				if cache, err := strconv.ParseInt(strings.TrimSpace(n), 10, 64); err == nil {
					used -= cache
				}
			}
		}
	}
	return min(total, limit), min(free, limit-used)
}

func readInt(name string) (int64, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}

// machineMemory is MemTotal and MemAvailable, in bytes.
func machineMemory() (total, free int64) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return math.MaxInt64, math.MaxInt64
	}
	m, err := proc.Meminfo()
	if err != nil || m.MemTotalBytes == nil || m.MemAvailableBytes == nil {
		return math.MaxInt64, math.MaxInt64
	}
	return int64(*m.MemTotalBytes), int64(*m.MemAvailableBytes)
}

// proportional is a process's share of the memory it uses (Pss), in bytes; 0 if it
// can't be told.
func proportional(pid int) int64 {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return 0
	}
	m, err := proc.ProcSMapsRollup()
	if err != nil {
		return 0
	}
	return int64(m.Pss)
}
