package unitask

import (
	"context"

	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/engine"
)

// Debug is Run for a developer who inspects the machine. The machine stops before its first instruction. It has no
// deadlines, not even the time limit, because it may be stopped for long. The record says that the run was debugged.
func (rt *Runtime) Debug(ctx context.Context, caller Caller, req Request, std IO, opts DebugOptions) (*Result, error) {
	req.Debug = true
	return rt.runFor(ctx, caller, catalog.Request{Request: req}, std, engine.Purpose{Debug: &opts})
}

// Consoles connects consoles to machines of current runs.
func (rt *Runtime) Consoles() *attach.Client {
	return &attach.Client{History: rt.engine.History, Ceiling: rt.opts.Ceiling}
}
