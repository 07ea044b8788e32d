package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/testlack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/vmm"
)

// aJail is a jail whose report crosses the lease.
var aJail = []vmm.Layer{{Name: "network", Holds: true}, {Name: "landlock", Why: "this kernel has none"}}

// The protocol of the pool daemon, over its real socket, with machines that are three pipes.

// thing is a loan without a machine.
type thing struct {
	files  []*os.File
	lend   error
	exited chan struct{}
	once   sync.Once
	exit   vmm.Exit
}

func newThing(t *testing.T) *thing {
	t.Helper()
	th := &thing{exited: make(chan struct{})}
	for range 3 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		theirs := os.NewFile(uintptr(fds[1]), "theirs")
		t.Cleanup(func() { theirs.Close() })
		th.files = append(th.files, os.NewFile(uintptr(fds[0]), "ours"))
	}
	return th
}

func (th *thing) Lend() (leaseReply, []*os.File, error) {
	return leaseReply{OK: true, Jail: vmm.Jail{Layers: aJail}, Pid: 7, Pooled: true}, th.files, th.lend
}
func (th *thing) Exited() <-chan struct{} { return th.exited }
func (th *thing) Exit() (vmm.Exit, error) { return th.exit, nil }
func (th *thing) end(exit vmm.Exit) {
	th.once.Do(func() {
		th.exit = exit
		close(th.exited)
	})
}
func (th *thing) Close() error {
	th.end(vmm.Exit{Code: -1, Signal: "killed"})
	return nil
}

// serveThings starts a daemon in its own home that lends what take returns.
func serveThings(t *testing.T, bound int, take func(leaseRequest) (loan, error)) (home string, s *leaseServer) {
	t.Helper()
	home = t.TempDir()
	unlock, err := lockFile(layout.Dir(home).PoolLock())
	if err != nil {
		t.Fatal(err)
	}
	l, err := listenPool(home)
	if err != nil {
		t.Fatal(err)
	}
	s = newLeaseServer(lender{
		take:   func(_ context.Context, req leaseRequest) (loan, error) { return take(req) },
		status: func() PoolStatus { return PoolStatus{Pid: 7, Max: 4} },
		close:  func() {},
	}, func() { l.Close() })
	s.clients = make(chan struct{}, bound)
	done := make(chan struct{})
	go func() {
		s.accept(testlack.Descriptors(2, l.AcceptUnix))
		s.group.Wait()
		unlock()
		close(done)
	}()
	t.Cleanup(func() {
		l.Close()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Error("the daemon does not end")
		}
		if n := s.runs(0); n != 0 {
			t.Errorf("%d runs are under way", n)
		}
	})
	return home, s
}

func TestLease(t *testing.T) {
	ctx := t.Context()
	var mu sync.Mutex // the daemon's goroutines and the test's share only sockets
	var given *thing
	var asked leaseRequest
	home, s := serveThings(t, poolClients, func(req leaseRequest) (loan, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked = req; given == nil {
			return nil, errNoClone
		}
		return given, nil
	})
	lent := func() *thing {
		mu.Lock()
		defer mu.Unlock()
		return given
	}
	give := func(lend error) {
		th := newThing(t)
		th.lend = lend
		mu.Lock()
		defer mu.Unlock()
		given = th
	}
	spec := testSpec(256)
	if _, err := lease(ctx, home, spec); !errors.Is(err, ErrNoPool) {
		t.Errorf("none stands ready: %v", err)
	}

	// The machine ends: the run learns how.
	give(nil)
	m, err := lease(ctx, home, spec)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	got := asked
	mu.Unlock()
	if got.Key != spec.Key() || got.Class != spec.Class() || m.Origin != Pooled || m.State() != Running ||
		!slices.Equal(m.Jail().Layers, aJail) || m.Monitor() == nil {
		t.Errorf("%+v %+v", got, m)
	}
	if st, err := AskPool(home); err != nil || st.Pid != 7 || st.Running != 1 {
		t.Errorf("%+v %v", st, err)
	}
	lent().end(vmm.Exit{Code: 3, Guest: 1})
	exit, err := m.vm.Wait(ctx)
	if err != nil || exit.Code != 3 || exit.Guest != 1 {
		t.Errorf("%+v %v", exit, err)
	}
	m.Close()

	// QEMU has printed more than fits into a line: the end of its output is reported, and everything else.
	readLastWords(t, ctx, home, spec, give, lent)

	// The run ends: the machine is killed.
	give(nil)
	if m, err = lease(ctx, home, spec); err != nil {
		t.Fatal(err)
	}
	m.Close()
	<-lent().exited
	if lent().exit.Signal != "killed" {
		t.Errorf("%+v", lent().exit)
	}

	// The machine can't be lent: it is killed, and the run does without it.
	breakLoan(t, give, ctx, home, spec, lent, s)
}

// readLastWords checks the kept end of QEMU's output.
func readLastWords(
	t *testing.T, ctx context.Context, home string, spec Spec, give func(lend error), lent func() *thing,
) {
	t.Helper()
	for _, said := range []string{strings.Repeat("\x00", 16<<10-4) + "last", strings.Repeat("x", 16<<10-4) + "last",
		strings.Repeat("\xff", 16<<10-4) + "last"} {
		give(nil)
		m, err := lease(ctx, home, spec)
		if err != nil {
			t.Fatal(err)
		}
		lent().end(vmm.Exit{Code: -1, Guest: -1, Signal: "killed", Denied: "connect", Stderr: said})
		exit, err := m.vm.Wait(ctx)
		if text, _ := json.Marshal(exit); err != nil || exit.Denied != "connect" || !strings.HasSuffix(exit.Stderr, "last") ||
			len(text) < poolMessage/3 {
			t.Errorf("%.40q is told as %.200s %v", said, text, err)
		}
		m.Close()
	}
}

// breakLoan checks a loan that is cut, and the end of a pool.
func breakLoan(
	t *testing.T, give func(lend error), ctx context.Context, home string, spec Spec, lent func() *thing,
	s *leaseServer,
) {
	t.Helper()
	give(errors.New("in the middle of a reply"))
	if _, err := lease(ctx, home, spec); !errors.Is(err, ErrNoPool) {
		t.Errorf("%v", err)
	}
	<-lent().exited
	for _, f := range lent().files {
		f.Close()
	}

	if err := StopPool(ctx, home); err != nil {
		t.Errorf("%v", err)
	}
	if _, err := AskPool(home); !errors.Is(err, ErrNoPool) {
		t.Errorf("after its end: %v", err)
	}
	if n := s.runs(0); n != 0 {
		t.Errorf("%d runs", n)
	}
}

// The daemon is killed while a run has its machine, or does not report the machine's end.
func TestLeaseOfTheDead(t *testing.T) {
	for name, c := range map[string]struct{ says, stderr string }{
		"it is gone":           {"", "the pool daemon has ended"},
		"it is gone in a line": {`{"code":7,`, "the pool daemon has ended"},
		"a malformed line":     {`{"code":7,"signal":5}` + "\n", "its end can't be read from the pool daemon: json: "},
		"an endless line": {strings.Repeat("x", poolMessage),
			"its end can't be read from the pool daemon: a line is longer than 16384 bytes"},
	} {
		home := t.TempDir()
		l, err := listenPool(home)
		if err != nil {
			t.Fatal(err)
		}
		th := newThing(t)
		go func() {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			var req leaseRequest
			_ = readLine(conn, &req)
			reply, files, _ := th.Lend()
			_ = writeLine(conn, reply, unix.UnixRights(int(files[0].Fd()), int(files[1].Fd()), int(files[2].Fd())))
			for _, f := range files {
				f.Close()
			}
			_, _ = conn.Read(make([]byte, 1)) // the answer is read alone: the rest comes when the run has it
			_, _ = conn.Write([]byte(c.says))
			conn.Close()
		}()
		m, err := lease(t.Context(), home, testSpec(1))
		l.Close()
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
		exit, err := m.vm.Wait(t.Context())
		if err != nil || exit.Code != -1 || exit.Signal != "killed" || !strings.HasPrefix(exit.Stderr, c.stderr) {
			t.Errorf("%s: %+v %v", name, exit, err)
		}
	}
}

// Messages of others to the daemon's socket. It answers with nothing, or with a refusal, and continues.
func TestAttackLeaseRequests(t *testing.T) {
	th := newThing(t)
	home, _ := serveThings(t, poolClients, func(req leaseRequest) (loan, error) {
		if req.Key != testSpec(1).Key() {
			return nil, errNoClone
		}
		return th, nil
	})
	for name, c := range map[string]struct{ send, want string }{
		"nothing":             {"", ""},
		"no newline":          {`{"op":"clone"`, ""},
		"not JSON":            {"hello\n", ""},
		"an endless line":     {strings.Repeat("x", poolMessage+100), ""},
		"no operation":        {"{}\n", ""},
		"an unknown one":      {`{"op":"exec","key":"x"}` + "\n", ""},
		"another's key":       {`{"op":"clone","key":"7 x"}` + "\n", `{"ok":false}`},
		"no key":              {`{"op":"clone"}` + "\n", `{"ok":false}`},
		"a key of a megabyte": {`{"op":"clone","key":"` + strings.Repeat("k", 1<<20) + `"}` + "\n", ""},
		"two requests":        {`{"op":"clone"}` + "\n" + `{"op":"status"}` + "\n", `{"ok":false}`},
	} {
		conn, err := dialPool(home)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = conn.Write([]byte(c.send))
		_ = conn.CloseWrite()
		text, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
		attack.Check(t, name, c.want, strings.TrimSpace(string(text)))
	}
	if st, err := AskPool(home); err != nil || st.Running != 0 {
		t.Errorf("afterwards: %+v %v", st, err)
	}
	for _, f := range th.files {
		f.Close()
	}
}

// Answers of a foreign or faulty daemon: the run does without it, and keeps no descriptor.
func TestAttackLeaseReplies(t *testing.T) {
	before := descriptors(t)
	for name, c := range map[string]struct {
		line  string
		files int
	}{
		"nothing":               {"", 0},
		"not JSON":              {"hello\n", 3},
		"a no with descriptors": {`{"ok":false}` + "\n", 3},
		"too few":               {`{"ok":true}` + "\n", 2},
		"too many":              {`{"ok":true}` + "\n", 4},
		"far too many":          {`{"ok":true}` + "\n", 60},
		"none":                  {`{"ok":true}` + "\n", 0},
	} {
		home := t.TempDir()
		l, err := listenPool(home)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			defer conn.Close()
			var req leaseRequest
			_ = readLine(conn, &req)
			var rights []byte
			if c.files > 0 {
				fds := make([]int, c.files)
				for i := range fds {
					fds[i] = 0
				}
				rights = unix.UnixRights(fds...)
			}
			if c.line != "" {
				_, _, _ = conn.WriteMsgUnix([]byte(c.line), rights, nil)
			}
		}()
		_, err = lease(t.Context(), home, testSpec(1))
		got := "a machine"
		if err != nil {
			got = "none"
		}
		<-served
		l.Close()
		attack.Check(t, name, "none", got)
	}
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Connections beyond the limit are refused, and accepted when others have ended.
func TestLeaseBound(t *testing.T) {
	home, s := serveThings(t, 2, func(leaseRequest) (loan, error) { return nil, errNoClone })
	var held []*net.UnixConn
	for range 2 {
		conn, err := dialPool(home)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
	}
	for len(s.clients) < 2 { // until both are served
		if _, err := AskPool(home); err == nil && len(s.clients) == 2 {
			t.Error("a third was served")
		}
	}
	if _, err := AskPool(home); err == nil {
		t.Error("a third was served")
	}
	for _, conn := range held {
		conn.Close()
	}
	for {
		if _, err := AskPool(home); err == nil {
			break
		}
	}
}

// A socket in a daemon's place without a listener.
func TestLeaseStaleSocket(t *testing.T) {
	home := t.TempDir()
	l, err := listenPool(home)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := os.Stat(layout.Dir(home).PoolSocket()); err != nil {
		t.Fatal("the socket is gone: ", err)
	}
	if _, err := AskPool(home); !errors.Is(err, ErrNoPool) {
		t.Errorf("%v", err)
	}
	if l, err = listenPool(home); err != nil {
		t.Fatalf("the next daemon: %v", err)
	}
	st, err := os.Stat(layout.Dir(home).PoolSocket())
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	l.Close()
}

// The daemon ends when no run has come for a while, and none is in progress.
func TestLeaseSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, last := time.Now(), time.Now()
		var mu sync.Mutex
		down := make(chan time.Duration, 1)
		s := newLeaseServer(lender{lastRun: func() time.Time {
			mu.Lock()
			defer mu.Unlock()
			return last
		}}, func() { down <- time.Since(begin) })
		s.runs(1)
		s.group.Go(func() { s.sleep(t.Context(), time.Minute) })
		testwait.Pass(40 * time.Second)
		mu.Lock()
		last = time.Now()
		mu.Unlock()
		testwait.Pass(100 * time.Second) // the run is in progress all the time
		s.runs(-1)
		if at := <-down; at < 140*time.Second || at > 142*time.Second {
			t.Errorf("it went down after %s", at)
		}
		s.group.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		s.group.Go(func() { s.sleep(ctx, time.Hour) })
		cancel()
		s.group.Wait()
		if len(down) != 0 {
			t.Error("it went down twice")
		}
	})
}

// The protocol's lines are unchanged: another version of the program uses them, too.
func TestLeaseWire(t *testing.T) {
	request, _ := json.Marshal(leaseRequest{Op: "clone", Key: "k",
		Class: Class{Image: "node", Kernel: "linux", Arch: "amd64", MemoryMB: 512}})
	reply, _ := json.Marshal(leaseReply{OK: true, Jail: vmm.Jail{Layers: aJail}, Pid: 1, Pooled: true})
	got := fmt.Sprintf("%s %s", request, reply)
	if want := `{"op":"clone","key":"k","image":"node","kernel":"linux","arch":"amd64","memoryMb":512} {"ok":true,` +
		`"held":{"layers":[{"name":"network","holds":true},{"name":"landlock","holds":false,` +
		`"why":"this kernel has none"}],"limits":null},"pid":1,"pooled":true}`; got != want {
		t.Errorf("%s", got)
	}
}
