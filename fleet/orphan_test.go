package fleet_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// Runs of a lost worker use no slot while the worker is searched for, however many the tenant claims. Then they
// continue.
func TestAttackOrphans(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	config := workerConfig(ns.ClientURL(), 1)
	config.Times = fleet.Times{Lease: 10 * time.Second}
	w := startWorker(t, config, script{})
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: config.Times})
	_, js := dial(t, ns.ClientURL())
	runs, err := js.KeyValue(t.Context(), "unitask-runs-default")
	if err != nil {
		t.Fatal(err)
	}
	const many = 300 // more than the workers wait for at once
	for i := range many {
		id := fmt.Sprintf("of-a-lost-one-%d", i)
		text := fmt.Sprintf(
			`{"state":"claimed","class":%q,"task":{"sha256":"","size":0},"memoryMb":1,"created":"2026-01-01T00:00:00Z",`+
				`"attempt":1,"worker":"lost"}`, unitask.HostArch())
		if _, err := runs.PutString(t.Context(), id, text); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "unitask.queue."+string(unitask.HostArch())+".default.normal",
			fmt.Appendf(nil, `{"run":%q}`, id)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // with a slot for each it would take 50
	defer cancel()
	for range 5 {
		if _, err := rt.Run(ctx, unitask.Request{Code: "out hello"}, unitask.IO{}); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return w.Info().Retried >= 20 && w.Info().Done >= 20 })
	attack.Check(t, "runs beside many of a lost worker's end in time", "<nil>", fmt.Sprint(ctx.Err()))
}

// A worker that looks for a lost one may be lost itself. The next one continues its search, and a returned worker is no
// longer missed.
func TestOrphanOfTwo(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	config := workerConfig(ns.ClientURL(), 1)
	config.Times = fleet.Times{Lease: 8 * time.Second, Beat: 500 * time.Millisecond}
	_, js := dial(t, ns.ClientURL())
	claimed := func(id, worker string) {
		t.Helper()
		runs, err := js.KeyValue(t.Context(), "unitask-runs-default")
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(
			`{"state":"claimed","class":%q,"task":{"sha256":"","size":0},"memoryMb":1,"created":"2026-01-01T00:00:00Z",`+
				`"attempt":1,"worker":%q}`, unitask.HostArch(), worker)
		if _, err := runs.PutString(t.Context(), id, text); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(t.Context(), "unitask.queue."+string(unitask.HostArch())+".default.normal",
			fmt.Appendf(nil, `{"run":%q}`, id)); err != nil {
			t.Fatal(err)
		}
	}
	gone, err := fleet.NewWorker(t.Context(), config, script{}) // creates the buckets, and is lost
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	missed, err := js.KeyValue(t.Context(), "unitask-missed")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := missed.Create(t.Context(), "lost", nil); err != nil { // by the one that was searching
		t.Fatal(err)
	}
	note, err := missed.Get(t.Context(), "lost")
	if err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the note is older than a lease", func() bool {
		return time.Since(note.Created()) > config.Times.Lease+time.Second
	})
	began := time.Now()
	w := startWorker(t, config, script{})
	claimed("of-the-lost-one", "lost")
	waitFor(t, func() bool { return w.Info().Retried == 1 })
	if took := time.Since(began); took > config.Times.Lease {
		t.Errorf("the run waited for %v, as if nobody had missed its worker before", took)
	}
	other := startWorker(t, config, script{})
	if _, err := missed.Create(t.Context(), other.Info().ID, nil); err != nil {
		t.Fatal(err)
	}
	claimed("of-the-other", other.Info().ID)
	testwait.Always(t, 2*time.Second, "the run is made again by the other itself at most", func() bool {
		return w.Info().Retried+other.Info().Retried <= 2
	})
}
