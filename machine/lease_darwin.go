package machine

import (
	"context"
	"time"
)

// The pool daemon hands out clones, which need Linux's memfd.

// Serve fails: there are no clones on this system.
func (s *Source) Serve(context.Context, time.Duration, Class) error { return ErrNoPool }

// AskPool fails with ErrNoPool.
func AskPool(string) (*PoolStatus, error) { return nil, ErrNoPool }

// StopPool fails with ErrNoPool.
func StopPool(context.Context, string) error { return ErrNoPool }

func lease(context.Context, string, Spec) (*Machine, error) { return nil, ErrNoPool }
