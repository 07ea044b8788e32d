package unitask

import (
	"context"
	"errors"
	"time"
)

// The pool daemon hands out clones, which need Linux's memfd.

// ErrNoPool says that no pool daemon runs.
var ErrNoPool = errors.New("no pool daemon runs: it needs Linux")

// ErrPoolRuns says that one runs already.
var ErrPoolRuns = errors.New("a pool daemon runs already")

// PoolStatus is what a pool daemon says of itself.
type PoolStatus struct {
	Pid     int       `json:"pid"`
	Started time.Time `json:"started"`
	Min     int       `json:"min"`
	Max     int       `json:"max"`
	Shape   Shape     `json:"shape"`
	Running int       `json:"running"`
	PoolStats
}

// ServePool fails: there are no clones on this system.
func (rt *Runtime) ServePool(context.Context, time.Duration) error {
	return hostError("pool", ErrNoPool)
}

// PoolDaemonStatus fails with ErrNoPool.
func PoolDaemonStatus(string) (*PoolStatus, error) { return nil, ErrNoPool }

// StopPoolDaemon fails with ErrNoPool.
func StopPoolDaemon(context.Context, string) error { return ErrNoPool }

func leaseClone(context.Context, string, machineSpec) *standby { return nil }
