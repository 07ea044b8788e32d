package stopclock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/testwait"
)

// The clock does not run while the machine is stopped, and its limit works all the same.
func TestRunClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		c := new(Clock)
		begin := time.Now()
		ctx, cancel := c.Start(t.Context(), limit)
		defer cancel()
		testwait.Pass(limit / 2)
		c.Stop()
		testwait.Pass(10 * limit)
		if ctx.Err() != nil {
			t.Fatal("it ran while it stood")
		}
		c.Resume()
		if stood := c.Stopped(); stood != 10*limit {
			t.Error(stood)
		}
		<-ctx.Done()
		if took := time.Since(begin); context.Cause(ctx) != ErrTimeout || took != 11*limit {
			t.Error(context.Cause(ctx), took)
		}
		c.Stop() // after its end
		c.Resume()
		early := new(Clock) // and before its start
		early.Stop()
		ctx, cancel = early.Start(t.Context(), limit)
		testwait.Pass(2 * limit)
		if ctx.Err() != nil {
			t.Error("it ran though it stands")
		}
		early.Resume()
		<-ctx.Done()
		cancel()
		early.Stop()
		early.Resume()
	})
}
