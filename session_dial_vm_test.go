package unitask_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// This process alone connects to a port of the machine. The connection survives a pause, and resumes nothing.
func TestSessionDial(t *testing.T) {
	needClones(t)
	rt, err := unitask.Open(unitask.Options{Home: newHome(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "node"}})
	value(t, s, "js", `const net = require('node:net')
const server = net.createServer(c => { c.on('error', () => {}); c.on('data', d => String(d) == 'bye\n' ? c.end('end') :
  c.write('got ' + d)) })
await new Promise(done => server.listen(8000, '127.0.0.1', done)); ''`)
	dial := func(port int) net.Conn {
		t.Helper()
		conn, err := s.Dial(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	conn := dial(8000)
	lines := bufio.NewReader(conn)
	say := func(text string) {
		t.Helper()
		fmt.Fprintln(conn, text)
		if got, err := lines.ReadString('\n'); got != "got "+text+"\n" {
			t.Fatalf("%q %v", got, err)
		}
	}
	say("one")

	pauseSession(t, s)
	if _, err := s.Dial(t.Context(), 8000); err == nil || !s.Paused() {
		t.Errorf("in a pause: %v, paused %t", err, s.Paused())
	}
	fmt.Fprintln(conn, "two") // is read at once, and waits
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := lines.Peek(1); err == nil || !s.Paused() {
		t.Errorf("data in a pause: %v, paused %t", err, s.Paused())
	}
	_ = conn.SetReadDeadline(time.Time{})
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := lines.ReadString('\n'); got != "got two\n" {
		t.Fatalf("%q %v", got, err)
	}
	forkForwarded(t, s)
	say("three")

	t.Run("ends", func(t *testing.T) {
		if _, err := dial(9).Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("nothing listens there: %v", err)
		}
		ending := dial(8000)
		fmt.Fprintln(ending, "bye")
		if text, err := io.ReadAll(ending); err != nil || string(text) != "end" {
			t.Errorf("%q %v", text, err)
		}
	})
	t.Run("bounds", func(t *testing.T) { dialMany(t, s) })
	say("four")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := lines.ReadByte(); !errors.As(err, new(*unitask.SessionError)) {
		t.Errorf("after its end: %v", err)
	}
	if _, err := s.Dial(t.Context(), 8000); !errors.As(err, new(*unitask.SessionError)) {
		t.Errorf("after its end: %v", err)
	}
}

// A ceiling without forwarded ports allows no other way to a port.
func TestSessionDialForbidden(t *testing.T) {
	needVM(t)
	ceiling, err := policy.ParseCeiling("a ceiling", []byte("forwardedPorts = 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Ceiling: ceiling})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "shell"}})
	if _, err := s.Dial(t.Context(), 80); !errors.As(err, new(*policy.FieldError)) {
		t.Errorf("%v", err)
	}
}

// dialMany checks the limits of connections.
func dialMany(t *testing.T, s *unitask.Session) {
	t.Helper()
	if _, err := s.Dial(t.Context(), 0); !errors.As(err, new(*policy.FieldError)) {
		t.Errorf("port 0: %v", err)
	}
	var open []net.Conn
	for {
		c, err := s.Dial(t.Context(), 8000)
		if err == nil {
			open = append(open, c)
			continue
		}
		if !errors.As(err, new(*unitask.BusyError)) || len(open) < unitask.MaxForwarded-3 {
			t.Errorf("after %d: %v", len(open), err)
		}
		break
	}
	for _, c := range open {
		c.Close()
	}
}
