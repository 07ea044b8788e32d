package guest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
)

// The host abandons a connection attempt when a busy guest takes too long. The conversation has not begun, and the next
// attempt is accepted.
func TestHostedImpatient(t *testing.T) {
	t.Parallel()
	h := host(t, "agent")
	ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
	defer cancel()
	h.say(contract.ControlReady)
	if err := Await(ctx, h); err != nil {
		t.Fatal(err)
	}
	if err := seed(ctx, h); err != nil {
		t.Fatal(err)
	}
	for _, linger := range []int{0, -1, 0} { // by a reset, and by an end
		conn, err := h.DialGuest(ctx, 0)
		if err != nil {
			t.Fatal(err)
		}
		if kind, _, _, err := readFrame(bufio.NewReader(conn), nil); err != nil || kind != contract.FrameHello {
			t.Fatalf("%q %v", kind, err)
		}
		_ = conn.(*net.TCPConn).SetLinger(linger)
		conn.Close()
	}
	c := h.connect2(ctx)
	h.run(c)
	h.say(contract.ControlExit, 7)
	if end, err := c.Stream(ctx, nil, io.Discard, io.Discard); err != nil || end != (End{Code: 7}) {
		t.Errorf("%+v %v", end, err)
	}
}

// connect2 connects to an agent that has already rung.
func (h *hosted) connect2(ctx context.Context) *Conn {
	h.t.Helper()
	c, err := Connect(ctx, h)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// The agent meets a host or a program that breaks the protocol. It ends the conversation or continues, and touches no
// foreign memory.
func TestAttackHostedAgent(t *testing.T) {
	t.Parallel()
	file := func(kind, owner byte, size uint64, path, target string) string {
		p := []byte{kind, owner, 0, 0, 1, 0xa4}
		p = binary.BigEndian.AppendUint64(p, size)
		p = binary.BigEndian.AppendUint64(p, 0)
		p = binary.BigEndian.AppendUint16(p, uint16(len(path)))
		return string(p) + path + target
	}
	frame := func(kind byte, payload string) string { return string(appendFrame(nil, kind, []byte(payload))) }
	dir := t.TempDir()
	const goesOn, ends = "goes on", "ends the conversation"
	for _, row := range []struct{ name, send, want string }{
		{"a length of 4 GiB", "\xff\xff\xff\xffI", ends},
		{"a length one over the limit", "\x00\x10\x00\x01I", ends},
		{"an unknown type", frame('Q', ""), ends},
		{"type 0", frame(0, ""), ends},
		{"a guest's frame", frame('x', "{}"), ends},
		{"a file frame of nothing", frame('F', ""), ends},
		{"a file frame of 23 bytes", frame('F', strings.Repeat("f", 23)), ends},
		{"a path of no bytes", frame('F', file('f', 0, 0, "", "")), ends},
		{"a path as long as PATH_MAX", frame('F', file('f', 0, 0, "/"+strings.Repeat("x", 4095), "")), ends},
		{"a path longer than its frame", frame('F', file('f', 0, 0, "/x", "")[:23]+"\xff"), ends},
		{"a kind of its own", frame('F', file('q', 0, 0, dir+"/q", "")), ends},
		{"a link to nothing", frame('F', file('l', 0, 0, dir+"/l", "")), ends},
		{"a link as long as PATH_MAX", frame('F', file('l', 0, 0, dir+"/l", strings.Repeat("x", 4096))), ends},
		{"a file where a folder is", frame('F', file('f', 0, 0, dir, "")), ends},
		{"a file below a file", frame('F', file('f', 0, 0, dir+"/f", "")) + frame('F', file('f', 0, 0, dir+"/f/g", "")),
			ends},
		{"two files at once", frame('F', file('f', 0, 5, dir+"/a", "")) + frame('F', file('f', 0, 5, dir+"/b", "")), ends},
		{"more data than announced", frame('F', file('f', 0, 5, dir+"/c", "")) + frame('D', "123456"), ends},
		{"data of no file", frame('D', "x"), ends},
		{"data of a folder", frame('F', file('d', 0, 5, dir+"/d", "")) + frame('D', "x"), ends},
		{"a file of 2^64-1 bytes", frame('F', file('f', 0, 1<<64-1, dir+"/e", "")) + frame('D', "x"), goesOn},
		{"an owner of its own", frame('F', file('f', 9, 0, dir+"/o", "")), goesOn},
		{"half a port", frame('L', "x"), ends},
		{"257 ports", frame('L', strings.Repeat("\x00\x01", 257)), ends},
		{"256 ports", frame('L', strings.Repeat("\x00\x01", 256)), goesOn},
		{"no ports", frame('L', ""), goesOn},
		{"a process's arguments, where it runs already", frame('P', "/\x00\x00\x00"), ends},
		{"a terminal, where it runs already", frame('T', "\x00\x50\x00\x18"), ends},
		{"standard input before the start", frame('I', "early"), goesOn},
		{"standard input after its end", frame('Z', "") + frame('I', "late") + frame('Z', "") + frame('I', "later"), goesOn},
		{"the largest frame of standard input", frame('I', strings.Repeat("x", contract.MaxFrame)), goesOn},
		{"empty standard input", frame('I', ""), goesOn},
		{"the request for artifacts before the exit", frame('A', ""), ends},
		{"ports after the start", frame('S', "{}") + frame('L', "\x00\x01"), ends},
		{"a start of a megabyte", frame('S', strings.Repeat(" ", contract.MaxFrame)), goesOn},
	} {
		h := host(t, "agent")
		c := h.connect()
		go func() { _, _ = io.Copy(io.Discard, h.ctl) }()
		go func() { _, _ = io.Copy(io.Discard, h.stdin) }()
		if _, err := c.conn.Write([]byte(row.send)); err != nil {
			t.Fatal(err)
		}
		got := ends
		if row.want == goesOn {
			// Then it reports the program's end.
			_ = c.conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, _, err := c.read(); err != nil {
				h.say(contract.ControlExit, 1)
			}
		}
		_ = c.conn.SetReadDeadline(time.Now().Add(hostedPatience))
		if kind, _, err := c.read(); errors.Is(err, os.ErrDeadlineExceeded) || kind == contract.FrameExit {
			got = goesOn
		}
		c.Close()
		attack.Check(t, "the agent's host: "+row.name, row.want, got)
		h.close()
	}
}

// Letters on the control channel, which the user's code has inherited.
func TestAttackHostedControl(t *testing.T) {
	t.Parallel()
	var letters, pairs []byte
	for i := range 256 {
		if i != contract.ControlExit {
			letters = append(letters, byte(i))
		}
	}
	// The byte after a word of a rehearsal belongs to it only if the word has one.
	for i := range 256 {
		pairs = append(pairs, contract.ControlWouldExit, byte(i), contract.ControlRehearsed)
		if i != contract.ControlExit {
			pairs = append(pairs, byte(i))
		}
	}
	for _, row := range []struct {
		name  string
		words []byte
		code  int
	}{
		{"every letter", letters, 0},
		{"words of a rehearsal", pairs, 0},
		{"that it has started, 10 000 times", bytes.Repeat([]byte{contract.ControlStarted}, 10000), 0},
		{"that it is ready, 10 000 times", bytes.Repeat([]byte{contract.ControlReady}, 10000), 0},
		{"exit code 255", []byte{contract.ControlExit, 255}, 255},
		{"an exit code after a word of a rehearsal", []byte{contract.ControlRehearsed, contract.ControlExit, 7}, 7},
	} {
		h := host(t, "agent")
		c := h.connect()
		h.run(c)
		go func() {
			_, _ = h.ctl.Write(row.words)
			if row.code == 0 {
				h.ctl.Close()
				_, _ = h.event.Write(make([]byte, 8))
			}
		}()
		end, err := c.Stream(t.Context(), nil, io.Discard, io.Discard)
		attack.Check(t, "the code says "+row.name, fmt.Sprint(End{Code: row.code}, nil), fmt.Sprint(end, err))
		c.Close()
		h.close()
	}
}

// Random bytes from the host, including complete frames: the agent survives or ends.
func TestHostedNoise(t *testing.T) {
	t.Parallel()
	rounds := 60
	if testing.Short() {
		rounds = 10
	}
	seed := uint64(time.Now().UnixNano())
	for round := range rounds {
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		h := host(t, "agent")
		c := h.connect()
		go func() { _, _ = io.Copy(io.Discard, h.ctl) }()
		var noise []byte
		for range 1 + random.IntN(20) {
			body := make([]byte, random.IntN(200))
			for i := range body {
				body[i] = byte(random.Uint32())
			}
			switch random.IntN(4) {
			case 0:
				noise = append(noise, body...)
			case 1: // a file below one of our folders, or with a false path
				body = append([]byte{"fdlq"[random.IntN(4)], byte(random.IntN(3)), 0, 0, 1, 0xff}, body...)
				if len(body) > 22 {
					binary.BigEndian.PutUint16(body[22-2:], uint16(random.IntN(300)))
				}
				if len(body) > 24 {
					copy(body[24:], h.out+"/")
				}
				noise = appendFrame(noise, 'F', body)
			default:
				noise = appendFrame(noise, "DLIZIDQSA"[random.IntN(9)], body)
			}
		}
		_, _ = c.conn.Write(noise)
		_, _ = h.event.Write(make([]byte, 8))
		_ = c.conn.SetReadDeadline(time.Now().Add(hostedPatience))
		_, _ = io.Copy(io.Discard, c.conn)
		c.Close()
		h.close()
		if t.Failed() {
			t.Fatalf("seed %d, round %d: %q", seed, round, noise)
		}
	}
}
