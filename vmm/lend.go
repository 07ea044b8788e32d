package vmm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Lent holds the descriptors with which another process uses a machine's monitor and its guest's console. Close frees
// them.
type Lent struct {
	Console, Monitor *os.File
}

// Close frees the descriptors.
func (l Lent) Close() { _ = errors.Join(l.Console.Close(), l.Monitor.Close()) }

// Lend gives away the console and the monitor, which must be connected. The lender must not use ReadConsole or the
// Monitor before or after.
func (m *Machine) Lend() (Lent, error) {
	console, err := m.console.(*net.UnixConn).File()
	if err != nil {
		return Lent{}, fmt.Errorf("lend machine: %w", err)
	}
	monitor, err := m.Monitor.Detach()
	if err != nil {
		console.Close()
		return Lent{}, fmt.Errorf("lend machine: %w", err)
	}
	return Lent{console, monitor}, nil
}

// Adoption describes a machine that another process started and holds.
type Adoption struct {
	Jail   Jail
	Pid    int
	Lent          // Adopt duplicates them
	Kill   func() // asks the holder to end the machine
	Exited <-chan Exit
}

// Adopt returns a running machine that another process started and lent.
func Adopt(a Adoption) (*Machine, error) {
	console, err := net.FileConn(a.Console)
	if err != nil {
		return nil, fmt.Errorf("adopt machine: %w", err)
	}
	qmp, err := net.FileConn(a.Monitor)
	if err != nil {
		console.Close()
		return nil, fmt.Errorf("adopt machine: %w", err)
	}
	m := &Machine{Monitor: AdoptMonitor(qmp), Jail: a.Jail, pid: a.Pid, kill: a.Kill, console: console,
		copied: make(chan struct{}), exited: make(chan struct{})}
	go func() { // until Exited reports the end; Close waits for it
		m.status = <-a.Exited
		close(m.exited)
	}()
	return m, nil
}

// AdoptMonitor returns a monitor on a connection that another monitor has connected and detached from.
func AdoptMonitor(conn net.Conn) *Monitor {
	m := newMonitor(conn)
	m.prefix, m.connected = "adopted ", true // replies to the last monitor's commands may still arrive
	close(m.greeting)
	go m.read()
	return m
}

// detachWait bounds how long QEMU may take to send the rest of a line.
const detachWait = time.Second

// Detach ends the monitor and returns its connection, between two messages, so that another process can adopt it.
// Nobody may be waiting for a reply.
func (m *Monitor) Detach() (*os.File, error) {
	c, ok := m.conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("detach monitor: not a Unix socket")
	}
	f, err := c.File()
	if err != nil {
		return nil, fmt.Errorf("detach monitor: %w", err)
	}
	m.mu.Lock()
	m.leaving = true
	m.mu.Unlock()
	_ = m.conn.SetReadDeadline(time.Unix(1, 0))
	<-m.done
	_ = m.conn.Close()
	if err := m.readError(); !errors.Is(err, errDetached) {
		f.Close()
		return nil, fmt.Errorf("detach monitor: %w", err)
	}
	return f, nil
}
