package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/vmm"
)

// The pool daemon hands clones out: over a socket that only its own user may open,
// a run asks for a clone of its exact kind, and gets the descriptors of its network,
// its console and its monitor. Everything else (policy, network, record, streams) stays in the
// run's own process: the daemon sees neither code nor secret, and can widen nothing.
// It holds the process, which it kills when the run's connection ends, however that
// came about.
//
// One line of JSON each way, descriptors beside the answer (SCM_RIGHTS: network,
// console, monitor); then, when the machine has ended, a line with its status.

// Names in the home.
const (
	poolSocket = "pool.sock"
	poolLock   = "pool.lock"
)

// Bounds of the socket.
const (
	poolMessage  = 16 << 10 // bytes of a line
	poolPatience = 2 * time.Second
	poolClients  = 512
)

type leaseRequest struct {
	Op  string `json:"op"`            // clone, status or down
	Key string `json:"key,omitempty"` // of the clone's spec
	Class
}

type leaseReply struct {
	OK     bool        `json:"ok"`
	Jail   vmm.Jail    `json:"held,omitzero"` // not "jail", which was a string
	Pid    int         `json:"pid,omitempty"`
	Pooled bool        `json:"pooled,omitempty"` // it stood ready; else it had to be restored first
	Status *PoolStatus `json:"status,omitempty"`
}

// lockFile takes a lock for as long as the process lives.
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

// dialPool connects to the home's daemon, which must be our own user's.
func dialPool(home string) (*net.UnixConn, error) {
	conn, err := localsocket.Dial(context.Background(), home, poolSocket)
	if err != nil {
		return nil, ErrNoPool
	}
	if localsocket.SameUser(conn) != nil {
		conn.Close()
		return nil, fmt.Errorf("the pool daemon at %s is another user's", filepath.Join(home, poolSocket))
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
	go func() { // until the daemon says how it ended, or is gone
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

// AskPool asks the home's pool daemon; the error is ErrNoPool if none runs.
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

// StopPool tells the home's pool daemon to go down, and returns when it is gone or ctx ends. It waits for the runs on
// its clones. The error is ErrNoPool if none runs.
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
	for { // it holds its lock until it is gone
		unlock, err := lockFile(filepath.Join(home, poolLock))
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

// fitting is how a machine ended as a line has room for it: what QEMU said is cut, and its end stays.
func fitting(exit vmm.Exit) vmm.Exit {
	const escaped = 6 // bytes that JSON makes of one, at most
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

// readFiles reads a line that came in one message, and the descriptors beside it.
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
