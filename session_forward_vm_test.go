package unitask_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// A port of the machine is reachable on the host's loopback; connections survive a pause.
func TestSessionForward(t *testing.T) {
	t.Parallel()
	needClones(t)
	ceiling, err := policy.ParseCeiling("a ceiling", []byte("forwardedPorts = 2\n"))
	if err != nil {
		t.Fatal(err)
	}
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Ceiling: ceiling})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Image: "node"}})
	if got := value(t, s, "js", `const net = require('node:net'); let seen = 0
const server = net.createServer(c => { seen++; c.on('error', () => {}); c.on('data', d => c.write('got ' + d)) })
await new Promise(done => server.listen(8000, '127.0.0.1', done)); server.address().address`); got != "'127.0.0.1'" {
		t.Fatal(got)
	}
	f, err := s.Forward(8000, 0)
	if err != nil {
		t.Fatal(err)
	}
	dial := func() (net.Conn, *bufio.Reader) {
		t.Helper()
		conn, err := net.Dial("tcp", f.Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn, bufio.NewReader(conn)
	}
	conn, lines := dial()
	say := func(text string) {
		t.Helper()
		fmt.Fprintln(conn, text)
		if got, err := lines.ReadString('\n'); got != "got "+text+"\n" {
			t.Fatalf("%q %v", got, err)
		}
	}
	say("one")
	pause := func() {
		t.Helper()
		err := s.Pause(t.Context())
		for errors.As(err, new(*unitask.BusyError)) { // the last byte is still in transit
			err = s.Pause(t.Context())
		}
		if err != nil || !s.Paused() {
			t.Fatal(err)
		}
	}
	pause()
	say("two") // it resumes the machine
	if s.Paused() {
		t.Error("it answers, and is paused")
	}
	pause()
	other, more := dial()
	fmt.Fprintln(other, "new")
	if got, err := more.ReadString('\n'); got != "got new\n" {
		t.Errorf("%q %v", got, err)
	}

	// A fork has neither port nor connection, and the parent keeps its own.
	forkForwarded(t, s)
	say("three")

	t.Run("bounds", func(t *testing.T) {
		checkForwardBounds(t, f, s)
	})
	t.Run("a client of many connections", func(t *testing.T) {
		takeManyConnections(t, f, say)
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-f.Done()
	if got, err := lines.ReadString('\n'); err == nil || strings.Contains(got, "got") {
		t.Errorf("after its end: %q %v", got, err)
	}
}

// forkForwarded checks that a fork has no connection of its parent's.
func forkForwarded(t *testing.T, s *unitask.Session) {
	t.Helper()
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if got := value(t, forks[0], "js",
		"await new Promise(done => { const look = () => server.getConnections((_, n) => n ? setTimeout(look, 20) : "+
			"done('none')); look() })"); got != "'none'" {
		t.Error(got)
	}
	if err := forks[0].Close(); err != nil {
		t.Error(err)
	}
}

// takeManyConnections makes one client open more connections than the limit.
func takeManyConnections(t *testing.T, f *session.Forward, say func(text string)) {
	t.Helper()
	reset := 0
	for range unitask.MaxForwarded + 8 {
		conn, err := net.Dial("tcp", f.Addr.String())
		if err != nil { // it was reset before we saw it open
			reset++
			continue
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintln(conn, "x")
		if got, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
			reset++
		} else if got != "got x\n" {
			t.Errorf("%q", got)
		}
	}
	if reset != 10 { // two are open from before
		t.Errorf("%d were reset", reset)
	}
	say("four")
}

// checkForwardBounds checks the limits of forwarded ports and connections.
func checkForwardBounds(t *testing.T, f *session.Forward, s *unitask.Session) {
	t.Helper()
	for _, ports := range [][2]int{{0, 0}, {65536, 0}, {80, -1}, {80, 65536}, {8000, int(f.Addr.Port())}} {
		if _, err := s.Forward(ports[0], ports[1]); !errors.As(err, new(*policy.FieldError)) {
			t.Errorf("%v: %v", ports, err)
		}
	}
	nothing, err := s.Forward(9, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Forward(8000, 0); !errors.As(err, new(*unitask.BusyError)) {
		t.Errorf("a third: %v", err)
	}
	conn, err := net.Dial("tcp", nothing.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("nothing listens there: %v", err)
	}
	conn.Close()
	if err := nothing.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", nothing.Addr.String()); err == nil {
		t.Error("it is open after its end")
	}
}
