package vmm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	"golang.org/x/sys/unix"
)

// Monitor speaks QMP on an existing connection. It satisfies go-qemu's qmp.Monitor, so that its typed commands
// (qmp/raw) work on it.
//
// go-qemu's own socket monitor is not suitable. Its replies alias the read buffer, so that an event right after a
// reply overwrites it. Events that nobody drains block Run and Disconnect, a reply of more than 64 KiB ends the
// monitor, and it only dials paths. Here, one goroutine reads. Every reply is a copy, matched by its id. A subscriber
// that does not keep up loses the oldest events.
//
// Run may be called by many goroutines at once.
type Monitor struct {
	conn net.Conn

	prefix     string        // of the ids of this monitor's commands
	connecting chan struct{} // held by Connect
	connected  bool
	writing    chan struct{} // held by the writer

	mu      sync.Mutex
	next    int
	waiting map[string]chan reply
	subs    map[chan qmp.Event]struct{}
	err     error // why reading ended; set before done is closed
	leaving bool  // Detach has asked the reader to stop at a line's end

	greeting chan struct{} // closed when QEMU has greeted
	ready    func() error  // called at QEMU's first answer, when all of it is set up; may be nil
	version  qmp.Version
	done     chan struct{} // closed when reading has ended
}

var _ qmp.Monitor = (*Monitor)(nil)

// Bounds on what QEMU may send. query-qmp-schema answers with some 300 KiB. A broken QEMU must not fill this process's
// memory.
const (
	maxQMPReply  = 4 << 20
	maxQMPEvent  = 64 << 10 // QEMU's events have some hundred bytes; a longer one is dropped
	maxQMPReason = 1 << 10  // of a refusal, which goes into errors and records
	eventBacklog = 64
)

type reply struct {
	raw []byte
	err error
}

// CommandError is QEMU's refusal of a command.
type CommandError struct {
	Command string
	Class   string // "GenericError", "CommandNotFound", …
	Desc    string
}

func (e *CommandError) Error() string { return fmt.Sprintf("QMP %s: %s", e.Command, e.Desc) }

// NewMonitor returns a monitor on conn, and owns conn. Connect does the handshake.
func NewMonitor(conn net.Conn) *Monitor {
	m := newMonitor(conn)
	go m.read() // until Disconnect, which waits for it
	return m
}

func newMonitor(conn net.Conn) *Monitor {
	return &Monitor{
		conn:       conn,
		connecting: make(chan struct{}, 1),
		writing:    make(chan struct{}, 1),
		waiting:    map[string]chan reply{},
		subs:       map[chan qmp.Event]struct{}{},
		greeting:   make(chan struct{}),
		done:       make(chan struct{}),
	}
}

// Greeted returns a channel that is closed when QEMU has greeted: its accelerator and devices are set up.
func (m *Monitor) Greeted() <-chan struct{} { return m.greeting }

// Connect waits for the greeting and leaves negotiation mode. A connected monitor stays connected.
func (m *Monitor) Connect() error { return m.ConnectContext(context.Background()) }

// ConnectContext is like Connect, but stops waiting when ctx ends.
func (m *Monitor) ConnectContext(ctx context.Context) error {
	select {
	case m.connecting <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for QEMU's greeting: %w", context.Cause(ctx))
	}
	defer func() { <-m.connecting }()
	if m.connected {
		return nil
	}
	select {
	case <-m.greeting:
	case <-m.done:
		return m.readError()
	case <-ctx.Done():
		return fmt.Errorf("wait for QEMU's greeting: %w", context.Cause(ctx))
	}
	_, err := m.RunContext(ctx, []byte(`{"execute":"qmp_capabilities"}`))
	if err == nil && m.ready != nil {
		err = m.ready()
	}
	m.connected = err == nil
	return err
}

// Version returns the version in QEMU's greeting. It is valid after Connect.
func (m *Monitor) Version() string {
	v := m.version.QEMU
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Micro)
}

// Disconnect closes the connection and waits for the reader. It may be called
// more than once.
func (m *Monitor) Disconnect() error {
	err := m.conn.Close()
	<-m.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Done returns a channel that is closed when QEMU has closed the connection.
func (m *Monitor) Done() <-chan struct{} { return m.done }

// Run sends one command ({"execute": …}) and returns the whole reply ({"return": …}). It blocks until the reply arrives
// or the connection ends.
func (m *Monitor) Run(command []byte) ([]byte, error) {
	return m.RunContext(context.Background(), command)
}

// RunContext is like Run, but stops waiting when ctx ends. A later reply is dropped.
func (m *Monitor) RunContext(ctx context.Context, command []byte) ([]byte, error) {
	return m.run(ctx, command, nil)
}

// SendFile passes a descriptor to QEMU under a name (getfd). The connection must be a Unix socket.
func (m *Monitor) SendFile(ctx context.Context, name string, f *os.File) error {
	command, err := json.Marshal(map[string]any{"execute": "getfd", "arguments": map[string]string{"fdname": name}})
	if err != nil {
		return err
	}
	_, err = m.run(ctx, command, unix.UnixRights(int(f.Fd())))
	return err
}

// addFile passes a descriptor to QEMU in a new set, and returns the set's number (add-fd).
func (m *Monitor) addFile(ctx context.Context, f *os.File) (set int, err error) {
	text, err := m.run(ctx, []byte(`{"execute": "add-fd"}`), unix.UnixRights(int(f.Fd())))
	if err != nil {
		return 0, err
	}
	var answer struct {
		Return struct {
			Set int `json:"fdset-id"`
		} `json:"return"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, fmt.Errorf("QMP add-fd: %w", err)
	}
	return answer.Return.Set, nil
}

// writeGrace is how long reading may continue after a write has failed.
const writeGrace = time.Second

// run sends a command, with rights if not nil, and waits for the reply.
func (m *Monitor) run(ctx context.Context, command, rights []byte) ([]byte, error) {
	var cmd map[string]json.RawMessage
	if err := json.Unmarshal(command, &cmd); err != nil {
		return nil, fmt.Errorf("QMP command: %w", err)
	}
	name, _ := strconv.Unquote(string(cmd["execute"]))
	answer := make(chan reply, 1)
	m.mu.Lock()
	m.next++
	id := m.prefix + strconv.Itoa(m.next)
	m.waiting[id] = answer
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.waiting, id)
		m.mu.Unlock()
	}()
	cmd["id"] = json.RawMessage(strconv.Quote(id))
	line, err := json.Marshal(cmd)
	if err != nil {
		return nil, err
	}
	if err = m.write(ctx, append(line, '\n'), rights); err != nil {
		select { // the reader's error is more precise, and may still be on its way
		case <-m.done:
			err = m.readError()
		case <-ctx.Done():
		case <-time.After(writeGrace):
		}
		return nil, fmt.Errorf("QMP %s: %w", name, err)
	}
	select {
	case r := <-answer:
		var refused *CommandError
		if errors.As(r.err, &refused) {
			refused.Command = name
		}
		return r.raw, r.err
	case <-m.done:
		return nil, m.readError()
	case <-ctx.Done():
		return nil, fmt.Errorf("QMP %s: %w", name, context.Cause(ctx))
	}
}

// write sends a line, until ctx ends. A partly sent command can't be withdrawn: only then, the connection becomes
// unusable.
func (m *Monitor) write(ctx context.Context, line, rights []byte) error {
	select {
	case m.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-m.writing }()
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(cut)
		_ = m.conn.SetWriteDeadline(time.Unix(1, 0))
	})
	err := m.send(line, rights)
	if stop() {
		return err
	}
	<-cut
	if err != nil {
		return context.Cause(ctx)
	}
	_ = m.conn.SetWriteDeadline(time.Time{}) // everything was sent: remove the deadline for the next command
	select {
	case <-m.done: // whose end had set the deadline, too
		_ = m.conn.SetWriteDeadline(time.Unix(1, 0))
	default:
	}
	return nil
}

func (m *Monitor) send(line, rights []byte) error {
	if rights == nil {
		_, err := m.conn.Write(line)
		return err
	}
	c, ok := m.conn.(*net.UnixConn)
	if !ok {
		return errors.New("descriptors need a Unix socket")
	}
	_, _, err := c.WriteMsgUnix(line, rights, nil)
	return err
}

// Do runs one command with arguments (nil for none) and decodes the reply into result (nil to ignore it).
func (m *Monitor) Do(ctx context.Context, name string, arguments, result any) error {
	cmd := map[string]any{"execute": name}
	if arguments != nil {
		cmd["arguments"] = arguments
	}
	text, err := json.Marshal(cmd)
	if err != nil {
		return err
	}
	raw, err := m.RunContext(ctx, text)
	if err != nil || result == nil {
		return err
	}
	return json.Unmarshal(raw, &struct {
		Return any `json:"return"`
	}{result})
}

// Events returns QEMU's events from now on. The channel holds the newest events; a slow reader loses the oldest. It is
// closed when ctx or the connection ends.
func (m *Monitor) Events(ctx context.Context) (<-chan qmp.Event, error) {
	ch := make(chan qmp.Event, eventBacklog)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return nil, m.err
	}
	m.subs[ch] = struct{}{}
	context.AfterFunc(ctx, func() { m.unsubscribe(ch) })
	return ch, nil
}

func (m *Monitor) unsubscribe(ch chan qmp.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.subs[ch]; ok {
		delete(m.subs, ch)
		close(ch)
	}
}

func (m *Monitor) readError() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// message is anything QEMU sends.
type message struct {
	QMP *struct {
		Version qmp.Version `json:"version"`
	} `json:"QMP"`
	ID    string          `json:"id"`
	Event string          `json:"event"`
	Ret   json.RawMessage `json:"return"`
	Error *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
}

func (m *Monitor) read() {
	err := m.readAll()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	m.mu.Lock()
	m.err = fmt.Errorf("QMP connection ended: %w", err)
	for ch := range m.subs {
		delete(m.subs, ch)
		close(ch)
	}
	m.mu.Unlock()
	close(m.done)
	if !errors.Is(err, errDetached) {
		_ = m.conn.SetWriteDeadline(time.Unix(1, 0)) // a QEMU that has stopped reading must block nobody
	}
}

func (m *Monitor) readAll() error {
	r := bufio.NewReaderSize(m.conn, 16<<10)
	for {
		line, err := readLine(r)
		if errors.Is(err, os.ErrDeadlineExceeded) && m.isLeaving() {
			if len(line) == 0 {
				return errDetached
			}
			var rest []byte
			_ = m.conn.SetReadDeadline(time.Now().Add(detachWait))
			rest, err = readLine(r)
			_ = m.conn.SetReadDeadline(time.Unix(1, 0))
			line = append(line, rest...)
		}
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var msg message
		if err := json.Unmarshal(line, &msg); err != nil {
			return fmt.Errorf("not QMP: %.80q", line)
		}
		m.dispatch(&msg, line)
	}
}

var errDetached = errors.New("detached")

func (m *Monitor) isLeaving() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaving
}

// readLine returns a line in newly allocated memory.
func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > maxQMPReply {
			return nil, fmt.Errorf("a reply of more than %d bytes", maxQMPReply)
		}
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// reason returns QEMU's description of a refusal: shortened, and with control characters escaped.
func reason(text string) string {
	text = text[:min(len(text), maxQMPReason)]
	quoted := strconv.Quote(text)
	if quoted = quoted[1 : len(quoted)-1]; strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return quoted
	}
	return text
}

func (m *Monitor) dispatch(msg *message, line []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case msg.QMP != nil:
		select {
		case <-m.greeting:
		default:
			m.version = msg.QMP.Version
			close(m.greeting)
		}
	case msg.Event != "":
		var ev qmp.Event
		if len(line) > maxQMPEvent || json.Unmarshal(line, &ev) != nil {
			return
		}
		for ch := range m.subs {
			for {
				select {
				case ch <- ev:
				default:
					select {
					case <-ch: // drop the oldest to make room
					default:
					}
					continue
				}
				break
			}
		}
	case m.waiting[msg.ID] != nil:
		r := reply{raw: line}
		if msg.Error != nil {
			r = reply{err: &CommandError{Class: reason(msg.Error.Class), Desc: reason(msg.Error.Desc)}}
		}
		select {
		case m.waiting[msg.ID] <- r:
		default: // a second reply to one command: QEMU never sends one
		}
	}
}
