package unitask_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/policy"
)

// dialed records the addresses that the host dials for a guest.
type dialed struct {
	mu   sync.Mutex
	list []string
}

func (d *dialed) note(dial func(context.Context, netip.AddrPort) (net.Conn, error),
) func(context.Context, netip.AddrPort) (net.Conn, error) {
	return func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		d.mu.Lock()
		d.list = append(d.list, to.String())
		d.mu.Unlock()
		return dial(ctx, to)
	}
}

func (d *dialed) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.list, " ")
}

// Root in a session's machine reaches nothing of the host, and gets no more than the session was granted.
func TestAttackSessionRoot(t *testing.T) {
	needVM(t)
	web, hosts := newSite(t), &dialed{}
	web.upstream.Dial = hosts.note(web.upstream.Dial)
	rt := openRuntime(t, unitask.Options{Home: newHome(t), Upstream: web.upstream})
	const granted, beside = 256, 512 // MiB
	s := openSession(t, rt, unitask.SessionRequest{Root: true, Request: unitask.Request{Language: "python",
		MemoryMB: granted, AllowNet: []string{"good.example"}}})
	programs := testarchive.Open(t, "testdata/attackroot.txtar")
	for _, row := range []struct{ does, want string }{
		{"kills pid 1", "alive"},
		{"mounts", "inside only"},
		{"writes the machine's disk", "refused"},
		{"loads a module", "refused"},
		{"sends raw packets", "sent\nHTTP/1.1 GET good.example"},
		{"hides files in out", "done undelivered"},
		{"takes all memory", "refused"},
	} {
		res, err := s.Exec(t.Context(), unitask.Command{User: "root", Timeout: time.Minute,
			Args: []string{"python3", "-c", programs.Text(row.does + ".py")}})
		got := fmt.Sprint(err)
		if err == nil {
			if got = strings.TrimSpace(string(res.Stdout)); res.ExitCode != 0 {
				got = strings.TrimSpace(fmt.Sprintf("%s %s %s", got, res.Outcome, res.Stderr))
			}
		}
		attack.Check(t, "root in a session's machine "+row.does, row.want, got)
	}
	attack.Check(t, "hosts that root's raw packets reach", publicAddr+":80", hosts.String())
	peak := 0
	for _, pid := range qemuChildren(t, os.Getpid()) {
		peak = max(peak, peakOf(pid)>>10)
	}
	attack.Check(t, "root takes more of the host's memory than granted", "no",
		map[bool]string{false: "no", true: fmt.Sprint(peak, " MiB")}[peak > granted+beside])
	plain := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python"}})
	_, err := plain.Exec(t.Context(), unitask.Command{User: "root", Args: []string{"id"}})
	attack.Check(t, "root where the session has none", "user", fieldOf(err))
}

func fieldOf(err error) string {
	if wrong := new(policy.FieldError); errors.As(err, &wrong) {
		return wrong.Field
	}
	return fmt.Sprint(err)
}

// Root may end its machine, and nothing else: the session ends or is ended at once, and the next one works.
func TestAttackSessionRootEnds(t *testing.T) {
	needVM(t)
	rt := sessionRuntime(t)
	before := len(qemuChildren(t, os.Getpid()))
	for name, line := range map[string]string{
		"restarts the machine by sysrq":         "echo b > /proc/sysrq-trigger",
		"crashes the kernel by sysrq":           "echo c > /proc/sysrq-trigger",
		"overwrites the machine's memory":       "dd if=/dev/urandom of=/dev/mem bs=1M",
		"kills everything":                      "kill -9 -1",
		"stops the session's program":           "kill -STOP $PPID",
		"forges a frame of the session":         `printf '\377\377\377\377oXXXX' > /proc/$PPID/fd/1`,
		"forges the process number of commands": `printf '\0\0\0\4p\0\0\0\1\377\377\377\377' > /proc/$PPID/fd/1`,
	} {
		s, err := rt.NewSession(t.Context(), unitask.SessionRequest{Root: true, Request: unitask.Request{Image: "shell"}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, _ = s.Exec(ctx, unitask.Command{User: "root", Args: []string{"sh", "-c", line}})
		cancel()
		begin, got := time.Now(), "ended"
		_ = s.Close() // it may have ended before, with an error
		if took := time.Since(begin); took > 30*time.Second {
			got += fmt.Sprint(" after ", took)
		}
		attack.Check(t, "a session whose root "+name, "ended", got)
	}
	testwait.Within(t, time.Minute, "QEMU ends", func() bool { return len(qemuChildren(t, os.Getpid())) <= before })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", "id -u; command -v sudo || echo none"}})
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a session after those", "1000\nnone\n", string(res.Stdout))
}
