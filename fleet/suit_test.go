package fleet_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// Where workers differ, a run comes to one that can do it at once, however many others there are that can't, and does not
// keep what comes after it waiting. What no worker has is told by one of them.
func TestSuits(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	for range 8 {
		small := workerConfig(ns.ClientURL(), 2)
		small.Info.MemoryMB, small.Info.Kernels, small.Info.Jail = 2048, []string{"linux"}, []string{"network"}
		startWorker(t, small, script{})
	}
	able := workerConfig(ns.ClientURL(), 4)
	able.Info.MemoryMB, able.Info.Kernels, able.Info.Jail = 64<<10-1, []string{"linux", "nanos"}, []string{"network", "landlock"}
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
		for _, needs := range []unitask.Request{{MemoryMB: 8192}, {Kernel: unitask.Nanos}, {RequireJail: []string{"landlock"}}} {
			needs.Code = "out hello"
			took, err := run(needs)
			if err != nil {
				t.Fatal(err)
			}
			if n++; took > 800*time.Millisecond {
				slow++
			}
			if done := big.Info().Done; done != n {
				t.Fatalf("%d of %d runs came to the worker that can do them: %s", done, n, asJSON(needs))
			}
		}
	}
	if slow > 4 {
		t.Errorf("%d of %d runs waited until a worker looked by itself", slow, n)
	}

	// While the able one is full, the others' runs go on.
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
	if done := big.Info().Done; done != n+8 {
		t.Errorf("%d runs came to the worker that can do them, not %d", done, n+8)
	}

	if _, err := run(unitask.Request{Code: "out hello", MemoryMB: 64 << 10}); err == nil || !strings.Contains(err.Error(), "no worker has") {
		t.Errorf("more than anybody has: %v", err)
	}
}
