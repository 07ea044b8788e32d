package session

import (
	"testing"
	"time"
)

// A session is idle after a period without a call, a frame, and processor time beyond the minimum.
func TestIdleness(t *testing.T) {
	const tick, limit = 10 * time.Second, time.Minute
	quiet := func(n int, w *work) { w.processor += tick / 20 }
	for _, row := range []struct {
		name string
		each func(n int, w *work) // its work in the n-th interval
		want int                  // the check that first finds it idle, 0 for none of 100
	}{
		{"nothing", quiet, 7},
		{"a call", func(n int, w *work) {
			quiet(n, w)
			if n == 4 {
				w.calls++
			}
		}, 10},
		{"a call that is under way", func(n int, w *work) {
			quiet(n, w)
			w.busy = n < 20
		}, 26 - 1},
		{"a frame", func(n int, w *work) {
			quiet(n, w)
			if n == 2 {
				w.frames++
			}
		}, 8},
		{"a frame now and then", func(n int, w *work) {
			quiet(n, w)
			if n%5 == 0 {
				w.frames++
			}
		}, 0},
		{"work all the time", func(n int, w *work) { w.processor += tick }, 0},
		{"as much as the floor", func(n int, w *work) { w.processor += tick / idleFloor }, 7},
		{"more than the floor", func(n int, w *work) { w.processor += tick/idleFloor + 1 }, 0},
		{"a burst now and then", func(n int, w *work) {
			if n%5 == 0 {
				w.processor += tick
			}
		}, 0},
		{"it can't be found out", func(n int, w *work) { w.known = false }, 0},
	} {
		i, now, w := idleness{limit: limit}, time.Unix(1000, 0), work{known: true}
		got := 0
		for n := 1; n <= 100 && got == 0; n++ {
			row.each(n, &w)
			if i.over(now, w) {
				got = n
			}
			now = now.Add(tick)
		}
		if got != row.want {
			t.Errorf("%s: idle at look %d, want %d", row.name, got, row.want)
		}
	}
	// After a failed pause it is checked again later, and not at every tick.
	i, now, times := idleness{limit: limit}, time.Unix(1000, 0), 0
	for range 100 {
		if i.over(now, work{known: true}) {
			times++
		}
		now = now.Add(tick)
	}
	if times != 16 {
		t.Errorf("%d times in 100 looks", times)
	}
	for limit, want := range map[time.Duration]time.Duration{time.Second: 250 * time.Millisecond,
		10 * time.Second: 2500 * time.Millisecond, 24 * time.Hour: 15 * time.Second} {
		if got := idleTick(limit); got != want {
			t.Errorf("%s: %s", limit, got)
		}
	}
}
