package vmm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// A snapshot is a stopped machine's memory, which is a file (Config.Memory), and
// the state of its devices beside it. QEMU's migration makes and takes the latter;
// x-ignore-shared leaves out the memory, which is there already. The state goes
// over an inherited socket: QEMU may not spawn, and needs no path.

// stateFD is the incoming state's socket in QEMU.
const stateFD = 6

// maxState bounds a device state; one has 64 to 200 KiB.
const maxState = 64 << 20

// pollMigration is how often QEMU is asked how far it is.
const pollMigration = time.Millisecond

func (m *Machine) ignoreShared(ctx context.Context) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	return m.Monitor.Do(ctx, "migrate-set-capabilities", map[string]any{"capabilities": []capability{{"x-ignore-shared", true}}}, nil)
}

// SaveState stops the machine for good and returns the state of its devices. Its
// memory is then in Config.Memory.
func (m *Machine) SaveState(ctx context.Context) ([]byte, error) {
	state, err := m.saveState(ctx, m.kill)
	if err != nil {
		return nil, fmt.Errorf("save state: %w", err)
	}
	return state, nil
}

// StopAndSave is SaveState for a machine that may go on afterwards (Resume). It can't be
// called again before the machine has gone on.
func (m *Machine) StopAndSave(ctx context.Context) ([]byte, error) {
	state, err := m.saveState(ctx, func() {})
	if err != nil {
		return nil, fmt.Errorf("save state: %w", err)
	}
	return pausedState(state), nil
}

// pausedState has a device state that was saved at a breakpoint say that the machine is
// paused: a machine can't begin in the state "debug". QEMU keeps the state's name behind
// the section's name, instance and version: its length with the NUL, and 100 bytes
// (migration/global_state.c).
func pausedState(state []byte) []byte {
	const name, from, to = "globalstate", "\x00\x00\x00\x06debug\x00\x00", "\x00\x00\x00\x07paused\x00"
	i := bytes.Index(state, []byte(name))
	if i < 0 {
		return state
	}
	at := i + len(name) + 8
	if at > len(state) || !bytes.HasPrefix(state[at:], []byte(from)) {
		return state
	}
	changed := bytes.Clone(state)
	copy(changed[at:], to)
	return changed
}

// saveState calls end when QEMU has written all of the state.
func (m *Machine) saveState(ctx context.Context, end func()) ([]byte, error) {
	if err := m.Monitor.ConnectContext(ctx); err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	stop := context.AfterFunc(ctx, func() { _ = ours.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := m.ignoreShared(ctx); err != nil {
		return nil, err
	}
	if err := m.Monitor.Do(ctx, "stop", nil, nil); err != nil {
		return nil, err
	}
	// Outgoing, a number will not do: the descriptor must have a name.
	if err := m.Monitor.SendFile(ctx, "state", theirs); err != nil {
		return nil, err
	}
	theirs.Close()
	type saved struct {
		state []byte
		err   error
	}
	done := make(chan saved, 1)
	defer func() { // whatever comes: the reader ends with its socket
		ours.Close()
		<-done
	}()
	go func() {
		defer close(done)
		state, err := io.ReadAll(io.LimitReader(ours, maxState+1))
		done <- saved{state, err}
	}()
	if err := m.Monitor.Do(ctx, "migrate", map[string]any{"uri": "fd:state"}, nil); err != nil {
		return nil, err
	}
	if err := m.migrated(ctx); err != nil {
		return nil, err
	}
	end() // closes its end, if QEMU has not: that is the state's end
	s := <-done
	switch {
	case s.err != nil:
		return nil, s.err
	case len(s.state) == 0 || len(s.state) > maxState:
		return nil, fmt.Errorf("%d bytes", len(s.state))
	}
	return s.state, nil
}

// migrated waits until an outgoing migration has completed.
func (m *Machine) migrated(ctx context.Context) error {
	for {
		var info struct {
			Status string `json:"status"`
			Error  string `json:"error-desc"`
		}
		if err := m.Monitor.Do(ctx, "query-migrate", nil, &info); err != nil {
			return err
		}
		switch info.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return errors.New("migration " + info.Status + ": " + info.Error)
		}
		if err := pause(ctx, pollMigration); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Restore gives a machine that was started with a State that state, and lets it go
// on from there.
func (m *Machine) Restore(ctx context.Context, state []byte) error {
	if err := m.Load(ctx, state); err != nil {
		return err
	}
	if err := m.Monitor.Do(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

// Load is Restore for a machine that stays stopped.
func (m *Machine) Load(ctx context.Context, state []byte) error {
	if err := m.Monitor.ConnectContext(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := m.ignoreShared(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = m.state.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		_, _ = m.state.Write(state) // QEMU says what went wrong
	}()
	defer func() { <-fed }()
	if err := m.Monitor.Do(ctx, "migrate-incoming", map[string]any{"uri": fmt.Sprintf("fd:%d", stateFD)}, nil); err != nil {
		_ = m.state.Close()
		return fmt.Errorf("restore: %w", err)
	}
	for {
		var info struct {
			Status string `json:"status"`
		}
		if err := m.Monitor.Do(ctx, "query-status", nil, &info); err != nil {
			_ = m.state.Close()
			return fmt.Errorf("restore: %w", err)
		}
		if info.Status != "inmigrate" {
			return nil
		}
		if err := pause(ctx, pollMigration); err != nil {
			_ = m.state.Close()
			return fmt.Errorf("restore: %w", err)
		}
	}
}

// Pause stops a machine's processor: it then costs memory only.
func (m *Machine) Pause(ctx context.Context) error {
	if err := m.Monitor.Do(ctx, "stop", nil, nil); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// Resume lets a paused machine go on.
func (m *Machine) Resume(ctx context.Context) error {
	if err := m.Monitor.Do(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}
