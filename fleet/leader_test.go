package fleet

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/unitask/unitask"
)

// faulty is a bucket whose first answers are lost, or are those of a cluster without a leader.
type faulty struct {
	jetstream.KeyValue
	update func() (done bool, err error) // runs before each; an error replaces the answer
	get    func() error
}

func (f *faulty) Update(ctx context.Context, key string, value []byte, last uint64) (uint64, error) {
	done, fault := f.update()
	if fault == nil || done {
		revision, err := f.KeyValue.Update(ctx, key, value, last)
		if fault == nil || err != nil {
			return revision, err
		}
	}
	return 0, fault
}

func (f *faulty) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	if f.get != nil {
		if err := f.get(); err != nil {
			return nil, err
		}
	}
	return f.KeyValue.Get(ctx, key)
}

// brief are timings with a short lease.
var brief = Times{Lease: time.Second, Beat: 50 * time.Millisecond}

// bucket returns a tenant's bucket, on its own server.
func bucket(t *testing.T) tenantStore {
	t.Helper()
	s, _ := served(t)
	return s
}

// served returns a tenant's bucket, and the server's JetStream.
func served(t *testing.T) (tenantStore, jetstream.JetStream) {
	t.Helper()
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, JetStreamMaxStore: 1 << 40,
		StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("NATS does not start")
	}
	nc, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := makeTenant(t.Context(), js, DefaultTenant, 1)
	if err != nil {
		t.Fatal(err)
	}
	return s, js
}

var noLeader = &jetstream.APIError{Code: 503, ErrorCode: 10008, Description: "JetStream system temporarily unavailable"}

// A claim succeeds if its answer was lost or if there was no leader for a moment. It fails if another worker was
// faster.
func TestClaimLeaderChanges(t *testing.T) {
	t.Parallel()
	s := bucket(t)
	queued := entry{State: Queued, Class: "amd64"}
	ours, theirs := queued, queued
	ours.State, ours.Worker, ours.Attempt = Claimed, "us", 1
	theirs.State, theirs.Worker, theirs.Attempt = Claimed, "them", 1
	for name, row := range map[string]struct {
		fault  func(other func(), try int) (done bool, err error)
		fenced bool
	}{
		"no fault":           {fault: func(func(), int) (bool, error) { return false, nil }},
		"the answer is lost": {fault: func(_ func(), try int) (bool, error) { return true, nats.ErrTimeout }},
		"nobody leads": {fault: func(_ func(), try int) (bool, error) {
			return false, [...]error{noLeader, nats.ErrNoResponders, nil}[min(try, 2)]
		}},
		"nobody leads, the answer is lost": {fault: func(_ func(), try int) (bool, error) {
			return try > 0, [...]error{noLeader, nats.ErrTimeout}[min(try, 1)]
		}},
		"another was quicker": {fenced: true, fault: func(other func(), try int) (bool, error) {
			other()
			return false,
				nil
		}},
		"nobody leads, another was quicker": {fenced: true, fault: func(other func(), try int) (bool, error) {
			if try == 0 {
				return false, noLeader
			}
			other()
			return false, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			run := "run"
			_ = s.runs.Purge(t.Context(), run)
			if _, err := s.runs.Create(t.Context(), run,
				[]byte(`{"state":"queued","class":"amd64","task":{},"memoryMb":0,"created":"2026-01-01T00:00:00Z"}`)); err != nil {
				t.Fatal(err)
			}
			_, before, err := s.get(t.Context(), run)
			if err != nil {
				t.Fatal(err)
			}
			try := 0
			store := s
			store.runs = &faulty{KeyValue: s.runs, update: func() (bool, error) {
				done, err := row.fault(func() { _, _ = s.replace(t.Context(), run, theirs, before) }, try)
				try++
				return done, err
			}}
			c := &claim{w: &Worker{config: WorkerConfig{Config: Config{Times: brief}}}, store: store, run: run, entry: ours,
				revision: before}
			err = c.take(t.Context())
			is, at, e := s.get(t.Context(), run)
			switch {
			case e != nil:
				t.Fatal(e)
			case row.fenced && (!errors.Is(err, errFenced) || is.Worker != "them"):
				t.Errorf("%v, and the run is that of %s", err, is.Worker)
			case !row.fenced && (err != nil || is.Worker != "us" || c.revision != at):
				t.Errorf("%v, the run is that of %q, at revision %d, the claim at %d", err, is.Worker, at, c.revision)
			}
		})
	}
}

// A waiting submitter learns a run's result even if its server was away for longer than a lease. It also does if a new
// leader does not know the run for a moment. A run that is missing for a lease counts as removed.
func TestWaitServerLeaves(t *testing.T) {
	t.Parallel()
	s := bucket(t)
	if _, err := s.runs.Create(t.Context(), "run",
		[]byte(`{"state":"lost","class":"amd64","task":{},"memoryMb":0,"created":"2026-01-01T00:00:00Z","attempt":1,`+
			`"why":"told"}`)); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		answer error
		lasts  time.Duration
		gone   bool
	}{
		"no server answers for longer than a lease": {answer: nats.ErrTimeout, lasts: brief.Lease * 3 / 2},
		"nobody leads":                  {answer: noLeader, lasts: brief.Lease * 3 / 2},
		"the connection is away":        {answer: nats.ErrDisconnected, lasts: brief.Lease * 3 / 2},
		"a new leader does not know it": {answer: jetstream.ErrKeyNotFound, lasts: brief.Lease / 4},
		"it is gone":                    {answer: jetstream.ErrKeyNotFound, lasts: time.Hour, gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			until, store := time.Now().Add(row.lasts), s
			store.runs = &faulty{KeyValue: s.runs, get: func() error {
				if time.Now().Before(until) {
					return row.answer
				}
				return nil
			}}
			w := &submission{c: &Client{config: Config{Times: brief}}, run: &unitask.FleetRun{}, id: "run", store: store,
				have: map[string]int64{}, lag: map[string]bool{}}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := w.wait(ctx, &ear{})
			var lost *unitask.LostError
			var host *unitask.HostError
			if row.gone != errors.As(err, &host) || row.gone == errors.As(err, &lost) {
				t.Errorf("told %v", err)
			}
		})
	}
}
