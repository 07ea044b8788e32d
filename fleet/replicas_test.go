package fleet_test

import (
	"sync/atomic"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// JetStream's data gets more copies as servers join. A worker that has not seen all servers removes no copies.
func TestReplicas(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	var now atomic.Int64
	now.Store(1)
	config := quickly(workerConfig(c.url(0), 1))
	config.ReplicasNow = func() int { return int(now.Load()) }
	startWorker(t, config, script{})
	_, js := dial(t, c.url(0))
	all := func(replicas int) bool {
		list, n := js.ListStreams(t.Context()), 0
		for info := range list.Info() {
			n++
			if info.Config.Replicas != replicas {
				return false
			}
		}
		return list.Err() == nil && n == 6
	}
	if !all(1) {
		t.Error("at first there is one copy of each stream")
	}
	now.Store(3)
	waitFor(t, func() bool { return all(3) })
	now.Store(1)
	startWorker(t, quickly(workerConfig(c.url(1), 1)), script{})
	if !all(3) {
		t.Error("a worker that asks for one copy has taken some away")
	}
	rt, _ := submitter(t, fleet.Config{URL: c.url(2), Times: quick})
	if res, err := rt.Run(t.Context(), unitask.Request{Code: "out hello"}, unitask.IO{}); err != nil ||
		string(res.Stdout) != "hello\n" {
		t.Errorf("%v %s", err, asJSON(res))
	}
}
