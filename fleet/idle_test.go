package fleet_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
)

// idle is a Runner that does nothing with a run until its test is over.
type idle struct{ over chan struct{} }

func (idle) MemoryMB(string, unitask.Request) int { return 512 }

func (i idle) Run(context.Context, fleet.Job) (fleet.Done, error) {
	<-i.over
	return fleet.Done{}, errors.New("over")
}

// An idle but live worker with a run does not delay its submitter beyond the run's time.
func TestAttackIdleWorker(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	busy := idle{make(chan struct{})}
	startWorker(t, quickly(workerConfig(ns.ClientURL(), 4)), busy)
	t.Cleanup(func() { close(busy.over) })
	_, js := dial(t, ns.ClientURL())
	kv, err := js.KeyValue(t.Context(), "unitask-runs-default")
	if err != nil {
		t.Fatal(err)
	}
	times := fleet.Times{Lease: 2 * time.Second, Start: time.Second}
	const most = 7 * time.Second // time limit, start, a lease, and one more lease for a busy host
	for name, row := range map[string]struct{ again bool }{"does nothing": {false},
		"writes the entry again and again": {true}} {
		rt, client := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: times})
		client.RunID = "idle"
		if row.again {
			client.RunID = "again"
		}
		stop := make(chan struct{})
		go func() {
			for row.again {
				if v, err := kv.Get(context.Background(), "again"); err == nil && strings.Contains(string(v.Value()), `"claimed"`) {
					_, _ = kv.Update(context.Background(), "again", v.Value(), v.Revision())
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		res, err := rt.Run(ctx, unitask.Request{Code: "out x", Timeout: time.Second, OutputBytes: 1024, MaxArtifacts: -1},
			unitask.IO{})
		cancel()
		close(stop)
		got := "lost in time"
		var lost *unitask.LostError
		if took := time.Since(begin); !errors.As(err, &lost) || res.Outcome != unitask.OutcomeLost || took > most {
			got = took.String() + " " + asJSON(res)
		}
		attack.Check(t, "a worker that has a run and "+name, "lost in time", got)
	}
}
