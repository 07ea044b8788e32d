package unitask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/vmm"
)

// The pool daemon hands clones out: over a socket that only its own user may open,
// a run asks for a clone of its exact kind, and gets the descriptors of its network
// and its console. Everything else (policy, network, record, streams) stays in the
// run's own process: the daemon sees neither code nor secret, and can widen nothing.
// It holds the process, which it kills when the run's connection ends, however that
// came about.
//
// One line of JSON each way, descriptors beside the answer (SCM_RIGHTS: network,
// console); then, when the machine has ended, a line with its status.

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

type poolRequest struct {
	Op  string `json:"op"`            // clone, status or down
	Key string `json:"key,omitempty"` // of the clone's spec
	Shape
}

type poolReply struct {
	OK     bool        `json:"ok"`
	Jail   string      `json:"jail,omitempty"`
	Pid    int         `json:"pid,omitempty"`
	Spare  bool        `json:"spare,omitempty"` // it had to be restored first
	Status *PoolStatus `json:"status,omitempty"`
}

// ServePool is the pool daemon of the runtime's home, which must have been opened
// with a Pool. It returns nil when ctx ends, when it is told to go down, or when no
// run has come for idle; runs under way on its clones are waited for. The error is
// ErrPoolRuns where there is one already.
func (rt *Runtime) ServePool(ctx context.Context, idle time.Duration) error {
	if rt.pool == nil {
		return hostError("pool", errors.New("there is no pool: snapshots need Linux, and Options.Pool a size"))
	}
	unlock, err := lockFile(filepath.Join(rt.opts.Home, poolLock))
	if err != nil {
		return err
	}
	defer unlock()
	l, err := listenPool(rt.opts.Home)
	if err != nil {
		return hostError("pool", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &poolServer{rt: rt, down: cancel, started: time.Now(), clients: make(chan struct{}, poolClients)}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	s.group.Go(func() { s.sleep(ctx, idle) })
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			break
		}
		select {
		case s.clients <- struct{}{}:
			s.group.Go(func() {
				defer func() { <-s.clients }()
				defer conn.Close()
				s.serve(conn)
			})
		default:
			conn.Close()
		}
	}
	cancel()
	s.group.Wait()
	_ = os.Remove(filepath.Join(rt.opts.Home, poolSocket))
	return nil
}

// lockFile takes a lock for as long as the process lives.
func lockFile(name string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, hostError("pool", err)
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, hostError("pool", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, ErrPoolRuns
	}
	return func() { f.Close() }, nil
}

// inDir returns a short name for a file in a folder: a socket's address has room for
// 107 bytes, and a home may be deep. It is good until done is called.
func inDir(dir, name string) (short string, done func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), name), func() { f.Close() }, nil
}

func listenPool(home string) (*net.UnixListener, error) {
	_ = os.Remove(filepath.Join(home, poolSocket)) // of one that was killed: we have the lock
	name, done, err := inDir(home, poolSocket)
	if err != nil {
		return nil, err
	}
	defer done()
	before := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	unix.Umask(before)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by a name that is no longer good
	return l, nil
}

// dialPool connects to the home's daemon, which must be our own user's.
func dialPool(home string) (*net.UnixConn, error) {
	name, done, err := inDir(home, poolSocket)
	if err != nil {
		return nil, ErrNoPool
	}
	defer done()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, ErrNoPool
	}
	if !ownPeer(conn) {
		conn.Close()
		return nil, fmt.Errorf("the pool daemon at %s is another user's", filepath.Join(home, poolSocket))
	}
	return conn, nil
}

// ownPeer says that the other end is a process of our own user.
func ownPeer(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	own := false
	_ = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		own = err == nil && int(cred.Uid) == os.Getuid()
	})
	return own
}

type poolServer struct {
	rt      *Runtime
	down    func()
	started time.Time
	clients chan struct{}
	group   sync.WaitGroup

	mu      sync.Mutex
	running int
}

// sleep ends the daemon when no run has come for a while.
func (s *poolServer) sleep(ctx context.Context, idle time.Duration) {
	for ctx.Err() == nil {
		s.mu.Lock()
		running := s.running
		s.mu.Unlock()
		left := idle - time.Since(s.rt.pool.lastRun())
		if left <= 0 && running == 0 {
			s.down()
			return
		}
		select {
		case <-time.After(max(left, poolTick)):
		case <-ctx.Done():
		}
	}
}

func (s *poolServer) serve(conn *net.UnixConn) {
	if !ownPeer(conn) {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(poolPatience))
	var req poolRequest
	if err := readLine(conn, &req); err != nil {
		return
	}
	switch req.Op {
	case "clone":
		s.clone(conn, req)
	case "status":
		s.mu.Lock()
		running := s.running
		s.mu.Unlock()
		_ = writeLine(conn, poolReply{OK: true, Status: &PoolStatus{Pid: os.Getpid(), Started: s.started, Min: s.rt.opts.Pool.Min, Max: s.rt.opts.Pool.Max,
			Shape: s.rt.opts.PoolShape, Running: running, PoolStats: s.rt.pool.figures()}}, nil)
	case "down":
		_ = writeLine(conn, poolReply{OK: true}, nil)
		s.down()
		s.rt.pool.close()
		_ = conn.SetDeadline(time.Time{}) // it is told by the connection's end that we are gone
	}
}

// known returns the spec of a key that the pool has seen.
func (p *pool) known(key string) (machineSpec, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shelves[key]
	if s == nil {
		return machineSpec{}, false
	}
	return s.spec, true
}

// clone hands a clone out and holds it until it or its run has ended.
func (s *poolServer) clone(conn *net.UnixConn, req poolRequest) {
	ctx, cancel := context.WithTimeout(context.Background(), poolPatience)
	defer cancel()
	spec, known := s.rt.pool.known(req.Key)
	if !known {
		var err error
		if spec, err = s.rt.resolve(ctx, req.Shape); err != nil || spec.key() != req.Key { // another version of us asks
			_ = writeLine(conn, poolReply{}, nil)
			return
		}
	}
	c := s.rt.pool.take(spec)
	if c == nil {
		_ = writeLine(conn, poolReply{}, nil)
		return
	}
	defer c.close()
	var err error
	spare := c.state != nil
	if spare { // restored here, where its monitor is
		err = c.machine.Restore(ctx, c.state)
	} else {
		err = c.machine.Resume(ctx)
	}
	if err != nil {
		_ = writeLine(conn, poolReply{}, nil)
		return
	}
	console, err := c.machine.ConsoleFile()
	if err != nil {
		_ = writeLine(conn, poolReply{}, nil)
		return
	}
	err = writeLine(conn, poolReply{OK: true, Jail: c.machine.Jail, Pid: c.machine.Pid(), Spare: spare}, unix.UnixRights(int(c.link.Fd()), int(console.Fd())))
	console.Close()
	c.link.Close() // the run's alone now: its end is the link's end
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	s.mu.Lock()
	s.running++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	gone := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // it says nothing: it is there or not
		close(gone)
	}()
	select {
	case <-gone:
		c.close()
	case <-c.machine.Exited():
	}
	if exit, err := c.machine.Status(); err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(poolPatience))
		_ = writeLine(conn, exit, nil)
	}
	conn.Close()
	<-gone
}

// leaseClone gets a clone from the home's pool daemon, or nil.
func leaseClone(ctx context.Context, home string, spec machineSpec) *standby {
	conn, err := dialPool(home)
	if err != nil {
		return nil
	}
	s, err := lease(ctx, conn, spec)
	if err != nil {
		conn.Close()
		return nil
	}
	return s
}

func lease(ctx context.Context, conn *net.UnixConn, spec machineSpec) (*standby, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(poolPatience))
	if err := writeLine(conn, poolRequest{Op: "clone", Key: spec.key(), Shape: spec.shape()}, nil); err != nil {
		return nil, err
	}
	var reply poolReply
	files, err := readFiles(conn, &reply)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil || !reply.OK || len(files) != 2 {
		return nil, errors.Join(err, ErrNoPool)
	}
	_ = conn.SetDeadline(time.Time{})
	exited := make(chan vmm.Exit, 1)
	go func() {
		exit := vmm.Exit{Code: -1, Guest: -1, Signal: "killed", Stderr: "the pool daemon has ended"}
		_ = readLine(conn, &exit)
		conn.Close()
		exited <- exit
	}()
	machine, err := vmm.Adopt(vmm.Adoption{Jail: reply.Jail, Pid: reply.Pid, Console: files[1], Exited: exited, Kill: func() {
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(poolPatience))
	}})
	if err != nil {
		return nil, err
	}
	link := files[0]
	files = files[1:]
	return &standby{machine: machine, link: link, running: true, spare: reply.Spare, since: time.Now()}, nil
}

// PoolDaemonStatus asks the home's pool daemon; the error is ErrNoPool where none runs.
func PoolDaemonStatus(home string) (*PoolStatus, error) {
	conn, err := dialPool(home)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(poolPatience))
	var reply poolReply
	if err := errors.Join(writeLine(conn, poolRequest{Op: "status"}, nil), readLine(conn, &reply)); err != nil || reply.Status == nil {
		return nil, fmt.Errorf("ask the pool daemon: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	return reply.Status, nil
}

// StopPoolDaemon tells the home's pool daemon to go down, and returns when it is gone
// or ctx ends. It waits for the runs on its clones. The error is ErrNoPool where none
// runs.
func StopPoolDaemon(ctx context.Context, home string) error {
	conn, err := dialPool(home)
	if err != nil {
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := writeLine(conn, poolRequest{Op: "down"}, nil); err != nil {
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
	return fmt.Errorf("a line of more than %d bytes", poolMessage)
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
