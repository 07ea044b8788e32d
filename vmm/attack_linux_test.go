package vmm

import (
	"context"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// What a QEMU whose monitor obeys somebody else may do: its own functions for files,
// sockets and programs end it, and the machine's end names the system call.
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
		"write a file":               {"pmemsave", map[string]any{"val": 0, "size": 4096, "filename": "/tmp/attack"}, "ended for openat"},
		"connect to a Unix socket":   {"chardev-add", socket("unix", map[string]any{"data": map[string]any{"path": "/run/attack"}}), "ended for socket"},
		"connect by TCP":             {"chardev-add", socket("inet", map[string]any{"data": map[string]any{"host": "127.0.0.1", "port": "22"}}), "ended for socket"},
		"start a program":            {"migrate", map[string]any{"uri": "exec:touch /tmp/attack"}, "ended for clone"},
		"export its disk to others":  {"nbd-server-start", map[string]any{"addr": map[string]any{"type": "unix", "data": map[string]any{"path": "/tmp/attack"}}}, "ended for socket"},
		"open one of its own files":  {"blockdev-add", map[string]any{"driver": "file", "node-name": "attack", "filename": "/proc/self/exe", "read-only": true}, "refused"},
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
				if want := "its jail ended it for the system call " + exit.Denied; exit.Err().Error() == "" || exit.Err().(*ExitError).Status != want {
					t.Errorf("%v", exit.Err())
				}
			}
			attack.Check(t, "a monitor that obeys another: "+name, c.want, seen)
		})
	}
}
