package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/unitask/unitask/vmm"
)

// A machine that is kept when its guest crashes (Config.Keep) is booted without the device that lets a guest end QEMU.
// When the guest's kernel panics, or QEMU reports that the guest can't continue, the processor is stopped and the
// network card is disconnected.

// faults are QEMU's states for a guest that can't continue (qapi/run-state.json).
var faults = []string{"shutdown", "guest-panicked", "internal-error", "io-error", "watchdog"}

// haltPatience bounds how long QEMU may take to stop its guest. After that QEMU is killed.
const haltPatience = 5 * time.Second

// watchKept halts the machine when its guest crashes.
func (m *Machine) watchKept() {
	m.watched.Do(func() {
		go func() {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			events, err := m.vm.Monitor.Events(ctx)
			if err == nil {
				err = m.vm.Monitor.ConnectContext(ctx) // which turns the events on
			}
			if err != nil {
				return // QEMU is gone
			}
			for crashed := false; !crashed; {
				select {
				case <-m.console.dead:
					crashed = true
				case _, ok := <-events:
					crashed = ok && m.faulty(ctx)
					if !ok {
						events = nil
					}
				case <-m.vm.Exited():
					return
				}
			}
			select {
			case <-time.After(lastWordsTime):
				_ = m.Halt() // kills QEMU if it can't be stopped
			case <-m.vm.Exited():
			}
		}()
	})
}

// faulty reports whether QEMU has stopped the guest by itself: a debugger's stop is not a fault.
func (m *Machine) faulty(ctx context.Context) bool {
	timed, cancel := context.WithTimeout(ctx, haltPatience)
	defer cancel()
	var now struct {
		Status string `json:"status"`
	}
	err := m.vm.Monitor.Do(timed, "query-status", nil, &now)
	return err == nil && slices.Contains(faults, now.Status)
}

// Halt stops the processor of a machine that is to be kept, and ends its network permanently. An error means that
// nothing can be kept, because QEMU is gone.
func (m *Machine) Halt() error {
	m.halting.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), haltPatience)
		defer cancel()
		err := m.vm.Monitor.ConnectContext(ctx)
		if err == nil {
			err = m.vm.Monitor.Do(ctx, "stop", nil, nil)
		}
		if err != nil {
			m.haltErr = fmt.Errorf("stop the machine: %w", err)
			m.vm.Close()
			return
		}
		close(m.halted)
		m.network.Cut()
		// The network then notices that the guest is gone, as if QEMU had exited, and the conversation still
		// receives what the guest sent before.
		if err := m.vm.Monitor.Do(ctx, "netdev_del", map[string]string{"id": vmm.NetDevice}, nil); err != nil {
			m.network.Close()
		}
	})
	if m.haltErr == nil && !m.Alive() {
		return errors.New("stop the machine: QEMU has ended")
	}
	return m.haltErr
}

// isHalted reports whether the processor was stopped because the guest crashed.
func (m *Machine) isHalted() bool {
	select {
	case <-m.halted:
		return true
	default:
		return false
	}
}

// Exited returns a channel that is closed when QEMU has exited.
func (m *Machine) Exited() <-chan struct{} { return m.qemu().Exited() }
