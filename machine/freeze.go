package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/unitask/unitask/vmm"
)

// freezePatience bounds how long QEMU may take to stop its processor, or to continue.
const freezePatience = 10 * time.Second

// Freeze stops the machine's processor, and with it the guest's clock, until thaw is called. A machine that a
// debugger has stopped stays stopped, also after thaw. Freeze may be called from any goroutine.
func (m *Machine) Freeze(ctx context.Context) (thaw func() error, err error) {
	monitor := m.Monitor()
	timed, cancel := context.WithTimeout(ctx, freezePatience)
	defer cancel()
	fail := func(err error) (func() error, error) { return nil, fmt.Errorf("stop the machine: %w", err) }
	if err := monitor.ConnectContext(timed); err != nil {
		return fail(err)
	}
	running, err := runs(timed, monitor)
	if err != nil {
		return fail(err)
	}
	if !running {
		return func() error { return nil }, nil
	}
	if err := monitor.Do(timed, "stop", nil, nil); err != nil {
		return fail(err)
	}
	return func() error {
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), freezePatience)
		defer cancel()
		if err := monitor.Do(timed, "cont", nil, nil); err != nil {
			return fmt.Errorf("let the machine continue: %w", err)
		}
		return nil
	}, nil
}

func runs(ctx context.Context, monitor *vmm.Monitor) (bool, error) {
	var now struct {
		Running bool `json:"running"`
	}
	err := monitor.Do(ctx, "query-status", nil, &now)
	return now.Running, err
}
