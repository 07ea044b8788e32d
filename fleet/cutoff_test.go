package fleet_test

import (
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/unitask/unitask/fleet"
)

// startWired is a cluster of which each node reaches each other by a relay of its own. Servers tell each other where
// the others are, and dial that: it is an address at which nobody listens, so that nothing goes around the relays.
func startWired(t *testing.T) (c *cluster, cutOff func(node int, cut bool)) {
	var wires [3][3]*wire // from, to
	c = startClusterWith(t, func(c *cluster) {
		for from := range c.opts {
			o := c.opts[from]
			o.Routes = nil
			for to := range c.opts {
				if from == to {
					continue
				}
				w := startWire(t, fmt.Sprintf("127.0.0.1:%d", c.opts[to].Cluster.Port))
				wires[from][to] = w
				o.Routes = append(o.Routes, &url.URL{Scheme: "nats", Host: w.listener.Addr().String()})
			}
			o.Cluster.Advertise = "127.0.0.1:1"
			o.Cluster.PingInterval, o.Cluster.MaxPingsOut = time.Second, 2 // not 2 minutes, twice
		}
	})
	return c, func(node int, cut bool) {
		for other := range c.nodes {
			if other != node {
				wires[node][other].set(cut)
				wires[other][node].set(cut)
			}
		}
	}
}

// The node that leads is cut off with a worker and a submitter, while runs are under way that both submitters submit.
// The other two choose another leader, and what that worker had is made again; when it is back every run has ended
// once, the same for both, or is lost where it may not be made again.
func TestCutOff(t *testing.T) {
	t.Parallel()
	const runs = 24
	c, cutOff := startWired(t)
	at := slices.IndexFunc(c.nodes[:], func(ns *server.Server) bool { return ns.JetStreamIsLeader() })
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	var ids []string
	for n := range runs {
		ids = append(ids, fmt.Sprintf("run-%03d", n))
	}
	told, mu := map[string][]ending{}, sync.Mutex{}
	var submitting sync.WaitGroup
	var away *fleet.Worker                         // that is to be cut off
	for i, node := range []int{at, (at + 1) % 3} { // each worker and submitter knows one node only
		config := quickly(workerConfig(c.nodes[node].ClientURL(), 4))
		config.Replicas = 3
		if w := startWorker(t, config, script{log}); i == 0 {
			away = w
		}
		submitting.Go(func() {
			submitAll(load{c.nodes[node].ClientURL(), filepath.Join(dir, fmt.Sprint("home-", i)), ids, "1s"}, func(e ending) {
				mu.Lock()
				defer mu.Unlock()
				told[e.ID] = append(told[e.ID], e)
			})
		})
	}
	waitFor(t, func() bool { return len(lines(log)) >= runs/4 && away.Info().Running > 1 })
	cutOff(at, true)
	began := time.Now()
	waitFor(t, func() bool {
		return slices.ContainsFunc(c.nodes[:], func(ns *server.Server) bool {
			return ns != c.nodes[at] &&
				ns.JetStreamIsLeader()
		})
	})
	t.Logf("another leads after %v", time.Since(began).Round(time.Second/10))
	waitFor(t, func() bool { // what it had is made again
		started := lines(log)
		slices.Sort(started)
		return len(slices.Compact(slices.Clone(started))) < len(started)
	})
	t.Logf("a run is made again after %v", time.Since(began).Round(time.Second/10))
	cutOff(at, false)
	submitting.Wait()
	t.Logf("all has ended after %v", time.Since(began).Round(time.Second/10))
	judge(t, ids, told, log)
}
