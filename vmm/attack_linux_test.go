package vmm

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/internal/attack"
)

// An attacker controls a QEMU's monitor. QEMU's own functions for files, sockets and programs end QEMU, and the
// machine's end names the system call.
func TestAttackMonitor(t *testing.T) {
	socket := func(kind string, rest map[string]any) map[string]any {
		rest["server"] = false
		rest["addr"] = map[string]any{"type": kind, "data": rest["data"]}
		delete(rest, "data")
		return map[string]any{"id": "attack", "backend": map[string]any{"type": "socket", "data": rest}}
	}
	for name, c := range map[string]struct {
		command string
		args    map[string]any
		want    string
	}{
		"write a file": {"pmemsave", map[string]any{"val": 0, "size": 4096, "filename": "/tmp/attack"},
			"ended for openat"},
		"connect to a Unix socket": {"chardev-add", socket("unix",
			map[string]any{"data": map[string]any{"path": "/run/attack"}}), "ended for socket"},
		"connect by TCP": {"chardev-add", socket("inet",
			map[string]any{"data": map[string]any{"host": "127.0.0.1", "port": "22"}}), "ended for socket"},
		"start a program": {"migrate", map[string]any{"uri": "exec:touch /tmp/attack"}, "ended for clone"},
		"export its disk to others": {"nbd-server-start",
			map[string]any{"addr": map[string]any{"type": "unix", "data": map[string]any{"path": "/tmp/attack"}}},
			"ended for socket"},
		"open one of its own files": {"blockdev-add", map[string]any{"driver": "file", "node-name": "attack",
			"filename": "/proc/self/exe", "read-only": true}, "refused"},
		"take over a network device": {"netdev_add", map[string]any{"type": "tap", "id": "attack"}, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := startQEMU(t, Config{Arch: AMD64, Accel: TCG}, haltKernel())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := m.Monitor.ConnectContext(ctx); err != nil {
				t.Fatal(err)
			}
			seen := "done"
			if err := m.Monitor.Do(ctx, c.command, c.args, nil); err != nil {
				seen = "refused"
				t.Logf("%v", err)
			}
			if c.want != "refused" {
				exit, err := m.Wait(ctx)
				if err != nil {
					t.Fatalf("%s, and QEMU goes on: %v", seen, err)
				}
				seen = "ended for " + exit.Denied
				if want := "its jail ended it for the system call " + exit.Denied; exit.Err().Error() == "" ||
					exit.Err().(*ExitError).Status != want {
					t.Errorf("%v", exit.Err())
				}
			}
			attack.Check(t, "a monitor that obeys another: "+name, c.want, seen)
		})
	}
}

// A QEMU that stops itself and is silent delays the caller no longer than it wants, and has ended after a close.
func TestAttackStopped(t *testing.T) {
	m, err := startQEMU(t, Config{Arch: AMD64, Accel: TCG}, haltKernel())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := m.Monitor.ConnectContext(ctx); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(m.Pid(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	short, done := context.WithTimeout(ctx, 100*time.Millisecond)
	defer done()
	seen := "answered"
	if err := m.Monitor.Do(short, "query-status", nil, nil); err != nil {
		seen = "no answer"
	}
	attack.Check(t, "a QEMU that stops itself: a command", "no answer", seen)
	closed := make(chan struct{})
	go func() {
		m.Close()
		close(closed)
	}()
	select {
	case <-closed:
		seen = "gone"
	case <-ctx.Done():
		seen = "waits"
	}
	attack.Check(t, "a QEMU that stops itself: its end", "gone", seen)
}

// Descriptors that a QEMU sends with its messages are closed.
func TestAttackSentDescriptors(t *testing.T) {
	ours, theirs, err := socketPair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close() // also before that
	m := NewMonitor(ours)
	defer m.Disconnect()
	sent, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer sent.Close()
	before := openFiles(t)
	rights := unix.UnixRights(slices.Repeat([]int{int(sent.Fd())}, 250)...) // SCM_MAX_FD is 253
	for _, line := range []string{`{"QMP": {"version": {}}}`, `{"event": "STOP"}`, `{"event": "STOP"}`,
		`{"return": {}, "id": "1"}`} {
		if err := unix.Sendmsg(int(theirs.Fd()), []byte(line+"\n"), rights, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	theirs.Close()
	<-m.Done() // all of it is read
	seen := "dropped"
	if after := openFiles(t); after > before {
		seen = "kept"
	}
	attack.Check(t, "a thousand descriptors beside QMP", "dropped", seen)
}
