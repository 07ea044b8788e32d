package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/unitask/unitask/vmm"
)

// standPatience bounds what QEMU may take to stop its processor, or to continue.
const standPatience = 10 * time.Second

// Stand stops the machine's processor, and with it the guest's clock, until goOn is called. One
// that stands already (a debugger has stopped it) is left alone, then, too. It may be called from
// any goroutine.
func (m *Machine) Stand(ctx context.Context) (goOn func() error, err error) {
	monitor := m.Monitor()
	timed, cancel := context.WithTimeout(ctx, standPatience)
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
		timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), standPatience)
		defer cancel()
		if err := monitor.Do(timed, "cont", nil, nil); err != nil {
			return fmt.Errorf("let the machine go on: %w", err)
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
