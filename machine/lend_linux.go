package machine

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/accepting"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/localsocket"
	"github.com/unitask/unitask/vmm"
)

// The server's side of lease_linux.go.

// Serve runs the pool daemon of the source's home. The source must have a Pool; the daemon reports the class about.
// Serve returns nil when ctx ends, when it is told to stop, or after idle without a run. It first waits for current
// runs on its clones. The error is ErrPoolRuns if a daemon runs already.
func (s *Source) Serve(ctx context.Context, idle time.Duration, about Class) error {
	if s.pool == nil {
		return errors.New("there is no pool: snapshots need Linux, and the pool a size")
	}
	unlock, err := lockFile(layout.Dir(s.opts.Home).PoolLock())
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
	srv.accept(l.AcceptUnix)
	cancel()
	srv.group.Wait()
	_ = os.Remove(layout.Dir(s.opts.Home).PoolSocket())
	return nil
}

func listenPool(home string) (*net.UnixListener, error) {
	_ = os.Remove(layout.Dir(home).PoolSocket()) // left by a killed daemon: we have the lock
	return localsocket.Listen(home, layout.PoolSocket)
}

// loan is a running machine that the server lends.
type loan interface {
	// Lend gives away the machine's network, console and monitor, with the facts that the run needs.
	Lend() (leaseReply, []*os.File, error)
	// Exited is closed when the machine has ended; Exit then returns its status.
	Exited() <-chan struct{}
	Exit() (vmm.Exit, error)
	// Close kills the machine.
	Close() error
}

// lender provides the machines to lend.
type lender struct {
	// take returns a machine of exactly the requested kind, or an error.
	take    func(context.Context, leaseRequest) (loan, error)
	status  func() PoolStatus
	lastRun func() time.Time
	close   func() // destroys the machines that nobody has taken
}

// lender returns a lender of this source's pool.
func (s *Source) lender(about Class) lender {
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
			return PoolStatus{Pid: os.Getpid(), Started: started, Min: s.pool.size.Min, Max: s.pool.size.Max, Class: about,
				PoolStats: s.pool.figures()}
		},
		lastRun: s.pool.lastRun,
		close:   s.pool.close,
	}
}

// errNoClone means that the run gets no clone and continues without.
var errNoClone = errors.New("no clone is ready")

// takeFor returns a running clone of exactly the requested kind.
func (s *Source) takeFor(ctx context.Context, req leaseRequest) (*Machine, error) {
	spec, known := s.pool.known(req.Key)
	if !known {
		images, err := s.opts.Images.Named(req.Arch, req.Image)
		if err != nil {
			return nil, errNoClone // another version of unitask asks
		}
		im, err := images.Lookup(req.Kernel, req.Arch)
		if err != nil {
			return nil, err
		}
		if spec, err = s.Spec(ctx, im, req.Class); err != nil {
			return nil, err
		}
		if spec.Key() != req.Key { // another version of unitask asks
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

// lent lends a Machine.
type lent struct{ *Machine }

func (l lent) Exited() <-chan struct{} { return l.vm.Exited() }
func (l lent) Exit() (vmm.Exit, error) { return l.vm.Status() }

func (l lent) Lend() (leaseReply, []*os.File, error) {
	ends, err := l.vm.Lend()
	if err != nil {
		return leaseReply{}, nil, err
	}
	// From now on only the run uses the link: the machine has the other end.
	return leaseReply{OK: true, Jail: l.Jail(), Pid: l.vm.Pid(), Pooled: l.Origin == Pooled},
		[]*os.File{l.link, ends.Console, ends.Monitor}, nil
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

// accept serves the connections from next, a listener's method, until the listener is closed. Connections beyond
// the limit are refused.
func (s *leaseServer) accept(next func() (*net.UnixConn, error)) {
	for {
		conn, err := accepting.Next(next)
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

// runs adds to the number of current runs on the pool's machines, and returns it.
func (s *leaseServer) runs(add int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running += add
	return s.running
}

// sleep stops the daemon after idle without a run.
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
	if localsocket.SameUser(conn) != nil {
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
		_ = conn.SetDeadline(time.Time{}) // the client notices our exit when the connection closes
	}
}

// hand lends a machine, and keeps its process until the machine or its run has ended.
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
	s.runs(1) // count the run before the client has the reply
	defer s.runs(-1)
	err = writeLine(conn, reply, unix.UnixRights(fds...))
	for _, f := range files {
		f.Close()
	}
	if err != nil {
		return
	}
	_ = conn.SetDeadline(time.Time{})
	gone := make(chan struct{})
	go func() { // until conn is closed, below
		_, _ = conn.Read(make([]byte, 1)) // the client sends nothing: only the connection matters
		close(gone)
	}()
	select {
	case <-gone:
		m.Close()
	case <-m.Exited():
	}
	if exit, err := m.Exit(); err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(poolPatience))
		_ = writeLine(conn, fitting(exit), nil)
	}
	conn.Close()
	<-gone
}

// known returns the spec of a key that the pool has seen.
func (p *pool[M]) known(key string) (Spec, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.groups[key]
	if s == nil {
		return Spec{}, false
	}
	return s.spec, true
}
