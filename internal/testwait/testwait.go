// Package testwait lets a test wait for an event instead of for a time. No product code imports it.
package testwait

import (
	"testing"
	"time"
)

// patience is how long an event may take on a slow and busy machine.
const patience = time.Minute

// Until waits until a condition holds. The test fails if it does not within a minute.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	Within(t, patience, what, holds)
}

// Within waits until a condition holds. The test fails if it does not hold within the limit.
func Within(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	if !Holds(limit, holds) {
		t.Fatalf("waited %s in vain: %s", limit, what)
	}
}

// Holds waits until a condition holds, and reports whether it did within the limit. Any goroutine may call it.
func Holds(limit time.Duration, holds func() bool) bool {
	for end := time.Now().Add(limit); ; {
		begin := time.Now()
		if holds() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
		pause(begin)
	}
}

// Always checks that a condition holds all the time. The test fails at once if it does not.
func Always(t testing.TB, during time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(during); ; {
		begin := time.Now()
		if !holds() {
			t.Fatalf("%s: no longer after %s", what, during-time.Until(end))
		}
		if time.Now().After(end) {
			return
		}
		pause(begin)
	}
}

// Steady waits until a value has not changed for the time quiet, and reports whether that happened within the limit.
func Steady[V comparable](limit, quiet time.Duration, value func() V) bool {
	last, since := value(), time.Now()
	return Holds(limit, func() bool {
		if now := value(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= quiet
	})
}

// Pass advances the clock of a synctest bubble, which takes no real time. It panics outside a bubble.
func Pass(d time.Duration) {
	if time.Now().Year() > 2020 { // a bubble's clock starts at the beginning of 2000
		panic("testwait.Pass: the test is not in a synctest bubble")
	}
	time.Sleep(d)
}

// pause yields before a condition is checked again. It checks a slow condition less often.
func pause(begin time.Time) { time.Sleep(max(2*time.Millisecond, 2*time.Since(begin))) }
