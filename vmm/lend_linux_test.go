package vmm

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

type qMPDetachRow struct {
	before, after string // QEMU's output before and while the monitor detaches
	ok            bool
}

// qMPDetachRows are the cases of TestQMPDetach.
func qMPDetachRows(event string) map[string]qMPDetachRow {
	return map[string]qMPDetachRow{
		"silence":         {"", "", true},
		"an event before": {event, "", true},
		"half an event":   {event + event[:20], event[20:], true},
		"half for ever":   {event[:20], "", false},
		"a hostile one":   {"hello\n", "", false},
	}
}

// A connection changes from one monitor to the next between two messages, even if QEMU has sent half of one.
func TestQMPDetach(t *testing.T) {
	const event = `{"event": "RESUME", "timestamp": {"seconds": 1, "microseconds": 2}}` + "\n"
	for name, c := range qMPDetachRows(event) {
		t.Run(name, func(t *testing.T) {
			ours, file, err := socketPair()
			if err != nil {
				t.Fatal(err)
			}
			theirs, err := net.FileConn(file)
			if err != nil {
				t.Fatal(err)
			}
			file.Close()
			defer theirs.Close()
			lines := bufio.NewReader(theirs)
			answer := func(m *Monitor) error {
				done := make(chan error, 1)
				go func() { done <- m.ConnectContext(t.Context()); done <- m.Do(t.Context(), "cont", nil, nil) }()
				err := <-done
				if err == nil {
					var cmd struct{ Execute, ID string }
					line, _ := lines.ReadBytes('\n')
					_ = json.Unmarshal(line, &cmd)
					fmt.Fprintf(theirs, `{"return": {}, "id": %q}`+"\n", cmd.ID)
					err = <-done
				}
				return err
			}
			m := NewMonitor(ours)
			_, _ = io.WriteString(theirs, greeting)
			go func() {
				_, _ = lines.ReadBytes('\n')
				_, _ = io.WriteString(theirs, `{"return": {}, "id": "1"}`+"\n")
			}()
			if err := m.Connect(); err != nil {
				t.Fatal(err)
			}
			if err := answer(m); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(theirs, c.before)
			own, err := ours.(*net.UnixConn).SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			for waiting := 1; waiting > 0; runtime.Gosched() { // until it has been read
				_ = own.Control(func(fd uintptr) { waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
			}
			if c.after != "" {
				go func() { // after half of it was read
					for !m.isLeaving() {
						runtime.Gosched()
					}
					_, _ = io.WriteString(theirs, c.after)
				}()
			}
			if !c.ok && c.before == "hello\n" {
				<-m.Done()
			}
			f, err := m.Detach()
			if (err == nil) != c.ok {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			defer f.Close()
			adoptDetached(t, m, f, theirs, answer)
		})
	}
}

// adoptDetached continues with a detached monitor.
func adoptDetached(t *testing.T, m *Monitor, f *os.File, theirs net.Conn, answer func(m *Monitor) error) {
	t.Helper()
	if err := m.Do(t.Context(), "cont", nil, nil); err == nil {
		t.Error("the old monitor still speaks")
	}
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	next := AdoptMonitor(conn)
	t.Cleanup(func() { next.Disconnect() })
	// A late answer to the last monitor's command belongs to nobody.
	_, _ = io.WriteString(theirs, `{"return": {}, "id": "1"}`+"\n")
	if err := answer(next); err != nil {
		t.Error(err)
	}
}
