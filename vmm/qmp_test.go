package vmm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/digitalocean/go-qemu/qmp"
	"github.com/digitalocean/go-qemu/qmp/raw"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ` +
	`"Debian"}, "capabilities": ["oob"]}}` + "\n"

// fakeQEMU greets and answers each command with answer, which may write anything.
func fakeQEMU(t *testing.T, answer func(w io.Writer, name, id string)) *Monitor {
	t.Helper()
	ours, theirs := net.Pipe()
	var group sync.WaitGroup
	group.Go(func() {
		defer theirs.Close()
		if _, err := io.WriteString(theirs, greeting); err != nil {
			return
		}
		r := bufio.NewScanner(theirs)
		for r.Scan() {
			var cmd struct{ Execute, ID string }
			if json.Unmarshal(r.Bytes(), &cmd) != nil {
				return
			}
			if cmd.Execute == "qmp_capabilities" {
				fmt.Fprintf(theirs, `{"return": {}, "id": %q}`+"\n", cmd.ID)
				continue
			}
			answer(theirs, cmd.Execute, cmd.ID)
		}
	})
	m := NewMonitor(ours)
	t.Cleanup(func() {
		if err := m.Disconnect(); err != nil {
			t.Error(err)
		}
		group.Wait()
	})
	if err := m.Connect(); err != nil {
		t.Fatal(err)
	}
	return m
}

// The first of the four defects of go-qemu's own monitor: the event that follows a reply at once overwrites it.
func TestQMPReplyBeforeEvent(t *testing.T) {
	m := fakeQEMU(t, func(w io.Writer, name, id string) {
		fmt.Fprintf(w, `{"return": {"said": %q}, "id": %q}`+"\n"+
			`{"event": "STOP", "data": {"x": "%s"}, "timestamp": {"seconds": 1, "microseconds": 2}}`+"\n",
			strings.Repeat(name, 20), id, strings.Repeat("y", 400))
	})
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range 200 {
				name := fmt.Sprintf("cmd-%d-%d", i, j)
				var got struct{ Said string }
				if err := m.Do(t.Context(), name, nil, &got); err != nil || got.Said != strings.Repeat(name, 20) {
					t.Errorf("%v, %q", err, got.Said)
					return
				}
			}
		})
	}
	group.Wait()
}

// The second: events that nobody reads block Run and Disconnect.
func TestQMPUnreadEvents(t *testing.T) {
	m := fakeQEMU(t, func(w io.Writer, _, id string) {
		for i := range 10 * eventBacklog {
			fmt.Fprintf(w, `{"event": "E%d", "timestamp": {"seconds": 1, "microseconds": 2}}`+"\n", i)
		}
		fmt.Fprintf(w, `{"return": {}, "id": %q}`+"\n", id)
	})
	events, err := m.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Run([]byte(`{"execute": "x"}`)); err != nil {
		t.Fatal(err)
	}
	// The newest are kept.
	var last qmp.Event
	for range eventBacklog {
		last = <-events
	}
	if want := fmt.Sprintf("E%d", 10*eventBacklog-1); last.Event != want {
		t.Errorf("last event %q, want %q", last.Event, want)
	}
	if err := m.Disconnect(); err != nil {
		t.Error(err)
	}
	if _, open := <-events; open {
		t.Error("events go on after the end")
	}
}

// The third: a reply of more than 64 KiB ends it.
func TestQMPLongReply(t *testing.T) {
	long := strings.Repeat("z", 400<<10)
	m := fakeQEMU(t, func(w io.Writer, _, id string) {
		fmt.Fprintf(w, `{"return": %q, "id": %q}`+"\n", long, id)
	})
	var got string
	if err := m.Do(t.Context(), "query-qmp-schema", nil, &got); err != nil || got != long {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// The fourth: a command can't be cancelled.
func TestQMPContext(t *testing.T) {
	givenUp := make(chan struct{})
	m := fakeQEMU(t, func(w io.Writer, name, id string) {
		if name == "slow" {
			<-givenUp
		}
		fmt.Fprintf(w, `{"return": %q, "id": %q}`+"\n", name, id)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := m.Do(ctx, "slow", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	close(givenUp)
	var got string
	if err := m.Do(t.Context(), "next", nil, &got); err != nil || got != "next" {
		t.Errorf("the late reply of the command before: %q, %v", got, err)
	}
}

// A command whose context ends just after it was sent does not affect the write deadline of later ones. A waiting
// command does not affect that of the one before it.
func TestQMPEndsAfterSend(t *testing.T) {
	m := fakeQEMU(t, func(w io.Writer, name, id string) {
		fmt.Fprintf(w, `{"return": {}, "id": %q}`+"\n", id)
	})
	for range 200 {
		ctx, cancel := context.WithCancelCause(t.Context())
		m.conn = &sentThen{Conn: m.conn, then: func() { cancel(errors.New("over")) }, set: make(chan struct{}, 4)}
		_ = m.Do(ctx, "first", nil, nil)
		m.conn = m.conn.(*sentThen).Conn
		if err := m.Do(t.Context(), "second", nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	m.writing <- struct{}{} // somebody writes
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Do(ctx, "third", nil, nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-m.writing
	if err := m.Do(t.Context(), "fourth", nil, nil); err != nil {
		t.Error(err)
	}
}

// sentThen does something when a line has been written, and waits until that has set a deadline.
type sentThen struct {
	net.Conn
	then func()
	set  chan struct{} // has room for each deadline
}

func (c *sentThen) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.then()
	<-c.set
	return n, err
}

func (c *sentThen) SetWriteDeadline(at time.Time) error {
	err := c.Conn.SetWriteDeadline(at)
	c.set <- struct{}{}
	return err
}

func TestQMPRefusal(t *testing.T) {
	m := fakeQEMU(t, func(w io.Writer, _, id string) {
		fmt.Fprintf(w, `{"error": {"class": "CommandNotFound", "desc": "no such"}, "id": %q}`+"\n", id)
	})
	var refused *CommandError
	if err := m.Do(t.Context(), "nonsense", nil, nil); !errors.As(err, &refused) || refused.Command != "nonsense" ||
		refused.Class != "CommandNotFound" {
		t.Errorf("%v", err)
	}
	if m.Version() != "7.2.22" {
		t.Error(m.Version())
	}
}

// A compromised QEMU is hostile, too.
func TestQMPHostile(t *testing.T) {
	for name, text := range map[string]string{
		"not JSON":      "hello\n",
		"endless line":  strings.Repeat("x", maxQMPReply+1),
		"cut":           `{"return": {`,
		"nothing":       "",
		"wrong id":      `{"return": {}, "id": "999"}` + "\n",
		"id of a shape": `{"return": {}, "id": {"a": 1}}` + "\n",
		"two greetings": greeting + greeting,
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			go func() {
				_, _ = io.WriteString(theirs, text)
				theirs.Close()
			}()
			m := NewMonitor(ours)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := m.ConnectContext(ctx); err == nil {
				t.Error("connected")
			}
			if err := m.Disconnect(); err != nil {
				t.Error(err)
			}
			if _, err := m.Events(ctx); err == nil {
				t.Error("events after the end")
			}
		})
	}
}

// go-qemu's typed commands work with our monitor.
func TestQMPRaw(t *testing.T) {
	m := fakeQEMU(t, func(w io.Writer, name, id string) {
		if name == "query-status" {
			fmt.Fprintf(w, `{"return": {"status": "running", "singlestep": false, "running": true}, "id": %q}`+"\n", id)
		}
	})
	st, err := raw.NewMonitor(m).QueryStatus()
	if err != nil || !st.Running || st.Status != raw.RunStateRunning {
		t.Errorf("%+v %v", st, err)
	}
}

func FuzzQMP(f *testing.F) {
	f.Add(greeting)
	f.Add(`{"event": "STOP"}` + "\n")
	f.Add(`{"return": {}, "id": "1"}` + "\n" + `{"return": {}, "id": "1"}` + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		m := NewMonitor(ours)
		go func() { _ = m.Do(t.Context(), "x", nil, nil) }()
		_, _ = io.WriteString(theirs, text)
		theirs.Close()
		<-m.Done()
		if m.readError() == nil {
			t.Error("ended without a reason")
		}
	})
}

type attackQMPRow struct {
	name   string
	greet  bool
	answer func(w net.Conn, id string)
	want   string
}

// attackQMPRows are the cases of TestAttackQMP.
func attackQMPRows(
	endless func(w net.Conn, _ string), answered func(text string) func(w net.Conn, id string),
) []attackQMPRow {
	return []attackQMPRow{
		{"an endless line for a greeting", false, endless, "QMP connection ended: a reply of more than 4194304 bytes"},
		{"an endless line for a reply", true, endless, "QMP connection ended: a reply of more than 4194304 bytes"},
		{"no greeting", false, func(net.Conn, string) {}, "wait for QEMU's greeting: context deadline exceeded"},
		{"no answer", true, func(net.Conn, string) {}, "QMP query-status: context deadline exceeded"},
		{"reads nothing", true, nil, "QMP qmp_capabilities: context deadline exceeded"},
		{"the answer to another command", true, answered(`{"return": {}, "id": "7"}`),
			"QMP query-status: context deadline exceeded"},
		{"an answer without an id", true, answered(`{"return": {}}`), "QMP query-status: context deadline exceeded"},
		{"two answers", true, answered(`{"return": {}, "id": "ID"}` + "\n" + `{"error": {"desc": "forged"}, "id": "ID"}`),
			"answered"},
		{"twenty thousand events first", true, func(w net.Conn, id string) {
			event := strings.Repeat(`{"event": "STOP", "timestamp": {"seconds": 1, "microseconds": 2}}`+"\n", 1000)
			for range 20 {
				if _, err := io.WriteString(w, event); err != nil {
					return
				}
			}
			answered(`{"return": {}, "id": "ID"}`)(w, id)
		}, "answered"},
		{"an event in the shape of an answer", true, answered(`{"event": "X", "return": {}, "id": "ID"}`),
			"QMP query-status: context deadline exceeded"},
		{"a second greeting in the shape of an answer", true, answered(`{"QMP": {}, "return": {}, "id": "ID"}`),
			"QMP query-status: context deadline exceeded"},
		{"arrays in arrays", true, func(w net.Conn, _ string) { _, _ = io.WriteString(w, strings.Repeat("[", 1<<20)+"\n") },
			`QMP connection ended: not QMP: "` + strings.Repeat("[", 80) + `"`},
		{"a refusal of a megabyte", true, func(w net.Conn, id string) {
			fmt.Fprintf(w, `{"error": {"class": "X", "desc": %q}, "id": %q}`+"\n", strings.Repeat("y", 1<<20), id)
		}, "QMP query-status: " + strings.Repeat("y", maxQMPReason)},
		{"a refusal that moves the cursor", true,
			answered(`{"error": {"class": "X", "desc": "\u001b[2Jforged\nline"}, "id": "ID"}`),
			`QMP query-status: \x1b[2Jforged\nline`},
	}
}

// A compromised QEMU sends any QMP. Its data is limited, its missing answers delay no caller longer than it wants, and
// its messages are not trusted.
func TestAttackQMP(t *testing.T) {
	const command = "query-status"
	answered := func(text string) func(w net.Conn, id string) {
		return func(w net.Conn, id string) { fmt.Fprintf(w, strings.ReplaceAll(text, "ID", "%[1]s")+"\n", id) }
	}
	endless := func(w net.Conn, _ string) {
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
				return
			}
		}
	}
	for _, c := range attackQMPRows(endless, answered) {
		ours, theirs := net.Pipe()
		var group sync.WaitGroup
		group.Go(func() {
			defer theirs.Close()
			if c.greet {
				_, _ = io.WriteString(theirs, greeting)
			}
			if c.answer == nil {
				<-t.Context().Done()
				return
			}
			if !c.greet {
				c.answer(theirs, "")
			}
			for r := bufio.NewScanner(theirs); r.Scan(); {
				var cmd struct{ Execute, ID string }
				switch {
				case json.Unmarshal(r.Bytes(), &cmd) != nil:
					return
				case cmd.Execute == command:
					c.answer(theirs, cmd.ID)
				default:
					fmt.Fprintf(theirs, `{"return": {}, "id": %q}`+"\n", cmd.ID)
				}
			}
		})
		m := NewMonitor(ours)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if !strings.Contains(c.want, "deadline exceeded") {
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
		}
		seen := "answered"
		err := m.ConnectContext(ctx)
		if err == nil {
			err = m.Do(ctx, command, nil, nil)
		}
		if err != nil {
			seen = err.Error()
		}
		cancel()
		attack.Check(t, "QMP: "+c.name, c.want, seen)
		if err := m.Disconnect(); err != nil {
			t.Error(err)
		}
		if c.answer != nil {
			group.Wait()
		}
	}
}

// lateReader is a connection whose reader notices the end of its peer after a write has.
type lateReader struct {
	net.Conn
	written chan struct{}
}

func (c lateReader) Write([]byte) (int, error) {
	defer close(c.written)
	return 0, io.ErrClosedPipe
}

func (c lateReader) Read([]byte) (int, error) {
	<-c.written
	testwait.Pass(10 * time.Millisecond)
	return 0, io.EOF
}

// The error says that QEMU has ended, whoever notices it first.
func TestMonitorGoneAtWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		m := NewMonitor(lateReader{ours, make(chan struct{})})
		defer m.Disconnect()
		if _, err := m.Run([]byte(`{"execute": "query-status"}`)); err == nil || !strings.Contains(err.Error(), "ended") {
			t.Error(err)
		}
	})
}

// A wait for the greeting has its own time limit, even behind another one with a longer limit.
func TestMonitorConnectTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		m := NewMonitor(ours)
		defer m.Disconnect()
		first := make(chan error, 1)
		go func() { first <- m.ConnectContext(t.Context()) }()
		synctest.Wait()
		const patience = 10 * time.Second
		time.AfterFunc(2*patience, func() { theirs.Close() }) // QEMU never greets
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		begin := time.Now()
		if err := m.ConnectContext(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != patience {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if err := <-first; err == nil {
			t.Error("connected to nobody")
		}
	})
}
