package supervisor

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
)

// errWindow means that the guest sent more than it was allowed to.
var errWindow = errors.New("the machine's end of a forwarded connection sent more than was asked for")

// window holds the bytes that the guest has sent and the client has not read: contract.ForwardWindow at most.
type window struct {
	mu      sync.Mutex
	waiting []byte
	room    int // bytes that the guest may send
	more    chan struct{}
}

// Write stores bytes from the guest. It does not wait.
func (w *window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(p) > w.room {
		return 0, errWindow
	}
	w.room -= len(p)
	w.waiting = append(w.waiting, p...)
	select {
	case w.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (w *window) take() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.waiting
	w.waiting = nil
	return p
}

// give adds to the guest's room, in units of contract.ForwardUnit.
func (w *window) give(units int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room += units * contract.ForwardUnit
}

// Connect forwards a client's connection to a TCP port of the machine until either side closes it or ctx ends. It then
// closes the connection, over TCP with a reset unless the machine closed it in order. use is called before data is sent
// to the machine, which must run until done is called. The error is a syscall.Errno if nothing listens there.
func (c *Client) Connect(ctx context.Context, port uint16, conn net.Conn,
	use func() (done func(), err error)) error {
	err := c.connect(ctx, port, conn, use)
	if err != nil {
		reset(conn)
	}
	conn.Close()
	return err
}

// reset closes a connection, over TCP with a reset.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	conn.Close()
}

func (c *Client) connect(ctx context.Context, port uint16, conn net.Conn,
	use func() (done func(), err error)) error {
	stop := context.AfterFunc(ctx, func() { // also while a write to it waits, or it does not read
		reset(conn)
	})
	defer stop()
	e := Exec{Args: []string{"connect", strconv.Itoa(int(port))}, Stdin: conn, Use: use}
	return c.flow(ctx, e, func(p []byte) error {
		_, err := conn.Write(p)
		return err
	})
}

// flow runs one of the session's own commands whose output is limited to a window. take receives the output, and
// may wait. When ctx ends, the command is killed; the error is then the context's cause.
func (c *Client) flow(ctx context.Context, e Exec, take func([]byte) error) error {
	w := &window{room: contract.ForwardWindow, more: make(chan struct{}, 1)}
	e.Dir, e.Stdout, e.reply, e.builtin = "/", w, io.Discard, true
	done := func() {}
	if e.Use != nil {
		var err error
		if done, err = e.Use(); err != nil {
			return err
		}
	}
	cmd, err := c.Start(ctx, e)
	done()
	if err != nil {
		return err
	}
	ended, taken := false, 0
	defer func() {
		if !ended {
			cmd.finish(guest.End{}, net.ErrClosed)
			cmd.signal(syscall.SIGKILL)
		}
	}()
	stop := context.AfterFunc(ctx, func() { cmd.finish(guest.End{}, context.Cause(ctx)) })
	defer stop()
	for !ended {
		select {
		case <-w.more:
		case <-cmd.done:
			ended = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		p := w.take()
		if len(p) > 0 {
			if err := take(p); err != nil {
				return err
			}
		}
		taken += len(p)
		if units := taken / contract.ForwardUnit; units > 0 && !ended {
			taken -= units * contract.ForwardUnit
			w.give(units)
			if err := cmd.give(contract.StepControl, make([]byte, units)); err != nil && cmd.err != nil {
				return cmd.err
			}
		}
	}
	if cmd.err != nil {
		return cmd.err
	}
	return failure(cmd.end)
}
