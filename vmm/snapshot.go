package vmm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// A snapshot is a stopped machine's memory, which is a file (Config.Memory), and the state of its devices. QEMU's
// migration saves and loads the state; x-ignore-shared leaves out the memory, which the file already holds. The state
// is sent over an inherited socket: QEMU may not spawn, and needs no path.

// stateFD is the descriptor in QEMU of the socket for the incoming state.
const stateFD = 6

// maxState bounds a device state; one has 64 to 200 KiB.
const maxState = 64 << 20

// pollMigration is the interval at which QEMU is asked for its progress.
const pollMigration = time.Millisecond

func (m *Machine) ignoreShared(ctx context.Context) error {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	return m.Monitor.Do(ctx, "migrate-set-capabilities",
		map[string]any{"capabilities": []capability{{"x-ignore-shared", true}}}, nil)
}

// stayQuiet keeps QEMU and the guest from announcing to the network that the machine has moved. They would do so five
// times in the first second, during the first run, and nobody would listen.
func (m *Machine) stayQuiet(ctx context.Context) error {
	return m.Monitor.Do(ctx, "migrate-set-parameters", map[string]any{"announce-rounds": 0}, nil)
}

// SaveState stops the machine permanently and returns the state of its devices. Config.Memory then holds its memory.
func (m *Machine) SaveState(ctx context.Context) ([]byte, error) {
	state, err := m.saveState(ctx, m.kill)
	if err != nil {
		return nil, fmt.Errorf("save state: %w", err)
	}
	return state, nil
}

// StopAndSave is SaveState for a machine that may continue afterwards (Resume). It can't be called again until the
// machine has continued.
func (m *Machine) StopAndSave(ctx context.Context) ([]byte, error) {
	state, err := m.saveState(ctx, func() {})
	if err != nil {
		return nil, fmt.Errorf("save state: %w", err)
	}
	return pausedState(state), nil
}

// SaveDevices is StopAndSave for a machine with its own pages that was started Lasting from a state. The memory stays
// in place and is not part of the result, except for the firmware. QEMU has this function for Xen, whose memory QEMU
// does not own either.
func (m *Machine) SaveDevices(ctx context.Context, from []byte) ([]byte, error) {
	devices, err := m.saveDevices(ctx)
	var memory memorySections
	if err == nil {
		memory, err = readMemory(from)
	}
	var firmware []byte
	if err == nil {
		firmware, err = m.readFirmware(ctx, memory.firmware)
	}
	if err == nil {
		devices, err = splice(from, memory, firmware, pausedState(devices)) // before the guest's memory is added
	}
	if err != nil {
		return nil, fmt.Errorf("save state: %w", err)
	}
	return devices, nil
}

func (m *Machine) saveDevices(ctx context.Context) ([]byte, error) {
	if err := m.Monitor.ConnectContext(ctx); err != nil {
		return nil, err
	}
	file, write, err := memoryFile("unitask-state")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	defer write.Close()
	set, err := m.Monitor.addFile(ctx, write)
	if err != nil {
		return nil, err
	}
	// A stopped QEMU closes it only after it has continued.
	defer func() { _ = m.Monitor.Do(ctx, "remove-fd", map[string]any{"fdset-id": set}, nil) }()
	if err := m.Monitor.Do(ctx, "stop", nil, nil); err != nil {
		return nil, err
	}
	if err := m.Monitor.Do(ctx, "xen-save-devices-state",
		map[string]any{"filename": fmt.Sprintf("/dev/fdset/%d", set), "live": false}, nil); err != nil {
		return nil, err
	}
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() == 0 || st.Size() > maxState {
		return nil, fmt.Errorf("%d bytes", st.Size())
	}
	state := make([]byte, st.Size())
	_, err = file.ReadAt(state, 0)
	return state, err
}

// The form of a state (migration/savevm.c). It begins with magic and version. A migration's state then has a section
// about the machine, and memory sections, which name external memory and contain the rest. The devices' sections and an
// end follow, and in a migration's state a description, which may be empty.
const (
	stateHead     = 8
	deviceSection = 4                      // its type
	noDescription = "\x06\x00\x00\x00\x00" // type and length
)

// splice combines the beginning of the state from with new firmware and with devices in Xen's form. The machine started
// from that state.
func splice(from []byte, memory memorySections, firmware, devices []byte) ([]byte, error) {
	if len(devices) <= stateHead || !bytes.Equal(from[:stateHead], devices[:stateHead]) ||
		devices[stateHead] != deviceSection {
		return nil, errors.New("it is in no form that is known")
	}
	state := bytes.Clone(from[:memory.end])
	if len(firmware) > 0 {
		state = append(state, firmwareSection(memory.number, firmware)...)
	}
	return append(append(state, devices[stateHead:]...), noDescription...), nil
}

// pausedState changes a device state to say that the machine is paused, so that it continues only on command. A state
// saved at a breakpoint says "debug", in which a machine can't start, and one of Xen's form says "running". QEMU stores
// the state's name after the section's name, instance and version: its length with the NUL, and 100 bytes
// (migration/global_state.c).
func pausedState(state []byte) []byte {
	const name, to = "globalstate", "\x00\x00\x00\x07paused\x00"
	i := bytes.Index(state, []byte(name))
	if i < 0 {
		return state
	}
	at := i + len(name) + 8
	for _, from := range []string{"\x00\x00\x00\x06debug\x00\x00", "\x00\x00\x00\x08running\x00"} {
		if at <= len(state) && bytes.HasPrefix(state[at:], []byte(from)) {
			changed := bytes.Clone(state)
			copy(changed[at:], to+strings.Repeat("\x00", len(from)-len(to)))
			return changed
		}
	}
	return state
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
	// For the outgoing state, QEMU requires a named descriptor.
	if err := m.Monitor.SendFile(ctx, "state", theirs); err != nil {
		return nil, err
	}
	theirs.Close()
	type saved struct {
		state []byte
		err   error
	}
	done := make(chan saved, 1)
	defer func() { // in any case: the reader ends with its socket
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
	end() // closes QEMU's end if it is still open: that ends the state
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

// Restore loads a state into a machine that was started with a State, and lets it continue from there.
func (m *Machine) Restore(ctx context.Context, state []byte) error {
	if err := m.Load(ctx, state); err != nil {
		return err
	}
	if err := m.Monitor.Do(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	return nil
}

// Load is like Restore, but the machine stays stopped.
func (m *Machine) Load(ctx context.Context, state []byte) error {
	if err := m.Monitor.ConnectContext(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := m.ignoreShared(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if err := m.stayQuiet(ctx); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = m.state.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		_, _ = m.state.Write(state) // QEMU reports what went wrong
	}()
	defer func() { <-fed }()
	if err := m.Monitor.Do(ctx, "migrate-incoming", map[string]any{"uri": fmt.Sprintf("fd:%d", stateFD)},
		nil); err != nil {
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

// Pause stops a machine's processor: the machine then only uses memory.
func (m *Machine) Pause(ctx context.Context) error {
	if err := m.Monitor.Do(ctx, "stop", nil, nil); err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// Resume lets a paused machine continue.
func (m *Machine) Resume(ctx context.Context) error {
	if err := m.Monitor.Do(ctx, "cont", nil, nil); err != nil {
		return fmt.Errorf("resume: %w", err)
	}
	return nil
}
