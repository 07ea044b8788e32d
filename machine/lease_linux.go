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
	srv := newLeaseServer(s.lender(about), cancel)
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	srv.group.Go(func() { srv.sleep(ctx, idle) })
	srv.accept(l)
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

// loan is a running machine that the server hands out.
type loan interface {
	// Lend gives away the machine's network, console and monitor, with what the run
	// should know of it.
	Lend() (leaseReply, []*os.File, error)
	// Exited is closed when it has ended; Exit then says how.
	Exited() <-chan struct{}
	Exit() (vmm.Exit, error)
	// Close kills it.
	Close() error
}

// lender is whose machines they are.
type lender struct {
	// take returns a machine of exactly the kind that is asked for, or an error.
	take    func(context.Context, leaseRequest) (loan, error)
	status  func() PoolStatus
	lastRun func() time.Time
	close   func() // destroys those that nobody has taken
}

// lender is a source whose pool is lent.
func (s *Source) lender(about Shape) lender {
	started := time.Now()
	return lender{
		take: func(ctx context.Context, req leaseRequest) (loan, error) {
			m, err := s.takeFor(ctx, req)
			if err != nil {
				return nil, err
			}
			return lent{m}, nil
		},
		status: func() PoolStatus {
			return PoolStatus{Pid: os.Getpid(), Started: started, Min: s.pool.size.Min, Max: s.pool.size.Max, Shape: about, PoolStats: s.pool.figures()}
		},
		lastRun: s.pool.lastRun,
		close:   s.pool.close,
	}
}

// errNoClone says that a run gets none, and does without.
var errNoClone = errors.New("no clone stands ready")

// takeFor returns a running clone of exactly the kind that is asked for.
func (s *Source) takeFor(ctx context.Context, req leaseRequest) (*Machine, error) {
	spec, known := s.pool.known(req.Key)
	if !known {
		im, err := s.opts.Images.Lookup(req.Kernel, req.Arch)
		if err != nil {
			return nil, err
		}
		if spec, err = s.Spec(ctx, im, req.MemoryMB, req.FreshProcess); err != nil {
			return nil, err
		}
		if spec.Key() != req.Key { // another version of us asks
			return nil, errNoClone
		}
	}
	m, ok := s.pool.take(spec)
	if !ok {
		return nil, errNoClone
	}
	if err := m.run(ctx); err != nil { // a spare is restored here, where its state is
		m.Close()
		return nil, err
	}
	return m, nil
}

// lent is a machine as a loan.
type lent struct{ *Machine }

func (l lent) Exited() <-chan struct{} { return l.vm.Exited() }
func (l lent) Exit() (vmm.Exit, error) { return l.vm.Status() }

func (l lent) Lend() (leaseReply, []*os.File, error) {
	ends, err := l.vm.Lend()
	if err != nil {
		return leaseReply{}, nil, err
	}
	// The link is the run's alone from now on: its end is the machine's.
	return leaseReply{OK: true, Jail: l.Jail(), Pid: l.vm.Pid(), Pooled: l.Origin == Pooled}, []*os.File{l.link, ends.Console, ends.Monitor}, nil
}

type leaseServer struct {
	lender
	down    func()
	clients chan struct{}
	group   sync.WaitGroup

	mu      sync.Mutex
	running int
}

func newLeaseServer(from lender, down func()) *leaseServer {
	return &leaseServer{lender: from, down: down, clients: make(chan struct{}, poolClients)}
}

// accept serves connections until the listener is closed. What is beyond the bound is
// turned away.
func (s *leaseServer) accept(l *net.UnixListener) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return
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
		left := idle - time.Since(s.lastRun())
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
	switch req.Op {
	case "clone":
		ctx, cancel := context.WithTimeout(context.Background(), poolPatience)
		defer cancel()
		m, err := s.take(ctx, req)
		if err != nil {
			_ = writeLine(conn, leaseReply{}, nil)
			return
		}
		defer m.Close()
		s.hand(conn, m)
	case "status":
		st := s.status()
		st.Running = s.runs(0)
		_ = writeLine(conn, leaseReply{OK: true, Status: &st}, nil)
	case "down":
		_ = writeLine(conn, leaseReply{OK: true}, nil)
		s.down()
		s.close()
		_ = conn.SetDeadline(time.Time{}) // it is told by the connection's end that we are gone
	}
}

// hand gives a machine out, and holds its process until it or its run has ended.
func (s *leaseServer) hand(conn *net.UnixConn, m loan) {
	reply, files, err := m.Lend()
	if err != nil {
		_ = writeLine(conn, leaseReply{}, nil)
		return
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	err = writeLine(conn, reply, unix.UnixRights(fds...))
	for _, f := range files {
		f.Close()
	}
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
	case <-m.Exited():
	}
	if exit, err := m.Exit(); err == nil {
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
