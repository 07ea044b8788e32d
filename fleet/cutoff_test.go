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

// startWired starts a cluster in which each pair of nodes is connected by a relay. Servers tell each other their
// addresses and dial them. The announced address has no listener, so no connection bypasses the relays.
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
			o.Cluster.PingInterval, o.Cluster.MaxPingsOut = time.Second, 2 // instead of 2 minutes, twice
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

// The leader is cut off together with a worker and a submitter, during runs that both submitters have submitted. The
// other two nodes choose another leader, and that worker's runs are repeated. When the leader is back, every run has
// ended once, with the same result for both, or is lost if it must not be repeated.
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
	var away *fleet.Worker                         // will be cut off
	for i, node := range []int{at, (at + 1) % 3} { // each worker and submitter knows only one node
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
	waitFor(t, func() bool { // its runs are repeated
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
