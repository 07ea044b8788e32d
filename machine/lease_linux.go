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

type leaseRequest struct {
	Op  string `json:"op"`            // clone, status or down
	Key string `json:"key,omitempty"` // of the clone's spec
	Shape
}

type leaseReply struct {
	OK     bool        `json:"ok"`
	Jail   string      `json:"jail,omitempty"`
	Pid    int         `json:"pid,omitempty"`
	Pooled bool        `json:"pooled,omitempty"` // it stood ready; else it had to be restored first
	Status *PoolStatus `json:"status,omitempty"`
}

// Serve is the pool daemon of the source's home, which must have been opened with a
// Pool; about is the shape that it tells of. It returns nil when ctx ends, when it is
// told to go down, or when no run has come for idle; runs under way on its clones are
// waited for. The error is ErrPoolRuns where there is one already.
func (s *Source) Serve(ctx context.Context, idle time.Duration, about Shape) error {
	if s.pool == nil {
		return errors.New("there is no pool: snapshots need Linux, and the pool a size")
	}
	unlock, err := lockFile(filepath.Join(s.opts.Home, poolLock))
	if err != nil {
		return err
	}
	defer unlock()
	l, err := listenPool(s.opts.Home)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv := &leaseServer{source: s, about: about, down: cancel, started: time.Now(), clients: make(chan struct{}, poolClients)}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	srv.group.Go(func() { srv.sleep(ctx, idle) })
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			break
		}
		select {
		case srv.clients <- struct{}{}:
			srv.group.Go(func() {
				defer func() { <-srv.clients }()
				defer conn.Close()
				srv.serve(conn)
			})
		default:
			conn.Close()
		}
	}
	cancel()
	srv.group.Wait()
	_ = os.Remove(filepath.Join(s.opts.Home, poolSocket))
	return nil
}

// lockFile takes a lock for as long as the process lives.
func lockFile(name string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
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

type leaseServer struct {
	source  *Source
	about   Shape
	down    func()
	started time.Time
	clients chan struct{}
	group   sync.WaitGroup

	mu      sync.Mutex
	running int
}

// runs is how many runs are under way on the pool's machines.
func (s *leaseServer) runs(add int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running += add
	return s.running
}

// sleep ends the daemon when no run has come for a while.
func (s *leaseServer) sleep(ctx context.Context, idle time.Duration) {
	for ctx.Err() == nil {
		left := idle - time.Since(s.source.pool.lastRun())
		if left <= 0 && s.runs(0) == 0 {
			s.down()
			return
		}
		select {
		case <-time.After(max(left, poolTick)):
		case <-ctx.Done():
		}
	}
}

func (s *leaseServer) serve(conn *net.UnixConn) {
	if !ownPeer(conn) {
		return
	}
	_ = conn.SetDeadline(time.Now().Add(poolPatience))
	var req leaseRequest
	if err := readLine(conn, &req); err != nil {
		return
	}
	pool := s.source.pool
	switch req.Op {
	case "clone":
		m := s.take(req)
		if m == nil {
			_ = writeLine(conn, leaseReply{}, nil)
			return
		}
		defer m.Close()
		s.hand(conn, m)
	case "status":
		_ = writeLine(conn, leaseReply{OK: true, Status: &PoolStatus{Pid: os.Getpid(), Started: s.started, Min: pool.size.Min, Max: pool.size.Max,
			Shape: s.about, Running: s.runs(0), PoolStats: pool.figures()}}, nil)
	case "down":
		_ = writeLine(conn, leaseReply{OK: true}, nil)
		s.down()
		pool.close()
		_ = conn.SetDeadline(time.Time{}) // it is told by the connection's end that we are gone
	}
}

// take returns a running clone of exactly the kind that is asked for, or nil.
func (s *leaseServer) take(req leaseRequest) *Machine {
	ctx, cancel := context.WithTimeout(context.Background(), poolPatience)
	defer cancel()
	spec, known := s.source.pool.known(req.Key)
	if !known {
		im, err := s.source.opts.Images.Lookup(req.Kernel, req.Arch)
		if err != nil {
			return nil
		}
		if spec, err = s.source.Spec(ctx, im, req.MemoryMB, req.FreshProcess); err != nil || spec.Key() != req.Key { // another version of us asks
			return nil
		}
	}
	m, ok := s.source.pool.take(spec)
	if !ok {
		return nil
	}
	if m.run(ctx) != nil { // a spare is restored here, where its state is
		m.Close()
		return nil
	}
	return m
}

// hand gives a machine out, and holds its process until it or its run has ended.
func (s *leaseServer) hand(conn *net.UnixConn, m *Machine) {
	lent, err := m.vm.Lend()
	if err != nil {
		_ = writeLine(conn, leaseReply{}, nil)
		return
	}
	err = writeLine(conn, leaseReply{OK: true, Jail: m.Jail(), Pid: m.vm.Pid(), Pooled: m.Origin == Pooled},
		unix.UnixRights(int(m.link.Fd()), int(lent.Console.Fd()), int(lent.Monitor.Fd())))
	lent.Close()
	m.link.Close() // the run's alone now: its end is the link's end
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	s.runs(1)
	defer s.runs(-1)
	gone := make(chan struct{})
	go func() { // until conn is closed, below
		_, _ = conn.Read(make([]byte, 1)) // it says nothing: it is there or not
		close(gone)
	}()
	select {
	case <-gone:
		m.Close()
	case <-m.vm.Exited():
	}
	if exit, err := m.vm.Status(); err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(poolPatience))
		_ = writeLine(conn, exit, nil)
	}
	conn.Close()
	<-gone
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
	if err := writeLine(conn, leaseRequest{Op: "clone", Key: spec.Key(), Shape: spec.Shape()}, nil); err != nil {
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
		_ = readLine(conn, &exit)
		conn.Close()
		exited <- exit
	}()
	vm, err := vmm.Adopt(vmm.Adoption{Jail: reply.Jail, Pid: reply.Pid, Lent: vmm.Lent{Console: files[1], Monitor: files[2]}, Exited: exited, Kill: func() {
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(poolPatience))
	}})
	if err != nil {
		return nil, err
	}
	m := &Machine{Spec: spec, Origin: Cloned, Monitor: vm.Monitor, vm: vm, state: Running, link: files[0]}
	if reply.Pooled {
		m.Origin = Pooled
	}
	files = files[1:]
	return m, nil
}

// AskPool asks the home's pool daemon; the error is ErrNoPool where none runs.
func AskPool(home string) (*PoolStatus, error) {
	conn, err := dialPool(home)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(poolPatience))
	var reply leaseReply
	if err := errors.Join(writeLine(conn, leaseRequest{Op: "status"}, nil), readLine(conn, &reply)); err != nil || reply.Status == nil {
		return nil, fmt.Errorf("ask the pool daemon: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	return reply.Status, nil
}

// StopPool tells the home's pool daemon to go down, and returns when it is gone
// or ctx ends. It waits for the runs on its clones. The error is ErrNoPool where none
// runs.
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
