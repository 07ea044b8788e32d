package unitask

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// keepTime is the most that a machine is kept after a crash: it holds its memory, and
// whoever waits for the run.
const keepTime = 10 * time.Minute

// Keep has a run boot its machine and keep it when its guest crashes: a kernel that gives up,
// an agent that is lost, a fault that QEMU reports. The machine is stopped, has lost its
// network, and waits for consoles to join it (Runtime.Attach). It ends when its time is up,
// when a console releases it, or with the context.
type Keep struct {
	// Time is how long; 0 is ten minutes, which is the most.
	Time time.Duration
	// WithSecrets lets the run have secrets: whoever joins the machine can read them.
	WithSecrets bool
}

// checkKeep says why a run can't have its machine kept.
func checkKeep(k *Keep, c *policy.Ceiling, secrets int) error {
	if secrets > 0 && !k.WithSecrets {
		return secretsUnderDebug(secrets)
	}
	if k.Time < 0 || k.Time > keepTime {
		return &policy.FieldError{Field: "keep", Value: k.Time.String(), Reason: fmt.Sprintf("a machine is kept for %s at most", keepTime)}
	}
	return mayDebug(c)
}

// holding keeps the machine of one run.
type holding struct {
	keep *Keep // nil where it is not to be kept
	tell func(Event)

	mu       sync.Mutex
	released chan struct{} // nil as long as no machine is held
}

// lost says that an error of the conversation means that the guest has crashed, or its
// agent has.
func lost(err error) bool {
	return errors.Is(err, guest.ErrGone) || errors.As(err, new(*guest.ProtocolError))
}

// wants says that a machine whose guest has crashed is to be kept, and halts it.
func (h *holding) wants(ctx context.Context, m *machine.Machine) bool {
	return h.keep != nil && ctx.Err() == nil && m.Halt() == nil
}

// hold keeps a halted machine whose guest has crashed, and why, until its time is up.
func (h *holding) hold(ctx context.Context, m *machine.Machine, rec *record.Run, why string) {
	limit := h.keep.Time
	if limit == 0 {
		limit = keepTime
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
	h.tell(Event{Kind: EventKept, Message: fmt.Sprintf("%s; its machine is kept for %s: unitask debug attach %s", why, limit, rec.ID)})
	select {
	case <-h.released:
	case <-m.Exited():
	case <-timed.Done():
	}
}

// ended says that a machine was held: that the hold was cancelled is not how the run ended.
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
		return errors.New("the machine is not kept after a crash: its run goes on")
	}
	select {
	case <-h.released:
	default:
		close(h.released)
	}
	return nil
}
