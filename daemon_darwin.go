package unitask

import (
	"context"
	"time"
)

// The pool daemon hands out clones, which need Linux's memfd.

// ServePool fails: there are no clones on this system.
func (rt *Runtime) ServePool(context.Context, time.Duration) error {
	return hostError("pool", ErrNoPool)
}

// PoolDaemonStatus fails with ErrNoPool.
func PoolDaemonStatus(string) (*PoolStatus, error) { return nil, ErrNoPool }

// StopPoolDaemon fails with ErrNoPool.
func StopPoolDaemon(context.Context, string) error { return ErrNoPool }

func leaseClone(context.Context, string, machineSpec) *standby { return nil }
