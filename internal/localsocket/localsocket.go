// Package localsocket provides Unix sockets between processes of one user: session daemons, the pool daemon, consoles
// and answers of runs. Each socket is in a folder that only its user can open, and both ends check the other's user.
package localsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"

	"github.com/unitask/unitask/internal/accepting"
)

// maxAddress is the longest name, in bytes, that fits into a socket's address on every system.
const maxAddress = 100

// address names a file in a folder so that the name fits into a socket's address. done frees the name.
func address(dir, name string) (addr *net.UnixAddr, done func(), err error) {
	path := filepath.Join(dir, name)
	if len(path) < maxAddress || runtime.GOOS != "linux" {
		return &net.UnixAddr{Name: path, Net: "unix"}, func() {}, nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	path = fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), name)
	return &net.UnixAddr{Name: path, Net: "unix"}, func() { f.Close() }, nil
}

// Listen listens on a socket of mode 0600 in a private folder of its user. Its file stays after the listener is closed.
func Listen(dir, name string) (*net.UnixListener, error) {
	addr, done, err := address(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := bind(addr)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the listener's name may be invalid by then
	if err := os.Chmod(filepath.Join(dir, name), 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// bind listens on a socket. Linux gives the file the mode of the socket, so nobody else can connect before Listen sets
// the file's mode.
func bind(addr *net.UnixAddr) (*net.UnixListener, error) {
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if runtime.GOOS != "linux" {
			return nil
		}
		var failed error
		err := c.Control(func(fd uintptr) { failed = syscall.Fchmod(int(fd), 0o600) })
		return errors.Join(err, failed)
	}}
	l, err := private.Listen(context.Background(), addr.Net, addr.Name)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Dial connects to a socket in a folder. The caller checks SameUser.
func Dial(ctx context.Context, dir, name string) (*net.UnixConn, error) {
	addr, done, err := address(dir, name)
	if err != nil {
		return nil, err
	}
	defer done()
	conn, err := new(net.Dialer).DialContext(ctx, addr.Net, addr.Name)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Serve passes each connection of the same user to serve, in a goroutine of group, until l is closed. It closes a
// connection when serve returns. It closes connections beyond limit and of other users at once. When l is closed, reads
// from all connections end, so a silent client delays nobody. Pending writes still finish.
func Serve(l *net.UnixListener, limit int, group *sync.WaitGroup, serve func(*net.UnixConn)) {
	slots := make(chan struct{}, limit)
	over, end := context.WithCancel(context.Background())
	defer end()
	for {
		conn, err := accepting.Next(l.AcceptUnix)
		if err != nil {
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		group.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			defer context.AfterFunc(over, func() { _ = conn.CloseRead() })()
			if SameUser(conn) == nil {
				serve(conn)
			}
		})
	}
}
