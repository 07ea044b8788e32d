package fleet

import (
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/catalog"
)

// What workers report about a run delays its deadline by at most three attempts.
func TestAttackClock(t *testing.T) {
	const limit = 10 * time.Second
	claimed := func(attempt int) entry { return entry{State: Claimed, Attempt: attempt} }
	for _, row := range []struct {
		name string
		at   func(second int) entry
		want time.Duration
	}{
		{"nothing", func(int) entry { return claimed(1) }, limit},
		{"an attempt each second", func(s int) entry { return claimed(s) }, maxLosses * limit},
		{"an attempt less each second", func(s int) entry { return claimed(1000 - s) }, maxLosses * limit},
		{"that it waits every other second", func(s int) entry {
			if s%2 == 1 {
				return entry{State: Queued, Attempt: s}
			}
			return claimed(s)
		}, 2 * maxLosses * limit},
		{"that it waits", func(int) entry { return entry{State: Queued} }, 0},
	} {
		c, now, over := clock{limit: limit}, time.Now(), time.Duration(0)
		for s := range 1000 {
			at := now.Add(time.Duration(s) * time.Second)
			if c.see(row.at(s), at); c.late(at) > 0 {
				over = time.Duration(s-1) * time.Second
				break
			}
		}
		got := "bounded"
		if over > row.want+time.Second || over < row.want-2*time.Second {
			got = over.String()
		}
		attack.Check(t, "a worker that has a run, says "+row.name+" and does nothing", "bounded", got)
	}
}

// A run that brings much data has a longer deadline.
func TestLimit(t *testing.T) {
	times := Times{}.withDefaults()
	small := limit(&unitask.FleetRun{Request: unitask.Request{Timeout: 5 * time.Second, OutputBytes: 16 << 20,
		MaxArtifacts: 64 << 20}}, times)
	if small != 5*time.Second+times.Start+48*time.Second+times.Lease {
		t.Error(small)
	}
	for name, run := range map[string]*unitask.FleetRun{
		"an image":   {Image: &catalog.Shipped{Size: 1 << 30}},
		"a pull":     {Request: unitask.Request{Image: "alpine:3.20"}},
		"packages":   {Request: unitask.Request{Packages: []string{"pip:x"}}},
		"two limits": {Request: unitask.Request{KernelRetry: true, Timeout: time.Hour}},
	} {
		if got := limit(run, times); got < small+2*time.Minute {
			t.Errorf("%s: %v", name, got)
		}
	}
}
