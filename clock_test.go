package unitask

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// The clock does not run while the machine stands still, and strikes all the same.
func TestRunClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Second
		c := new(runClock)
		begin := time.Now()
		ctx, cancel := c.start(t.Context(), limit)
		defer cancel()
		time.Sleep(limit / 2)
		c.stand()
		time.Sleep(10 * limit)
		if ctx.Err() != nil {
			t.Fatal("it ran while it stood")
		}
		c.goOn()
		if stood := c.stood(); stood != 10*limit {
			t.Error(stood)
		}
		<-ctx.Done()
		if took := time.Since(begin); context.Cause(ctx) != errTimeout || took != 11*limit {
			t.Error(context.Cause(ctx), took)
		}
		c.stand() // behind its end
		c.goOn()
		early := new(runClock) // and before its start
		early.stand()
		ctx, cancel = early.start(t.Context(), limit)
		time.Sleep(2 * limit)
		if ctx.Err() != nil {
			t.Error("it ran though it stands")
		}
		early.goOn()
		<-ctx.Done()
		cancel()
		early.stand()
		early.goOn()
	})
}
