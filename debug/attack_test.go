package debug

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/socketpair"
	"github.com/unitask/unitask/vmm"
)

// hostile is a QEMU that speaks QMP until answer says that it must end. answer is called for each command except those
// that open a console. hostile returns a console on it.
func hostile(t *testing.T, answer func(w io.Writer, command, id string) bool) (*Console, func() []string) {
	ours, theirs := net.Pipe()
	done := make(chan struct{})
	go func() { // until the console's end is closed
		defer close(done)
		defer theirs.Close()
		_, _ = io.WriteString(theirs, `{"QMP": {"version": {}, "capabilities": []}}`+"\n")
		for lines := bufio.NewScanner(theirs); lines.Scan(); {
			var cmd struct{ Execute, ID string }
			if json.Unmarshal(lines.Bytes(), &cmd) != nil {
				return
			}
			result := ""
			switch cmd.Execute {
			case "qmp_capabilities":
				result = "{}"
			case "query-qmp-schema":
				result = strings.ReplaceAll(schemaText, "\n", " ")
			default:
				if !answer(theirs, cmd.Execute, cmd.ID) {
					return
				}
				continue
			}
			fmt.Fprintf(theirs, `{"return": %s, "id": %q}`+"\n", result, cmd.ID)
		}
	}()
	m := vmm.NewMonitor(ours)
	var shown []string
	c := New(Config{Monitor: func() *vmm.Monitor { return m },
		Show: func(source, text string) { shown = append(shown, source+"| "+text) }})
	if err := c.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c, func() []string {
		_ = m.Disconnect()
		<-done
		c.Wait()
		return shown
	}
}

type attackConsoleRow struct {
	name   string
	answer func(w io.Writer, command, id string) bool
	lines  []string
	want   string // the result of the last line
	within time.Duration
}

// attackConsoleRows are the cases of TestAttackConsole.
func attackConsoleRows(big []byte, fine func(w io.Writer, id string)) []attackConsoleRow {
	return []attackConsoleRow{
		{"a reply of 100 MB", func(w io.Writer, _, _ string) bool {
			_, err := io.WriteString(w, `{"return": "`)
			for i := 0; i < 100 && err == nil; i++ {
				_, err = w.Write(big)
			}
			return err == nil
		}, []string{"query-status", "help", "query-status"}, "more than", 0},
		{"no answer", func(io.Writer, string, string) bool { return true }, []string{"query-status"}, "deadline", patience},
		{"no answer, to each of a backtrace's questions", func(io.Writer, string, string) bool { return true },
			[]string{"bt"}, "deadline", patience},
		{"no answer, and then one", func(w io.Writer, command, id string) bool {
			if command != "stop" {
				fine(w, id)
			}
			return true
		}, []string{"stop", "query-status"}, "fine", patience},
		{"gone", func(io.Writer, string, string) bool { return false }, []string{"query-status", "query-status"}, "ended", 0},
		{"gone while its event is awaited", func(w io.Writer, command, id string) bool {
			fine(w, id)
			return command != "stop"
		}, []string{"stop", "wait event STOP 1h"}, "QEMU is gone", 0},
		{"gone while its stop is awaited", func(w io.Writer, command, id string) bool {
			fine(w, id)
			return command != "stop"
		}, []string{"stop", "wait stopped 1h"}, "ended", 0},
		{"a reply that is no JSON", func(w io.Writer, _, _ string) bool {
			_,
				_ = io.WriteString(w, "\x00\xff{\n")
			return true
		}, []string{"query-status"}, "not QMP", 0},
		{"a reply of another type", func(w io.Writer, _, id string) bool {
			fmt.Fprintf(w, `{"return": [[]], "id": %q}`+"\n", id)
			return true
		}, []string{"wait stopped 1h"}, "cannot unmarshal", 0},
		{"a reply to nobody", func(w io.Writer, _, id string) bool {
			fmt.Fprint(w, `{"return": {}, "id": "other"}`+"\n")
			fine(w, id)
			return true
		}, []string{"query-status"}, "fine", 0},
		{"50 000 events, then a reply", func(w io.Writer, _, id string) bool {
			for range 50_000 {
				if _, err := io.WriteString(w, `{"event": "FLOOD", "data": {}, "timestamp": {}}`+"\n"); err != nil {
					return false
				}
			}
			fine(w, id)
			return true
		}, []string{"query-status"}, "fine", 0},
		{"events of a megabyte", func(w io.Writer, _, id string) bool {
			for range 64 {
				fmt.Fprintf(w, `{"event": "%s", "data": {}, "timestamp": {}}`+"\n", big)
			}
			fine(w, id)
			return true
		}, []string{"query-status"}, "fine", 0},
		{"memory that is none", func(w io.Writer, _, id string) bool {
			fmt.Fprintf(w, `{"return": "%s", "id": %q}`+"\n", strings.Repeat(`0: 0x00 0x00\n`, 100_000), id)
			return true
		}, []string{"mem 0 16"}, "bytes of 16", 0},
		{"a backtrace in a circle", func(w io.Writer, _, id string) bool {
			fmt.Fprintf(w, `{"return": "RIP=0000000000001000 RBP=0000000000001000", "id": %q}`+"\n", id)
			return true
		}, []string{"bt"}, "fine", 0},
	}
}

// Data of a hostile QEMU to a console, and the results. Time is the bubble's, so an endless wait fails at once.
func TestAttackConsole(t *testing.T) {
	fine := func(w io.Writer, id string) { fmt.Fprintf(w, `{"return": {"running": true}, "id": %q}`+"\n", id) }
	big := bytes.Repeat([]byte("x"), 1<<20)
	for _, c := range attackConsoleRows(big, fine) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		synctest.Test(t, func(t *testing.T) {
			console, leave := hostile(t, c.answer)
			began := time.Now()
			var err error
			for _, line := range c.lines {
				_, err = console.Do(t.Context(), line)
			}
			took := time.Since(began)
			_, still := console.Do(t.Context(), "help")
			shown := leave()
			got := c.want
			switch {
			case took > c.within:
				got = "after " + took.String()
			case c.want == "fine" && err != nil:
				got = err.Error()
			case c.want != "fine" && (err == nil || !strings.Contains(err.Error(), c.want)):
				got = fmt.Sprint(err)
			case still != nil:
				got = "the console is of no use: " + still.Error()
			case len(shown) > 3*shownEvents:
				got = fmt.Sprintf("%d lines are shown", len(shown))
			}
			attack.Check(t, "a hostile QEMU and a console: "+c.name, c.want, got)
		})
		runtime.GC()
		runtime.ReadMemStats(&after)
		if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
			t.Errorf("%s: %d bytes of memory are left", c.name, grown)
		}
	}
}

// A QEMU that does not greet, and one that greets and is then silent.
func TestAttackConsoleOpen(t *testing.T) {
	for name, greeting := range map[string]string{
		"says nothing":        "",
		"greets, and no more": `{"QMP": {"version": {}, "capabilities": []}}` + "\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			done := make(chan struct{})
			go func() { // until the console's end is closed
				defer close(done)
				_, _ = io.WriteString(theirs, greeting)
				_, _ = io.Copy(io.Discard, theirs)
			}()
			m := vmm.NewMonitor(ours)
			began, got := time.Now(), "given up"
			if err := New(Config{Monitor: func() *vmm.Monitor { return m }}).Open(t.Context()); !errors.Is(err,
				context.DeadlineExceeded) {
				got = fmt.Sprint(err)
			} else if took := time.Since(began); took > patience {
				got = "after " + took.String()
			}
			_ = m.Disconnect()
			<-done
			attack.Check(t, "a console on a QEMU that "+name, "given up", got)
		})
	}
}

// Two consoles on one machine see the same events, and the end of one does not end the other.
func TestTwoConsoles(t *testing.T) {
	ours, theirs := net.Pipe()
	m := vmm.NewMonitor(ours)
	done := make(chan struct{})
	go func() { // until the monitor is disconnected
		defer close(done)
		_, _ = io.WriteString(theirs, `{"QMP": {"version": {}, "capabilities": []}}`+"\n")
		for lines := bufio.NewScanner(theirs); lines.Scan(); {
			var cmd struct{ Execute, ID string }
			_ = json.Unmarshal(lines.Bytes(), &cmd)
			result := `{"running": false}`
			switch cmd.Execute {
			case "query-qmp-schema":
				result = strings.ReplaceAll(schemaText, "\n", " ")
			case "stop":
				_, _ = io.WriteString(theirs, `{"event": "STOP", "data": {}, "timestamp": {}}`+"\n")
			}
			fmt.Fprintf(theirs, `{"return": %s, "id": %q}`+"\n", result, cmd.ID)
		}
	}()
	relay := vmm.Relay{Monitor: func() *vmm.Monitor { return m },
		Grant: func(vmm.Access, json.RawMessage) error { return nil }}
	ctx, cancel := context.WithCancel(t.Context())
	join := func() (*Console, *vmm.Monitor) {
		a, b, err := socketpair.New("console")
		if err != nil {
			t.Fatal(err)
		}
		conns := make([]net.Conn, 2)
		for i, f := range []*os.File{a, b} {
			if conns[i], err = net.FileConn(f); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		go func() { _ = relay.Serve(ctx, conns[1].(*net.UnixConn)) }() // until cancel
		monitor := vmm.NewMonitor(conns[0])
		c := New(Config{Monitor: func() *vmm.Monitor { return monitor }})
		if err := c.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c, monitor
	}
	one, first := join()
	two, second := join()
	if err := first.Do(t.Context(), "unitask-access", map[string]string{"access": "write"}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Do(t.Context(), "stop"); err == nil || !strings.Contains(err.Error(), "--write") {
		t.Error(err)
	}
	for _, c := range []*Console{one, two} {
		if c == one {
			if _, err := c.Do(t.Context(), "stop"); err != nil {
				t.Error(err)
			}
		}
		if _, err := c.Do(t.Context(), "wait event STOP"); err != nil {
			t.Error(err)
		}
	}
	_ = first.Disconnect()
	one.Wait()
	if _, err := two.Do(t.Context(), "query-status"); err != nil {
		t.Errorf("the other console's end: %v", err)
	}
	_ = m.Disconnect() // QEMU is gone
	<-done
	if _, err := two.Do(t.Context(), "wait event RESUME 1h"); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Error(err)
	}
	cancel()
	_ = second.Disconnect()
	two.Wait()
}
