package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/filelock"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/vmm"
)

// The pool daemon lends clones. A run asks for a clone of its exact kind, over a socket that only its own user may
// open. It gets the file descriptors of the clone's network, console and monitor. Everything else (policy, network,
// record, streams) stays in the run's own process: the daemon sees neither code nor secrets, and can't widen any grant.
// The daemon owns the process, and kills it when the run's connection closes for any reason.
//
// Each side sends one line of JSON, the answer with the descriptors beside it (SCM_RIGHTS: network, console,
// monitor). When the machine has ended, the daemon sends a line with its status.

// Limits of the socket.
const (
	poolMessage  = 16 << 10 // bytes of a line
	poolPatience = 2 * time.Second
	poolClients  = 512
)

type leaseRequest struct {
	Op  string `json:"op"`            // clone, status or down
	Key string `json:"key,omitempty"` // the key of the clone's spec
	Class
}

type leaseReply struct {
	OK     bool        `json:"ok"`
	Jail   vmm.Jail    `json:"held,omitzero"` // not "jail", which was a string
	Pid    int         `json:"pid,omitempty"`
	Pooled bool        `json:"pooled,omitempty"` // it was ready; otherwise it had to be restored first
	Status *PoolStatus `json:"status,omitempty"`
}

// lockFile holds a lock as long as the process lives.
func lockFile(name string) (unlock func(), err error) {
	lock, err := filelock.Try(name)
	if errors.Is(err, filelock.ErrHeld) {
		return nil, ErrPoolRuns
	}
	if err != nil {
		return nil, err
	}
	return lock.Unlock, nil
}

// dialPool connects to the home's daemon, which must run as the same user.
func dialPool(home string) (*net.UnixConn, error) {
	conn, err := localsocket.Dial(context.Background(), home, layout.PoolSocket)
	if err != nil {
		return nil, ErrNoPool
	}
	if localsocket.SameUser(conn) != nil {
		conn.Close()
		return nil, fmt.Errorf("the pool daemon at %s is another user's", layout.Dir(home).PoolSocket())
	}
	return conn, nil
}

// lease gets a running clone from the home's pool daemon.
func lease(ctx context.Context, home string, spec Spec) (*Machine, error) {
	conn, err := dialPool(home)
	if err != nil {
		return nil, err
	}
	m, err := leaseOn(ctx, conn, spec)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return m, nil
}

func leaseOn(ctx context.Context, conn *net.UnixConn, spec Spec) (*Machine, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(poolPatience))
	if err := writeLine(conn, leaseRequest{Op: "clone", Key: spec.Key(), Class: spec.Class()}, nil); err != nil {
		return nil, err
	}
	var reply leaseReply
	files, err := readFiles(conn, &reply)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil || !reply.OK || len(files) != 3 {
		return nil, errors.Join(err, ErrNoPool)
	}
	_ = conn.SetDeadline(time.Time{})
	exited := make(chan vmm.Exit, 1)
	go func() { // until the daemon reports how the machine ended, or is gone
		exit := vmm.Exit{Code: -1, Guest: -1, Signal: "killed", Stderr: "the pool daemon has ended"}
		var told vmm.Exit
		switch err := readLine(conn, &told); {
		case err == nil:
			exit = told
		case !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET):
			exit.Stderr = "its end can't be read from the pool daemon: " + err.Error()
		}
		conn.Close()
		exited <- exit
	}()
	vm, err := vmm.Adopt(vmm.Adoption{Jail: reply.Jail, Pid: reply.Pid,
		Lent: vmm.Lent{Console: files[1], Monitor: files[2]}, Exited: exited, Kill: func() {
			_ = conn.CloseWrite()
			_ = conn.SetReadDeadline(time.Now().Add(poolPatience))
		}})
	if err != nil {
		return nil, err
	}
	m := &Machine{Spec: spec, Origin: Cloned, vm: vm, state: Running, link: files[0]}
	if reply.Pooled {
		m.Origin = Pooled
	}
	files = files[1:]
	return m, nil
}

// AskPool asks the home's pool daemon for its status; the error is ErrNoPool if none runs.
func AskPool(home string) (*PoolStatus, error) {
	conn, err := dialPool(home)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(poolPatience))
	var reply leaseReply
	if err := errors.Join(writeLine(conn, leaseRequest{Op: "status"}, nil), readLine(conn, &reply)); err != nil ||
		reply.Status == nil {
		return nil, fmt.Errorf("ask the pool daemon: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	return reply.Status, nil
}

// StopPool stops the home's pool daemon, and returns when it is gone or ctx ends. It waits for the runs on the
// daemon's clones. The error is ErrNoPool if no daemon runs.
func StopPool(ctx context.Context, home string) error {
	conn, err := dialPool(home)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := writeLine(conn, leaseRequest{Op: "down"}, nil); err != nil {
		return fmt.Errorf("stop the pool daemon: %w", err)
	}
	for { // the daemon holds its lock until it is gone
		unlock, err := lockFile(layout.Dir(home).PoolLock())
		if err == nil {
			unlock()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("stop the pool daemon: %w", context.Cause(ctx))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func writeLine(conn *net.UnixConn, v any, rights []byte) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(append(text, '\n'), rights, nil)
	return err
}

// fitting cuts a machine's exit so that it fits into a line: QEMU's standard error loses its beginning.
func fitting(exit vmm.Exit) vmm.Exit {
	const escaped = 6 // bytes of JSON for one byte, at most
	for {
		text, err := json.Marshal(exit)
		over := len(text) - (poolMessage - 1)
		if err != nil || over <= 0 || exit.Stderr == "" {
			return exit
		}
		exit.Stderr = exit.Stderr[min(over/escaped+1, len(exit.Stderr)):]
	}
}

// readLine reads one line of JSON, and not a byte more.
func readLine(conn *net.UnixConn, v any) error {
	var line []byte
	var b [1]byte
	for len(line) < poolMessage {
		if _, err := conn.Read(b[:]); err != nil {
			return err
		}
		if b[0] == '\n' {
			return json.Unmarshal(line, v)
		}
		line = append(line, b[0])
	}
	return fmt.Errorf("a line is longer than %d bytes", poolMessage)
}

// readFiles reads a line that arrives in one message, and the descriptors beside it.
func readFiles(conn *net.UnixConn, v any) ([]*os.File, error) {
	line, rights := make([]byte, poolMessage), make([]byte, unix.CmsgSpace(4*4))
	n, rn, _, _, err := conn.ReadMsgUnix(line, rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "pool"))
		}
	}
	return files, json.Unmarshal(line[:n], v)
}
