package fleet

import (
	"context"

	"github.com/unitask/unitask"
)

// WithSessions returns a runner with the sessions of a runtime.
func WithSessions(r Runner, rt *unitask.Runtime) Runner {
	return withSessions{OnHost(rt, nil).(onHost), r}
}

type withSessions struct {
	onHost
	runs Runner
}

func (w withSessions) MemoryMB(tenant string, req unitask.Request) int {
	return w.runs.MemoryMB(tenant, req)
}

func (w withSessions) Run(ctx context.Context, job Job) (Done, error) { return w.runs.Run(ctx, job) }
