package unitask_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

// openPool opens a runtime with a pool, and closes it at the end: nothing may be left.
func openPool(t *testing.T, home string, size unitask.PoolSize, class unitask.MachineClass) *unitask.Runtime {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: home, Machines: unitask.Pool(size, class)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		rt.Close()
		if left := qemuChildren(t, os.Getpid()); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	})
	return rt
}

// poolHas waits until the pool has the wanted counts.
func poolHas(t *testing.T, rt *unitask.Runtime, what string, ok func(unitask.PoolStats) bool) {
	t.Helper()
	if !testwait.Holds(30*time.Second, func() bool { return ok(rt.Pool()) }) {
		t.Fatalf("%s: %+v", what, rt.Pool())
	}
}

func hello(t *testing.T, rt *unitask.Runtime, req unitask.Request) *unitask.Result {
	t.Helper()
	req.Code = `console.log("hello", require("crypto").randomUUID())`
	res, err := rt.Run(t.Context(), req, unitask.IO{})
	if err != nil || res.ExitCode != 0 || !strings.HasPrefix(string(res.Stdout), "hello ") {
		t.Fatalf("%v %+v", err, res)
	}
	return res
}

func TestPool(t *testing.T) {
	needClones(t)
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			home := newHome(t)
			rt := openPool(t, home, unitask.PoolSize{Min: 2, Max: 3}, unitask.MachineClass{Kernel: kernel})
			full := func(st unitask.PoolStats) bool { return st.Idle >= 2 && st.Spare == 1 && st.Making == 0 }
			poolHas(t, rt, "it does not fill", full)
			seen := map[string]bool{}
			begin := time.Now()
			hello(t, rt, unitask.Request{Kernel: kernel})
			if st := rt.Pool(); time.Since(begin) < 200*time.Millisecond && st.Making != 0 {
				t.Errorf("clones are made beside a run that has only begun: %+v", st)
			}
			for range 4 { // each clone serves once
				res := hello(t, rt, unitask.Request{Kernel: kernel})
				if seen[string(res.Stdout)] {
					t.Errorf("again: %s", res.Stdout)
				}
				seen[string(res.Stdout)] = true
			}
			poolHas(t, rt, "it does not refill, with demand to its most",
				func(st unitask.PoolStats) bool { return st.Idle == 3 })
			res := hello(t, rt, unitask.Request{Kernel: kernel})
			if !res.Pooled || !res.Cloned {
				t.Errorf("%+v", res)
			}
			rec, err := rt.Runs().Get(res.RunID)
			if err != nil || !rec.Machine.Pooled {
				t.Errorf("%v %+v", err, rec)
			}
			poolHas(t, rt, "full again", func(st unitask.PoolStats) bool { return st.Idle == 3 && st.Making == 0 })

			// Clones that died while they were ready are skipped.
			for _, pid := range qemuChildren(t, os.Getpid()) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			hello(t, rt, unitask.Request{Kernel: kernel})
			poolHas(t, rt, "after their death", full)

			// Another class has a separate group of machines; a cold request boots.
			if res := hello(t, rt, unitask.Request{Kernel: kernel, MemoryMB: 256}); res.Pooled {
				t.Errorf("%+v", res)
			}
			if res := hello(t, rt, unitask.Request{Kernel: kernel, Cold: true}); res.Cloned || res.Pooled {
				t.Errorf("%+v", res)
			}
		})
	}
}

// Many at once: those without a ready clone get another machine.
func TestPoolUnderLoad(t *testing.T) {
	needClones(t)
	rt := openPool(t, newHome(t), unitask.PoolSize{Min: 1, Max: 2}, unitask.MachineClass{Kernel: image.Linux})
	poolHas(t, rt, "it does not fill", func(st unitask.PoolStats) bool { return st.Idle >= 1 })
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 4 {
				res, err := rt.Run(t.Context(), unitask.Request{Kernel: image.Linux, Code: `console.log(1)`}, unitask.IO{})
				if err != nil || string(res.Stdout) != "1\n" || !res.Cloned {
					t.Errorf("%v %+v", err, res)
				}
			}
		})
	}
	group.Wait()
	if st := rt.Pool(); st.Served < 1 || st.Served+st.Missed != 16 || st.Idle > 2 {
		t.Errorf("%+v", st)
	}
}

// A pool with invalid options is refused.
func TestPoolSizeIsChecked(t *testing.T) {
	_, err := unitask.Open(unitask.Options{Home: testdir.Private(t),
		Machines: unitask.Pool(unitask.PoolSize{Min: 3, Max: 1}, unitask.MachineClass{})})
	if field := new(policy.FieldError); !errors.As(err, &field) || field.Field != "pool" {
		t.Errorf("3:1: %v", err)
	}
}

// Long use leaks nothing: the numbers of descriptors, processes, goroutines and files, and the memory, stay the same.
func TestSoak(t *testing.T) {
	needClones(t)
	runs := 30
	if n, err := strconv.Atoi(os.Getenv("UNITASK_TEST_SOAK")); err == nil {
		runs = n
	}
	t.Setenv("TMPDIR", t.TempDir()) // excludes others' files
	home := newHome(t)
	rt, err := unitask.Open(unitask.Options{Home: home,
		Machines: unitask.Pool(unitask.PoolSize{Min: 2, Max: 2}, unitask.MachineClass{})})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	idle := func(st unitask.PoolStats) bool { return st.Idle == 2 && st.Spare == 1 && st.Making == 0 }
	some := func(n int) {
		var group sync.WaitGroup
		for range 2 {
			group.Go(func() {
				for range n / 2 {
					hello(t, rt, unitask.Request{})
				}
			})
		}
		group.Wait()
		unitask.Settle(t.Context(), rt)
		poolHas(t, rt, "full", idle)
	}
	some(max(runs/5, 10))
	before, rss := inventory(t), resident(t)
	some(runs)
	same := func(after stock) bool {
		return after.qemus == before.qemus && after.tempFiles == before.tempFiles &&
			after.descriptors <= before.descriptors && after.goroutines <= before.goroutines
	}
	var after stock
	// something may just be ending
	if !testwait.Holds(30*time.Second, func() bool { after = inventory(t); return same(after) }) {
		stacks := make([]byte, 1<<20)
		t.Errorf("before: %+v\nafter:  %+v\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
	}
	if grown := resident(t) - rss; grown > 32<<10 {
		t.Errorf("%d KiB more are resident", grown)
	}
	// five borrowed ones, the runs, and their log
	if files, _ := filepath.Glob(filepath.Join(home, "*")); len(files) != 7 {
		t.Errorf("in the home: %v", files)
	}
}

// resident returns our own resident memory in KiB.
func resident(t *testing.T) int {
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc on this system")
	}
	_, rest, _ := strings.Cut(string(text), "VmRSS:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
