package fleet_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/testwait"
)

// If workers differ, a run reaches one that can execute it at once, however many others can't. It does not block the
// runs behind it. If no worker can execute it, one of them reports this.
func TestMatches(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	for range 8 {
		small := workerConfig(ns.ClientURL(), 2)
		small.Info.MemoryMB, small.Info.Kernels, small.Info.Jail = 2048, []string{"linux"}, []string{"network"}
		startWorker(t, small, script{})
	}
	able := workerConfig(ns.ClientURL(), 4)
	able.Info.MemoryMB, able.Info.Kernels, able.Info.Jail = 64<<10-1, []string{"linux", "nanos"},
		[]string{"network", "landlock"}
	big := startWorker(t, able, script{})
	run := func(req unitask.Request) (time.Duration, error) {
		rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL()})
		began := time.Now()
		res, err := rt.Run(t.Context(), req, unitask.IO{})
		if err == nil && string(res.Stdout) != "hello\n" {
			err = fmt.Errorf("%s", asJSON(res))
		}
		return time.Since(began), err
	}
	n, slow := int64(0), 0
	for range 8 {
		for _, needs := range []unitask.Request{{MemoryMB: 8192}, {Kernel: unitask.Nanos},
			{RequireJail: []string{"landlock"}}} {
			needs.Code = "out hello"
			took, err := run(needs)
			if err != nil {
				t.Fatal(err)
			}
			if n++; took > 800*time.Millisecond {
				slow++
			}
			testwait.Until(t, "the worker that can do it has run "+asJSON(needs), func() bool { return big.Info().Done == n })
		}
	}
	if slow > 4 {
		t.Errorf("%d of %d runs waited until a worker looked by itself", slow, n)
	}

	// While the capable worker is full, the others' runs continue.
	var long sync.WaitGroup
	gate := filepath.Join(t.TempDir(), "gate")
	for range 8 {
		long.Go(func() {
			if _, err := run(unitask.Request{Code: "wait " + gate + "\nout hello", MemoryMB: 8192}); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { return big.Info().Running == 4 })
	for range 10 {
		if _, err := run(unitask.Request{Code: "out hello"}); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long.Wait()
	testwait.Until(t, "the worker has counted its runs", func() bool { return big.Info().Done >= n+8 })
	if done := big.Info().Done; done != n+8 {
		t.Errorf("%d runs came to the worker that can do them, not %d", done, n+8)
	}

	if _, err := run(unitask.Request{Code: "out hello", MemoryMB: 64 << 10}); err == nil ||
		!strings.Contains(err.Error(), "no worker has") {
		t.Errorf("more than anybody has: %v", err)
	}
}

// needy is a runner whose runs all need the same memory, whatever they ask for.
type needy struct {
	script
	memoryMB int
}

func (n needy) MemoryMB(string, unitask.Request) int { return n.memoryMB }

// A run ends if no worker can give one tenant its memory, although each has that much for all tenants together. The
// workers do not pass it around.
func TestMatchesShare(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	for range 2 {
		c := s.worker(2)
		c.Info.MemoryMB = 4096
		startWorker(t, c, needy{memoryMB: 3900})
	}
	rt, client := submitter(t, s.config("alice", "ALICE"))
	for _, asked := range []int{0, 3900} { // the worker finds it, and the submitter
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := rt.Run(ctx, unitask.Request{Code: "out hello", MemoryMB: asked}, unitask.IO{})
		cancel()
		if err == nil || !strings.Contains(err.Error(), "no worker has 3900 MiB") {
			t.Errorf("asked for %d: %v", asked, err)
		}
	}
	list, err := client.Workers(t.Context())
	if err != nil || len(list) != 2 || list[0].MemoryMB != 4096-512 || list[0].UsedMB != 0 {
		t.Errorf("%v %s", err, asJSON(list))
	}
}

// The free memory that a worker reports to a tenant, while others use some of it.
func TestToldMemory(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	c := s.worker(3)
	c.Info.MemoryMB = 4096
	startWorker(t, c, script{})
	gate := filepath.Join(t.TempDir(), "gate")
	var under sync.WaitGroup
	told := func(tenant string, free int) {
		_, client := submitter(t, s.config(tenant, strings.ToUpper(tenant)))
		waitFor(t, func() bool {
			list, err := client.Workers(t.Context())
			return err == nil && len(list) == 1 && list[0].MemoryMB == 3584 && list[0].MemoryMB-list[0].UsedMB == free
		})
	}
	told("alice", 3584)
	for i, free := range [][2]int{{1584, 2096}, {1584, 1584}} { // for alice and for bob
		tenant, memoryMB := []string{"alice", "bob"}[i], []int{2000, 512}[i]
		rt, _ := submitter(t, s.config(tenant, strings.ToUpper(tenant)))
		under.Go(func() {
			if _, err := rt.Run(t.Context(), unitask.Request{Code: "wait " + gate, MemoryMB: memoryMB},
				unitask.IO{}); err != nil {
				t.Error(err)
			}
		})
		told("alice", free[0])
		told("bob", free[1])
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	under.Wait()
}
