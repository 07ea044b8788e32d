package machine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/vmm"
)

// The pool's decisions, in a bubble of time, with machines that are only numbers.

// fake is a machine of a factory.
type fake struct {
	factory      *factory
	number       int
	key          string
	ready, dead  bool
	closed, used bool
}

func (f *fake) Alive() bool     { return f.factory.ask(func() bool { return !f.dead }) }
func (f *fake) Resident() int64 { return 3 << 20 }
func (f *fake) Close() error {
	f.factory.ask(func() bool { f.closed = true; return true })
	return nil
}

// factory makes them.
type factory struct {
	mu               sync.Mutex
	all              []*fake
	spawn1, ready1   time.Duration // duration of each
	fail             error
	free             int64 // of 1000 bytes of memory
	rests, most, now int   // most is how many were made at once
}

func (f *factory) ask(what func() bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return what()
}

func (f *factory) spawn(ctx context.Context, spec Spec) (*fake, error) {
	f.begin()
	defer f.end()
	if err := f.wait(ctx, f.spawn1); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return nil, f.fail
	}
	m := &fake{factory: f, number: len(f.all), key: spec.Key()}
	f.all = append(f.all, m)
	return m, nil
}

func (f *factory) ready(ctx context.Context, m *fake) error {
	f.begin()
	defer f.end()
	if err := f.wait(ctx, f.ready1); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m.ready = true
	return f.fail
}

func (f *factory) rest() { f.ask(func() bool { f.rests++; return true }) }

func (f *factory) begin() { f.ask(func() bool { f.now++; f.most = max(f.most, f.now); return true }) }
func (f *factory) end()   { f.ask(func() bool { f.now--; return true }) }

func (f *factory) wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// left returns the machines that nobody closed, except the used ones.
func (f *factory) left() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.all {
		if !m.closed && !m.used {
			n++
		}
	}
	return n
}

func (f *factory) memory() (total, free int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return 1000, f.free
}

func testSpec(memoryMB int) Spec {
	return Spec{Image: &image.Image{Digest: "d"}, Accel: vmm.TCG, MemoryMB: memoryMB}
}

// inBubble runs a test with a pool, and closes it: nothing may be left.
func inBubble(t *testing.T, size PoolSize, do func(t *testing.T, p *pool[*fake], f *factory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &factory{free: 1000, spawn1: 40 * time.Millisecond, ready1: 200 * time.Millisecond}
		p := newPool[*fake](size, f, f.memory)
		p.makers = 2
		do(t, p, f)
		p.close()
		p.close()
		if n := f.left(); n != 0 {
			t.Errorf("%d machines are left", n)
		}
		if _, ok := p.take(testSpec(1)); ok {
			t.Error("a machine of a closed pool")
		}
	})
}

// after advances the time, and waits for all effects.
func after(d time.Duration) {
	testwait.Pass(d)
	synctest.Wait()
}

func wantStats(t *testing.T, what string, p *pool[*fake], want PoolStats) {
	t.Helper()
	want.MemoryMB = int64(want.Idle) * 3
	if got := p.figures(); got != want {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

func takeOne(t *testing.T, p *pool[*fake], spec Spec) *fake {
	t.Helper()
	m, ok := p.take(spec)
	if !ok {
		return nil
	}
	switch m.factory.mu.Lock(); {
	case m.closed, m.dead, m.used:
		t.Errorf("machine %d: %+v", m.number, m)
	case m.key != spec.Key():
		t.Errorf("a machine of another spec: %s", m.key)
	}
	m.used = true
	m.factory.mu.Unlock()
	return m
}

func TestPoolFills(t *testing.T) {
	inBubble(t, PoolSize{Min: 2, Max: 4}, func(t *testing.T, p *pool[*fake], f *factory) {
		after(time.Minute)
		wantStats(t, "nobody has asked", p, PoolStats{})
		p.stock(testSpec(1))
		after(100 * time.Millisecond)
		wantStats(t, "at once", p, PoolStats{Making: 1})
		after(time.Second)
		wantStats(t, "then", p, PoolStats{Idle: 2, Spare: 1})
	})
}

// A full pool makes no more spares than it may have machines, however many kinds are asked for.
func TestPoolSpares(t *testing.T) {
	inBubble(t, PoolSize{Max: 2}, func(t *testing.T, p *pool[*fake], f *factory) {
		for mb := range 10 {
			for range 3 {
				takeOne(t, p, testSpec(mb+1))
			}
		}
		after(10 * time.Second)
		if got := p.figures(); got.Spare > 2 {
			t.Errorf("%+v", got)
		}
	})
}

// Demand decides between the minimum and the maximum; each machine serves once.
func TestPoolFollowsDemand(t *testing.T) {
	inBubble(t, PoolSize{Min: 1, Max: 3}, func(t *testing.T, p *pool[*fake], f *factory) {
		spec := testSpec(1)
		p.stock(spec)
		after(2 * time.Second)
		for range 3 {
			if m := takeOne(t, p, spec); m == nil || !m.ready {
				t.Fatalf("%+v", m)
			}
			after(2 * time.Second)
		}
		wantStats(t, "after three runs", p, PoolStats{Idle: 3, Spare: 1, Served: 3})
		after(demandWindow - 3*time.Second)
		wantStats(t, "the first two are long ago", p, PoolStats{Idle: 1, Spare: 1, Served: 3})
		after(demandWindow)
		wantStats(t, "all are", p, PoolStats{Idle: 1, Spare: 1, Served: 3})
		// More requests at once than machines: one gets a ready one, one the spare, one nothing.
		a, b, c := takeOne(t, p, spec), takeOne(t, p, spec), takeOne(t, p, spec)
		if a == nil || !a.ready || b == nil || b.ready || c != nil {
			t.Errorf("%+v %+v %+v", a, b, c)
		}
	})
}

// A run that has just started has the processors to itself.
func TestPoolLetsRunsGoFirst(t *testing.T) {
	inBubble(t, PoolSize{Min: 2, Max: 2}, func(t *testing.T, p *pool[*fake], f *factory) {
		p.stock(testSpec(1))
		after(2 * time.Second)
		takeOne(t, p, testSpec(1))
		after(runsFirst - time.Millisecond)
		wantStats(t, "before", p, PoolStats{Idle: 1, Spare: 1, Served: 1})
		after(2 * time.Millisecond)
		wantStats(t, "after", p, PoolStats{Idle: 1, Making: 1, Served: 1})
		takeOne(t, p, testSpec(1)) // it does not delay what is due
		after(runsFirst)
		wantStats(t, "and again", p, PoolStats{Idle: 1, Making: 1, Served: 2})
	})
}

// The maximum limits all classes together, and the number of machines made at once is limited.
func TestPoolBounds(t *testing.T) {
	inBubble(t, PoolSize{Max: 3}, func(t *testing.T, p *pool[*fake], f *factory) {
		for range 4 {
			for memory := range 4 {
				takeOne(t, p, testSpec(memory))
			}
			after(3 * time.Second)
			if st := p.figures(); st.Idle+st.Making > 3 {
				t.Errorf("%+v", st)
			}
		}
		if f.most != 2 {
			t.Errorf("%d were made at once", f.most)
		}
	})
}

// Dead machines are skipped, and replaced.
func TestPoolOfTheDead(t *testing.T) {
	inBubble(t, PoolSize{Min: 2, Max: 2}, func(t *testing.T, p *pool[*fake], f *factory) {
		p.stock(testSpec(1))
		after(2 * time.Second)
		f.ask(func() bool {
			for _, m := range f.all {
				m.dead = true
			}
			return true
		})
		if m := takeOne(t, p, testSpec(1)); m != nil {
			t.Errorf("%+v", m)
		}
		wantStats(t, "then", p, PoolStats{Missed: 1})
		after(2 * time.Second)
		wantStats(t, "later", p, PoolStats{Idle: 2, Spare: 1, Missed: 1})
	})
}

// A shortage of memory, and time without a run, empty the pool.
func TestPoolEmpties(t *testing.T) {
	inBubble(t, PoolSize{Min: 1, Max: 1}, func(t *testing.T, p *pool[*fake], f *factory) {
		p.stock(testSpec(1))
		after(2 * time.Second)
		f.ask(func() bool { f.free = 99; return true })
		after(poolTick)
		wantStats(t, "memory is short", p, PoolStats{Held: "memory is short"})
		if f.rests == 0 {
			t.Error("templates stay in memory")
		}
		f.ask(func() bool { f.free = 100; return true })
		after(2 * poolTick)
		wantStats(t, "memory is there again", p, PoolStats{Idle: 1, Spare: 1})
		after(poolIdle + poolTick)
		wantStats(t, "idle", p, PoolStats{Held: "no run for 10m0s"})
		if m := takeOne(t, p, testSpec(1)); m != nil {
			t.Errorf("%+v", m)
		}
		after(2 * time.Second)
		wantStats(t, "a run wakes it", p, PoolStats{Idle: 1, Spare: 1, Missed: 1})
	})
}

// No clone is kept ready for longer than an hour.
func TestPoolRenews(t *testing.T) {
	inBubble(t, PoolSize{Min: 1, Max: 1}, func(t *testing.T, p *pool[*fake], f *factory) {
		p.stock(testSpec(1))
		after(2 * time.Second)
		for range 10 { // occasional runs keep it up, and another class does not affect this one
			after(9 * time.Minute)
			takeOne(t, p, testSpec(2))
		}
		after(2 * time.Second)
		if m := takeOne(t, p, testSpec(1)); m == nil || m.number < 2 {
			t.Errorf("it is as old as the pool: %+v", m)
		}
	})
}

// A failed creation is tried again, but not at once.
func TestPoolThatCannot(t *testing.T) {
	inBubble(t, PoolSize{Min: 1, Max: 1}, func(t *testing.T, p *pool[*fake], f *factory) {
		f.fail = errors.New("no room")
		p.stock(testSpec(1))
		after(time.Second)
		tried := time.Now()
		f.ask(func() bool { f.fail = nil; return true })
		after(makerRest / 2)
		wantStats(t, "it rests", p, PoolStats{})
		for p.figures().Idle == 0 {
			after(poolTick)
		}
		if took := time.Since(tried); took < makerRest-2*time.Second || took > makerRest+3*time.Second {
			t.Errorf("after %s", took)
		}
		p.fail(errors.New("no image"))
		if st := p.figures(); st.Held != "no image" {
			t.Errorf("%+v", st)
		}
	})
}

// Closing does not wait for slow operations, and leaves nothing.
func TestPoolClosesWhileItMakes(t *testing.T) {
	inBubble(t, PoolSize{Min: 2, Max: 2}, func(t *testing.T, p *pool[*fake], f *factory) {
		f.ready1 = time.Hour
		p.stock(testSpec(1))
		after(time.Second)
		begin := time.Now()
		p.close()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestPoolSize(t *testing.T) {
	for in, want := range map[string]PoolSize{"2:4": {Min: 2, Max: 4}, "3": {Min: 3, Max: 3}, "0:1": {Max: 1}, "0": {}} {
		if got, err := ParsePoolSize(in); err != nil || got != want {
			t.Errorf("%q: %+v %v", in, got, err)
		}
	}
	for _, in := range []string{"", ":", "4:2", "-1:2", "1:x", "1:2:3", "1:99999"} {
		if got, err := ParsePoolSize(in); err == nil || !strings.Contains(err.Error(), "MIN:MAX") {
			t.Errorf("%q: %+v %v", in, got, err)
		}
	}
}

// The states of a machine, in order and by name.
func TestStates(t *testing.T) {
	names := []string{}
	for s := range Running + 2 {
		names = append(names, s.String())
	}
	if want := []string{"no state", "spawned", "paused", "running", "no state"}; !slices.Equal(names, want) {
		t.Errorf("%q", names)
	}
}

// A pool whose template is given up says so: nobody waits for its machines.
func TestPoolGivenUp(t *testing.T) {
	inBubble(t, PoolSize{Min: 1, Max: 1}, func(t *testing.T, p *pool[*fake], f *factory) {
		why := &GivenUp{Until: time.Now().Add(giveUpFor), Why: "it did not answer"}
		f.ask(func() bool { f.fail = why; return true })
		p.stock(testSpec(1))
		after(time.Second)
		if got := p.figures().Held; got != why.Error() {
			t.Errorf("held: %q, want %q", got, why)
		}
		f.ask(func() bool { f.fail = nil; return true })
		after(makerRest + 2*poolTick)
		if got := p.figures(); got.Held != "" || got.Idle != 1 {
			t.Errorf("afterwards: %+v", got)
		}
	})
}

// A template of another class that is given up, such as that of a run's custom image, does not hold the pool.
func TestPoolOtherGivenUp(t *testing.T) {
	inBubble(t, PoolSize{Min: 1, Max: 3}, func(t *testing.T, p *pool[*fake], f *factory) {
		p.stock(testSpec(1))
		after(time.Second)
		f.ask(func() bool { f.fail = &GivenUp{Until: time.Now().Add(giveUpFor)}; return true })
		p.take(testSpec(2))
		after(2 * time.Second)
		if got := p.figures(); got.Held != "" || got.Idle != 1 || got.Missed != 1 {
			t.Errorf("%+v", got)
		}
		f.ask(func() bool { f.fail = nil; return true })
	})
}
