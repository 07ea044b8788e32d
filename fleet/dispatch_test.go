package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/internal/testwait"
)

// timed is a Runner that records when a run began and ended.
type timed struct {
	fleet.Runner
	spans chan [2]time.Time
}

func newTimed(r fleet.Runner) timed { return timed{r, make(chan [2]time.Time, 1)} }

func (r timed) Run(ctx context.Context, job fleet.Job) (fleet.Done, error) {
	began := time.Now()
	done, err := r.Runner.Run(ctx, job)
	r.spans <- [2]time.Time{began, time.Now()}
	return done, err
}

// stopwatch is a fleet that records when it received a run and when it returned the result.
type stopwatch struct {
	*fleet.Client
	span [2]time.Time
}

func (s *stopwatch) Run(ctx context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
	s.span[0] = time.Now()
	res, err := s.Client.Run(ctx, run)
	s.span[1] = time.Now()
	return res, err
}

// watched is a submitter with a stopwatch.
func watched(t testing.TB, ns *server.Server) (*unitask.Runtime, *stopwatch) {
	t.Helper()
	client, err := fleet.Connect(fleet.Config{URL: ns.ClientURL()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	watch := &stopwatch{Client: client}
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: watch})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return rt, watch
}

// The time that a fleet adds to a run, before its start at the worker and after its end there. Everything is in this
// process, and NATS writes to this disk. The run starts no machine and makes no record, so nothing else is measured.
func BenchmarkDispatch(b *testing.B) {
	ns := startNATS(b, nil)
	runner := newTimed(script{})
	startWorker(b, workerConfig(ns.ClientURL(), 1), runner)
	rt, watch := watched(b, ns)
	var before, after, both []time.Duration
	for b.Loop() {
		if _, err := rt.Run(b.Context(), unitask.Request{Code: "out hello"}, unitask.IO{}); err != nil {
			b.Fatal(err)
		}
		span := <-runner.spans
		before, after = append(before, span[0].Sub(watch.span[0])), append(after, watch.span[1].Sub(span[1]))
		both = append(both, before[len(before)-1]+after[len(after)-1])
	}
	for what, of := range map[string][]time.Duration{"submit": before, "result": after, "dispatch": both} {
		report(b, what, of)
	}
}

// report makes a benchmark print two of the percentiles.
func report(b *testing.B, what string, of []time.Duration) {
	slices.Sort(of)
	b.ReportMetric(float64(of[len(of)/2].Microseconds())/1000, what+"-p50-ms")
	b.ReportMetric(float64(of[len(of)*95/100].Microseconds())/1000, what+"-p95-ms")
}

// A hello in a ready machine, locally and on a fleet in turn: from the request to the result. The time besides the
// dispatch and the worker's run (with its record) is for the submitter's record.
func BenchmarkDispatchMachines(b *testing.B) {
	base, err := testhome.Base()
	if err != nil {
		b.Fatal(err)
	}
	testhome.Ready(b, base, image.Linux)
	ns := startNATS(b, nil)
	host, err := unitask.Open(unitask.Options{Home: testhome.New(b, base),
		Machines: unitask.Pool(unitask.PoolSize{Min: 1, Max: 1}, unitask.MachineClass{Kernel: unitask.Linux, MemoryMB: 512})})
	if err != nil {
		b.Fatal(err)
	}
	defer host.Close()
	runner := newTimed(fleet.OnHost(host, nil))
	startWorker(b, workerConfig(ns.ClientURL(), 1), runner)
	away, watch := watched(b, ns)
	var took [2][]time.Duration
	var dispatch, worker []time.Duration
	for b.Loop() {
		for i, rt := range []*unitask.Runtime{host, away} {
			testwait.Until(b, "the pool is full", func() bool { st := host.Pool(); return st.Idle >= 1 && st.Making == 0 })
			began := time.Now()
			res, err := rt.Run(b.Context(), unitask.Request{Kernel: unitask.Linux, MemoryMB: 512, Code: `console.log("hello")`},
				unitask.IO{})
			took[i] = append(took[i], time.Since(began))
			if err != nil || string(res.Stdout) != "hello\n" || !res.Pooled {
				b.Fatalf("%v %s", err, asJSON(res))
			}
		}
		span := <-runner.spans
		worker = append(worker, span[1].Sub(span[0]))
		dispatch = append(dispatch, span[0].Sub(watch.span[0])+watch.span[1].Sub(span[1]))
	}
	for what, of := range map[string][]time.Duration{"here": took[0], "fleet": took[1], "worker": worker,
		"dispatch": dispatch} {
		report(b, what, of)
	}
}

// A persistent client asks for constant data once: a run takes few exchanges, whatever the number of workers. The
// client checks its remembered data again if it may be wrong.
func TestExchanges(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	small, large := workerConfig(ns.ClientURL(), 1), workerConfig(ns.ClientURL(), 1)
	small.Info.MemoryMB, large.Info.MemoryMB = 600, 2048
	for range 4 {
		startWorker(t, small, script{})
	}
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL()})
	sent := func() (n int64) {
		conns, err := ns.Connz(&server.ConnzOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range conns.Conns {
			if c.Name == "unitask client" {
				n += c.InMsgs
			}
		}
		return n
	}
	hello := func(memoryMB int) error {
		_, err := rt.Run(t.Context(), unitask.Request{Code: "out hello", MemoryMB: memoryMB}, unitask.IO{})
		return err
	}
	most := int64(1 << 40)
	for range 10 {
		before := sent()
		if err := hello(0); err != nil {
			t.Fatal(err)
		}
		most = min(most, sent()-before)
	}
	if most > 12 {
		t.Errorf("a run takes its submitter %d messages", most)
	}
	if err := hello(1024); err == nil || !strings.Contains(err.Error(), "no worker has") {
		t.Errorf("too large a run: %v", err)
	}
	startWorker(t, large, script{})
	if err := hello(1024); err != nil {
		t.Errorf("a larger worker has come: %v", err)
	}
	if list, err := client.Workers(t.Context()); err != nil || len(list) != 5 {
		t.Errorf("%v, %d workers", err, len(list))
	}
}

// An idle worker starts a run at once, even if it was notified of the run before JetStream stored it. It does not wait
// for its next poll.
func TestWoken(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	runner := newTimed(script{})
	startWorker(t, workerConfig(ns.ClientURL(), 1), runner)
	rt, watch := watched(t, ns)
	late := 0
	for range 100 {
		if _, err := rt.Run(t.Context(), unitask.Request{Code: "out hello"}, unitask.IO{}); err != nil {
			t.Fatal(err)
		}
		if span := <-runner.spans; span[0].Sub(watch.span[0]) > 900*time.Millisecond {
			late++
		}
	}
	if late > 2 {
		t.Errorf("%d of 100 runs began when the worker looked by itself", late)
	}
}
