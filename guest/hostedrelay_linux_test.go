package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// The agent as a thread of the program, as on Nanos.
func TestHostedNanos(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, does string
		want       End
		stdout     string
	}{
		{"returns from main", "p", End{Code: 0}, "printed\n"},
		{"exits", "ppe", End{Code: 7}, "printed\nprinted\n"},
		{"aborts", "pa", End{Signal: 6}, ""},
		{"kills itself", "s", End{Signal: 9}, ""},
		{"is terminated", "t", End{Signal: 15}, ""},
		{"reads", "iie", End{Code: 7}, "ab"},
	} {
		h := host(t, "nanos")
		tell := func(s string) {
			if _, err := h.event.WriteString(s); err != nil {
				t.Error(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
		tell("c" + string(rune(contract.ControlReady)))
		if err := Await(ctx, h); err != nil {
			t.Fatal(err)
		}
		conn := h.connect2(ctx)
		tell("rc" + string(rune(contract.ControlStarted)))
		if err := conn.Start(ctx, Start{}); err != nil {
			t.Fatal(err)
		}
		tell(c.does)
		h.event.Close()
		var out bytes.Buffer
		end, err := conn.Stream(ctx, strings.NewReader("ab"), &out, io.Discard)
		if err != nil || end != c.want || out.String() != c.stdout {
			t.Errorf("%s: %+v %v %q", c.name, end, err, out.String())
		}
		conn.Close()
		cancel()
		h.close()
	}
}

// The relay, with an echo server at the gateway's address.
func TestHostedRelay(t *testing.T) {
	t.Parallel()
	program := needHosted(t)
	server, err := net.Listen("tcp4", gateway+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	port := strconv.Itoa(server.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	var errs bytes.Buffer
	cmd := exec.Command(program, "relay", port)
	cmd.Env = []string{"GATEWAY=" + gateway, "ASAN_OPTIONS=detect_leaks=0"}
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("listening\n"))
	if _, err := io.ReadFull(out, line); err != nil {
		t.Fatalf("%v %s", err, errs.String())
	}
	dial := func() *net.TCPConn {
		c, err := net.Dial("tcp4", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(hostedPatience))
		return c.(*net.TCPConn)
	}
	// A megabyte and a half-close.
	c := dial()
	sent := bytes.Repeat([]byte("megabyte"), 1<<17)
	go func() { _, _ = c.Write(sent); _ = c.CloseWrite() }()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	c.Close()
	// More connections than the relay's limit: the excess is rejected, and connections that end make room.
	openManyRelays(t, dial)
	if err := cmd.Process.Kill(); err != nil {
		t.Errorf("the relay is gone: %v", err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Exited() || errs.Len() > 0 {
		t.Errorf("%v %s", err, errs.String())
	}
}

// openManyRelays opens more connections at once than the relay's limit.
func openManyRelays(t *testing.T, dial func() *net.TCPConn) {
	t.Helper()
	var open []*net.TCPConn
	carried := 0
	for range 140 {
		open = append(open, dial())
	}
	for _, c := range open {
		buf := make([]byte, 1)
		if _, err := c.Write([]byte("x")); err == nil {
			if _, err := io.ReadFull(c, buf); err == nil {
				carried++
			}
		}
	}
	if carried != 128 {
		t.Errorf("%d of 140 connections are carried", carried)
	}
	for i, c := range open {
		if i%2 == 0 {
			_ = c.SetLinger(0) // a reset
		}
		c.Close()
	}
	deadline := time.Now().Add(hostedPatience)
	for again := 0; again < 128 && time.Now().Before(deadline); {
		c := dial()
		_, _ = c.Write([]byte("y"))
		if _, err := io.ReadFull(c, make([]byte, 1)); err == nil {
			again++
		}
		c.Close()
	}
}

// A terminal's first size comes before the start, later sizes while the code runs. The end of input is a character
// there.
func TestHostedTerminal(t *testing.T) {
	h := host(t, "agent", "LAZY=1")
	if err := Await(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	c := h.connect2(t.Context())
	resized := make(chan Size)
	if err := c.Terminal(Size{Columns: 80, Rows: 24}, resized); err != nil {
		t.Fatal(err)
	}
	h.run(c)
	done := make(chan error, 1)
	var out bytes.Buffer
	keys, keyboard := io.Pipe()
	go func() {
		_, err := c.Stream(t.Context(), keys, &out, io.Discard)
		done <- err
	}()
	resized <- Size{Columns: 300, Rows: 70}
	_, _ = keyboard.Write([]byte("typed"))
	keyboard.Close()
	typed := make([]byte, 6)
	if _, err := io.ReadFull(h.stdin, typed); err != nil || string(typed) != "typed\x04" {
		t.Errorf("%q %v", typed, err)
	}
	resized <- Size{Columns: 1, Rows: 2} // even after the end of the input
	resized <- Size{Columns: 2, Rows: 2}
	_, _ = h.stdout.WriteString("shown")
	h.say(contract.ControlExit, 0)
	if err := <-done; err != nil || out.String() != "shown" {
		t.Errorf("%v %q", err, out.String())
	}
	c.Close()
	<-h.gone
	if said := h.said.String(); !strings.Contains(said, "terminal 80 24\nspawn\n") ||
		!strings.Contains(said, "terminal 300 70\n") {
		t.Errorf("%q", said)
	}
}
