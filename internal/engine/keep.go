package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/unitask/unitask/debug/attach"
	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// checkKeep returns an error if a run can't have its machine kept.
func checkKeep(k *run.Keep, c *policy.Ceiling, secrets int) error {
	if secrets > 0 && !k.WithSecrets {
		return secretsUnderDebug(secrets)
	}
	if k.Time < 0 || k.Time > run.KeepTime {
		return policy.Bad("keep", k.Time.String(), "a machine is kept for %s at most", run.KeepTime)
	}
	return attach.Allowed(c)
}

// holding keeps the machine of one run.
type holding struct {
	keep *run.Keep // nil if it is not kept
	tell func(run.Event)

	mu       sync.Mutex
	released chan struct{} // nil as long as no machine is held
}

// lost reports whether an error of the conversation means that the guest has crashed, or its
// agent has.
func lost(err error) bool {
	return errors.Is(err, guest.ErrGone) || errors.As(err, new(*guest.ProtocolError))
}

// wants reports whether a machine whose guest has crashed must be kept, and halts it.
func (h *holding) wants(ctx context.Context, m *machine.Machine) bool {
	return h.keep != nil && ctx.Err() == nil && m.Halt() == nil
}

// hold keeps a halted machine whose guest has crashed, and why, until its time is up.
func (h *holding) hold(ctx context.Context, m *machine.Machine, rec *record.Run, why string) {
	limit := h.keep.Time
	if limit == 0 {
		limit = run.KeepTime
	}
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	h.mu.Lock()
	h.released = make(chan struct{})
	h.mu.Unlock()
	until := time.Now().Add(limit)
	rec.Machine.KeptUntil = &until
	if rec.Update() != nil {
		return // the record's disk is full: the run ends, and says so
	}
	h.tell(run.Event{Kind: run.EventKept, Message: fmt.Sprintf("%s; its machine is kept for %s: unitask debug attach %s",
		why, limit, rec.ID)})
	select {
	case <-h.released:
	case <-m.Exited():
	case <-timed.Done():
	}
}

// ended reports whether a machine was held: cancelling the hold does not cancel the run.
func (h *holding) ended() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.released != nil
}

// release ends the hold.
func (h *holding) release() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released == nil {
		return errors.New("the machine is not kept after a crash: its run continues")
	}
	select {
	case <-h.released:
	default:
		close(h.released)
	}
	return nil
}
