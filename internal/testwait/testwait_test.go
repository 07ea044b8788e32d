package testwait

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// failing is a test that records how it failed.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper()                           {}
func (f *failing) Fatalf(format string, args ...any) { f.said = fmt.Sprintf(format, args...); panic(f) }

// fails returns the message of a test that fails.
func fails(do func(t testing.TB)) string {
	f := &failing{}
	func() {
		defer func() { _ = recover() }()
		do(f)
	}()
	return f.said
}

func TestUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		Until(t, "40 s", func() bool { return time.Since(begin) >= 40*time.Second })
		if took := time.Since(begin); took > 41*time.Second {
			t.Errorf("got %s, want 40 s", took)
		}
		got := fails(func(t testing.TB) { Until(t, "never", func() bool { return false }) })
		if want := "waited 1m0s in vain: never"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestAlways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		Always(t, time.Second, "before 2 s", func() bool { return time.Since(begin) < 2*time.Second })
		if took := time.Since(begin); took < time.Second {
			t.Errorf("got %s, want 1 s", took)
		}
		got := fails(func(t testing.TB) {
			Always(t, 5*time.Second, "before 2 s", func() bool { return time.Since(begin) < 2*time.Second })
		})
		if want := "before 2 s: no longer after "; !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestSteady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		value := func() time.Duration { return min(time.Since(begin), 10*time.Second).Truncate(time.Second) }
		if Steady(5*time.Second, 3*time.Second, value) {
			t.Error("got steady while the value changes")
		}
		if !Steady(time.Minute, 3*time.Second, value) || time.Since(begin) < 13*time.Second {
			t.Errorf("got %s, want steady after 13 s", time.Since(begin))
		}
	})
}

func TestPassOutsideOfBubble(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("got a sleep on the real clock, want a panic")
		}
	}()
	Pass(time.Millisecond)
}
