package unitask

import (
	"context"
	"testing"
	"time"
)

// The clock does not run while the machine stands still, and strikes all the same.
func TestRunClock(t *testing.T) {
	c := new(runClock)
	ctx, cancel := c.start(t.Context(), 200*time.Millisecond)
	defer cancel()
	c.stand()
	time.Sleep(400 * time.Millisecond)
	if ctx.Err() != nil {
		t.Fatal("it ran while it stood")
	}
	c.goOn()
	if stood := c.stood(); stood < 400*time.Millisecond {
		t.Error(stood)
	}
	<-ctx.Done()
	if err := context.Cause(ctx); err != errTimeout {
		t.Error(err)
	}
	c.stand() // behind its end
	c.goOn()
	early := new(runClock) // and before its start
	early.stand()
	ctx, cancel = early.start(t.Context(), time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	if ctx.Err() != nil {
		t.Error("it ran though it stands")
	}
	early.goOn()
	<-ctx.Done()
	cancel()
	early.stand()
	early.goOn()
}
