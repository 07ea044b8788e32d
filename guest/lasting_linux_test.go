package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// lasting starts a hosted agent's program in a conversation that survives its connection.
func lasting(t *testing.T) (*hosted, *Conn) {
	h := host(t, "agent")
	c := h.connect()
	if err := c.Lasting(); err != nil {
		t.Fatal(err)
	}
	h.run(c)
	return h, c
}

// streams reads the program's output from a connection.
type streams struct {
	out  *io.PipeReader
	end  chan End
	errs chan error
	in   *io.PipeWriter
}

func stream1(c *Conn) *streams {
	r, w := io.Pipe()
	stdin, in := io.Pipe()
	s := &streams{out: r, end: make(chan End, 1), errs: make(chan error, 1), in: in}
	go func() {
		end, err := c.Stream(context.Background(), stdin, w, w)
		s.end <- end
		s.errs <- err
		w.Close()
	}()
	return s
}

// reads checks that the stream continues with exactly the wanted text.
func (s *streams) reads(t *testing.T, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(s.out, got); err != nil || string(got) != want {
		t.Fatalf("%.200q, not %.200q: %v", got, want, err)
	}
}

func (h *hosted) rejoin() *Conn {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), hostedPatience)
	defer cancel()
	c, err := Rejoin(ctx, h)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// Data sent before the host has made the conversation persistent has no effect, however old it is.
func TestHostedLastingLate(t *testing.T) {
	t.Parallel()
	h := host(t, "agent")
	c := h.connect()
	if err := c.Relay([]uint16{}); err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(t.TempDir(), "made")
	if err := c.Put(File{Path: made, Mode: os.ModeDir | 0o755}, strings.NewReader("")); err != nil {
		t.Fatal(err)
	}
	if err := c.w.Flush(); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the agent has it, and would close its sockets", func() bool {
		_, err := os.Stat(made)
		return err == nil
	})
	if err := c.Lasting(); err != nil {
		t.Fatal(err)
	}
	h.run(c)
	if c := h.rejoin(); !c.Hello.Started {
		t.Errorf("%+v", c.Hello)
	}
}

// A persistent conversation continues on a new connection, however the old one was lost. The program keeps its streams,
// and every byte that the old connection had not delivered arrives.
func TestHostedLasting(t *testing.T) {
	t.Parallel()
	h, c := lasting(t)
	s := stream1(c)
	fmt.Fprint(h.stdout, "one")
	s.reads(t, "one")
	// The host has another network, and the agent does not know.
	c2 := h.rejoin()
	if !c2.Hello.Started {
		t.Errorf("%+v", c2.Hello)
	}
	if err := <-s.errs; err == nil {
		t.Error("the connection before has not ended")
	}
	s = stream1(c2)
	fmt.Fprint(h.stdout, "two")
	s.reads(t, "two")
	if _, err := s.in.Write([]byte("to the program")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 14)
	if _, err := io.ReadFull(h.stdin, got); err != nil || string(got) != "to the program" {
		t.Errorf("%q %v", got, err)
	}
	// The connection is lost, and the program prints more than the agent and the pipe can hold.
	c2.Close()
	ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
	defer cancel()
	if err := Await(ctx, h); err != nil { // it rings again
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcde\n", 1<<16)
	wrote := make(chan error, 1)
	go func() { _, err := io.WriteString(h.stdout, large); wrote <- err }()
	// The host abandons attempts.
	if err := seed(ctx, h); err != nil {
		t.Fatal(err)
	}
	for _, linger := range []int{0, -1} {
		conn, err := h.DialGuest(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		hello := make([]byte, 4096)
		n, err := conn.Read(hello)
		if text := string(hello[:n]); err != nil || !strings.HasSuffix(text, `"started":true}`) {
			t.Errorf("%q %v", text, err)
		}
		_ = conn.(*net.TCPConn).SetLinger(linger)
		conn.Close()
	}
	c3 := h.rejoin()
	s = stream1(c3)
	s.reads(t, large)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	// The program ends while nobody is connected.
	c3.Close()
	if err := Await(ctx, h); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(h.stdout, "last words")
	h.say(contract.ControlExit, 9)
	s = stream1(h.rejoin())
	s.reads(t, "last words")
	if end, err := <-s.end, <-s.errs; err != nil || end != (End{Code: 9}) {
		t.Errorf("%+v %v", end, err)
	}
}

// Otherwise a conversation ends with its connection.
func TestHostedNotLasting(t *testing.T) {
	t.Parallel()
	h := host(t, "agent")
	c := h.connect()
	h.run(c)
	c.Close()
	select {
	case <-h.gone:
	case <-time.After(hostedPatience):
		t.Error("it goes on")
	}
}

type attackHostedLastingRow struct {
	name string
	do   func(*hosted, *Conn)
	want string
}

// attackHostedLastingRows are the cases of TestAttackHostedLasting.
func attackHostedLastingRows(
	other func(h *hosted, datagrams ...[]byte), seeded func(nonce byte) []byte, goesOn, lost string,
) []attackHostedLastingRow {
	return []attackHostedLastingRow{
		{"a seed from another port", func(h *hosted, _ *Conn) { other(h, seeded(1), seeded(2)) }, goesOn},
		{"a rehearsal from another port", func(h *hosted, _ *Conn) { other(h, []byte(contract.WordRehearse)) }, goesOn},
		{"a rehearsal while the code runs", func(h *hosted, _ *Conn) { h.SendDatagram([]byte(contract.WordRehearse)) },
			goesOn},
		{"half a seed", func(h *hosted, _ *Conn) { h.SendDatagram(seeded(1)[:50]) }, goesOn},
		{"a seed that is too long", func(h *hosted, _ *Conn) { h.SendDatagram(append(seeded(1), 0)) }, goesOn},
		{"a bell", func(h *hosted, _ *Conn) { h.SendDatagram([]byte(contract.WordBell)) }, goesOn},
		{"lasting again", func(_ *hosted, c *Conn) { _ = c.Lasting() }, goesOn},
		{"lasting with a payload", func(_ *hosted, c *Conn) { _ = c.send(contract.FrameLasting, []byte("x")) }, lost},
		{"another seed", func(h *hosted, _ *Conn) { h.SendDatagram(seeded(1)) }, lost},
		{"a hundred seeds", func(h *hosted, _ *Conn) {
			for i := range 100 {
				h.SendDatagram(seeded(byte(i)))
			}
		}, lost},
		{"a frame that it does not know", func(_ *hosted, c *Conn) { _ = c.send('Q', nil) }, lost},
		{"the letters of a rehearsal, by the code", func(h *hosted, _ *Conn) {
			h.say(contract.ControlRehearsed, contract.ControlReady, contract.ControlStarted)
		}, goesOn},
	}
}

// What ends a persistent conversation, and what does not.
func TestAttackHostedLasting(t *testing.T) {
	t.Parallel()
	seeded := func(nonce byte) []byte {
		m := append([]byte(contract.WordSeed), bytes.Repeat([]byte{nonce}, contract.NonceSize)...)
		m = binary.BigEndian.AppendUint64(m, uint64(time.Now().UnixNano()))
		return append(m, make([]byte, contract.EntropySize)...)
	}
	other := func(h *hosted, datagrams ...[]byte) { // from the gateway's address, and another port
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(gateway)}, h.agent.(*net.UDPAddr))
		if err != nil {
			h.t.Fatal(err)
		}
		defer conn.Close()
		for _, d := range datagrams {
			_, _ = conn.Write(d)
		}
	}
	const goesOn, ends, lost = "goes on", "ends", "waits for a seed's connection"
	for _, row := range attackHostedLastingRows(other, seeded, goesOn, lost) {
		h, c := lasting(t)
		s := stream1(c)
		row.do(h, c)
		_ = h.udp.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // its answer
		for buf := make([]byte, 512); ; {
			if _, _, err := h.udp.ReadFrom(buf); err != nil {
				break
			}
		}
		_ = h.udp.SetReadDeadline(time.Time{})
		got := ends
		fmt.Fprint(h.stdout, "x")
		answer := make(chan error, 1)
		go func() { _, err := s.out.Read(make([]byte, 1)); answer <- err }()
		select {
		case err := <-answer:
			if got = goesOn; err != nil {
				got = lost
				again := stream1(h.rejoin()) // and the host reconnects
				again.reads(t, "x")
			}
		case <-h.gone:
		case <-time.After(hostedPatience):
			got = "silence"
		}
		attack.Check(t, "the agent's host: "+row.name, row.want, got)
		c.Close()
		h.close()
	}
	// Only the host may make the conversation persistent before the start.
	h := host(t, "agent")
	c := h.connect()
	h.run(c)
	_ = c.Lasting()
	select {
	case <-h.gone:
	case <-time.After(hostedPatience):
		t.Error("lasting after the start of a conversation that does not: it goes on")
	}
	c.Close()
}

// A guest that reports at a wrong time that its program runs, or that it does not.
func TestAttackRejoin(t *testing.T) {
	const started = `{"version":1,"kernel":"linux","started":true}`
	for _, row := range []struct {
		name, hello string
		join        func(context.Context, Network) (*Conn, error)
		want        string
	}{
		{"started before the start", started, Connect, "broke the protocol"},
		{"not started when it goes on", goodHello, Rejoin, "broke the protocol"},
		{"started: false, said", `{"version":1,"kernel":"linux","started":false}`, Connect, "broke the protocol"},
		{"started: a string", `{"version":1,"kernel":"linux","started":"true"}`, Rejoin, "broke the protocol"},
		{"started when it goes on", started, Rejoin, "taken"},
	} {
		w := withGuest(t, func(c net.Conn) {
			sendFrame(c, 'h', row.hello)
			_, _ = io.Copy(io.Discard, c)
		})
		c, err := row.join(t.Context(), w)
		if err == nil {
			c.Close()
		}
		attack.Check(t, "hello: "+row.name, row.want, verdict(err))
	}
}

// The code runs while the agent waits for the host again, and may connect first. The agent does not take it for the
// host, whose frames create files as root.
func TestHostedLastingImpostor(t *testing.T) {
	t.Parallel()
	h, c := lasting(t)
	s := stream1(c)
	fmt.Fprint(h.stdout, "one")
	s.reads(t, "one")
	code, err := net.Dial("tcp4", h.tcp.String())
	if err != nil {
		t.Fatal(err)
	}
	defer code.Close()
	c2 := h.rejoin()
	s2 := stream1(c2)
	fmt.Fprint(h.stdout, "two")
	s2.reads(t, "two")
	_ = code.SetReadDeadline(time.Now().Add(hostedPatience))
	if n, err := code.Read(make([]byte, 100)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the code was told %d bytes, %v", n, err)
	}
}
