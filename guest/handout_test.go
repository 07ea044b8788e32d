package guest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
)

// draft is a draft that records its calls.
type draft struct {
	bytes.Buffer
	kept []string
}

func (d *draft) Write(part []byte) { d.Buffer.Write(part) }
func (d *draft) Keep()             { d.kept = append(d.kept, d.String()) }

// handedOut makes a guest start code whose program it must send.
func handedOut(t *testing.T, n Network) (*Conn, *draft) {
	t.Helper()
	c, err := Connect(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	d := &draft{}
	if err := c.HandOut(d); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(t.Context(), Start{Compiled: contract.HandOut}); err != nil {
		t.Fatal(err)
	}
	return c, d
}

// A guest that sends a program: what the host keeps, and when the code may run.
func TestAttackHandOut(t *testing.T) {
	const ended = `{"code":0,"signal":0,"oom":false,"out":false}`
	part := strings.Repeat("x", contract.MaxChunk)
	whole := func(c net.Conn) { sendFrame(c, 'p', "a pro"); sendFrame(c, 'p', "gram"); sendFrame(c, 'p', "") }
	goesOn := func(c net.Conn) string {
		kind, payload, err := hostFrame(c)
		return fmt.Sprintf("%c %q %v", kind, payload, err)
	}
	for _, row := range []struct {
		name string
		then func(net.Conn) // the guest's actions after the start of the code
		want string         // the result, and what is kept
	}{
		{"a program", func(c net.Conn) { whole(c); goesOn(c); sendFrame(c, 'x', ended) }, `taken, keeps ["a program"]`},
		{"none, where nothing was compiled", func(c net.Conn) {
			sendFrame(c, 'e', "hello.go:1: no")
			sendFrame(c, 'x',
				ended)
		}, `taken, keeps []`},
		{"one that is too large, as an empty one", func(c net.Conn) {
			sendFrame(c, 'p', "")
			goesOn(c)
			sendFrame(c, 'x',
				ended)
		}, `taken, keeps []`},
		{"half of one", func(c net.Conn) { sendFrame(c, 'p', "a pro"); sendFrame(c, 'x', ended) }, `taken, keeps []`},
		{"half of one, and it is gone", func(c net.Conn) { sendFrame(c, 'p', "a pro"); c.Close() }, `gone, keeps []`},
		{"a byte more than the most", func(c net.Conn) {
			for range contract.MaxProgram / contract.MaxChunk {
				sendFrame(c, 'p', part)
			}
			sendFrame(c, 'p', "x")
		}, `broke the protocol, keeps []`},
		{"one without end", func(c net.Conn) {
			for {
				if _, err := c.Write(appendFrame(nil, 'p', []byte(part))); err != nil {
					return
				}
			}
		}, `broke the protocol, keeps []`},
		{"a part of a megabyte and a byte", func(c net.Conn) { _, _ = c.Write([]byte{0, 0x10, 0, 1, 'p'}) },
			`broke the protocol, keeps []`},
		{"another one when it has run", func(c net.Conn) {
			whole(c)
			goesOn(c)
			sendFrame(c, 'p', "evil")
			sendFrame(c, 'p',
				"")
		}, `broke the protocol, keeps ["a program"]`},
		{"another one before the host has gone on", func(c net.Conn) { whole(c); whole(c) },
			`broke the protocol, keeps ["a program"]`},
		{"a second end", func(c net.Conn) { whole(c); sendFrame(c, 'p', "") }, `broke the protocol, keeps ["a program"]`},
		{"an end after an empty one", func(c net.Conn) { sendFrame(c, 'p', ""); whole(c) }, `broke the protocol, keeps []`},
		{"after its end", func(c net.Conn) { sendFrame(c, 'x', ended); whole(c) }, `taken, keeps []`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			w := withGuest(t, func(c net.Conn) {
				defer func() { _, _ = io.Copy(io.Discard, c) }()
				sendFrame(c, 'h', goodHello)
				for _, want := range []byte{contract.FrameHandOut, contract.FrameStart} {
					if kind, _, err := hostFrame(c); err != nil || kind != want {
						t.Errorf("%c, want %c: %v", kind, want, err)
					}
				}
				sendFrame(c, 's', "")
				row.then(c)
			})
			c, d := handedOut(t, w)
			_, err := c.Stream(t.Context(), strings.NewReader("stdin"), io.Discard, io.Discard)
			attack.Check(t, row.name, row.want, fmt.Sprintf("%s, keeps %q", verdict(err), d.kept))
		})
	}
}

// Standard input comes only after the host has confirmed the program.
func TestHandOutBeforeStdin(t *testing.T) {
	var got []byte
	c, _ := handedOut(t, withGuest(t, func(c net.Conn) {
		sendFrame(c, 'h', goodHello)
		for {
			kind, payload, err := hostFrame(c)
			if err != nil {
				return
			}
			got = append(got, kind)
			switch kind {
			case contract.FrameStart:
				sendFrame(c, 's', "")
				sendFrame(c, 'o', "compiled") // standard input would have arrived by now
				sendFrame(c, 'p', "program")
				sendFrame(c, 'p', "")
			case contract.FrameStdin:
				sendFrame(c, 'o', string(payload))
			case contract.FrameStdinEnd:
				sendFrame(c, 'x', `{"code":0,"signal":0,"oom":false,"out":false}`)
			}
		}
	}))
	var out bytes.Buffer
	if _, err := c.Stream(t.Context(), strings.NewReader(" in"), &out, io.Discard); err != nil ||
		out.String() != "compiled in" || string(got) != "HSGIZ" {
		t.Errorf("%v %q %q", err, out.String(), got)
	}
}

// Whatever frames come, a program is kept at most once, and it is the data before its end.
func FuzzHandOut(f *testing.F) {
	program := append(appendFrame(nil, 'p', []byte("a program")), appendFrame(nil, 'p', nil)...)
	f.Add(program)
	f.Add(append(program, program...))
	f.Add(append(appendFrame(nil, 'p', nil), program...))
	f.Add(binary.BigEndian.AppendUint32(nil, contract.MaxProgram))
	f.Fuzz(func(t *testing.T, in []byte) {
		var d draft
		h := &handOut{to: &d, done: make(chan struct{})}
		r := bytes.NewReader(in)
		var buf []byte
		for {
			kind, payload, grown, err := readFrame(r, buf)
			if err != nil {
				break
			}
			if buf = grown; kind != contract.FrameProgram {
				continue
			}
			err = h.take(payload)
			select {
			case <-h.done:
				if d.Len() > 0 && (len(d.kept) != 1 || d.kept[0] != d.String()) {
					t.Fatalf("%q of %q is kept", d.kept, d.String())
				}
			default:
				if len(d.kept) > 0 {
					t.Fatal("it is kept before its end")
				}
			}
			if err != nil {
				break
			}
		}
	})
}
