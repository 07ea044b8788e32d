package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// handing is a hosted agent that was asked for a compiled program, and whose code has started.
func handing(t *testing.T, d Draft) (*hosted, *Conn) {
	t.Helper()
	h := host(t, "agent")
	c := h.connect()
	if err := c.HandOut(d); err != nil {
		t.Fatal(err)
	}
	h.run(c)
	return h, c
}

// program returns a program with its header, which announces the size.
func program(size int, text []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{contract.ControlProgram}, uint32(size)), text...)
}

// goesOn waits until the agent reports that the host has the program, and until the channel ends.
func goesOn(t *testing.T, h *hosted) {
	t.Helper()
	if got, err := io.ReadAll(h.ctl); err != nil && !strings.Contains(err.Error(), "reset") ||
		string(got) != string(rune(contract.ControlContinue)) {
		t.Errorf("%q %v", got, err)
	}
}

// The agent sends a program to the host once. It holds standard input and the code until the host has it. Then it
// closes the channel, so nobody can send another one.
func TestHostedHandOut(t *testing.T) {
	t.Parallel()
	text := make([]byte, 3<<20+7)
	for i := range text {
		text[i] = byte(rand.Uint32())
	}
	for name, want := range map[string][]byte{"a program": text, "a byte": {1}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			var d draft
			h, c := handing(t, &d)
			in := bytes.Repeat([]byte("stdin\x00\xff"), 100000)
			go func() {
				_, _ = h.stderr.WriteString("compiled. ")
				h.say(program(len(want), want)...)
				goesOn(t, h)
				if _, err := h.ctl.Write(program(4, []byte("evil"))); err == nil {
					t.Error("the channel is still there")
				}
				got, err := io.ReadAll(h.stdin)
				_, _ = h.stdout.Write(got)
				if err != nil {
					t.Error(err)
				}
				_, _ = h.event.Write(make([]byte, 8)) // it has ended
			}()
			var stdout, stderr bytes.Buffer
			ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
			defer cancel()
			if end, err := c.Stream(ctx, bytes.NewReader(in), &stdout, &stderr); err != nil || end != (End{}) ||
				!bytes.Equal(stdout.Bytes(), in) || stderr.String() != "compiled. " {
				t.Errorf("%+v %v %d %q", end, err, stdout.Len(), stderr.String())
			}
			if len(want) > 0 != (len(d.kept) == 1) || len(want) > 0 && d.kept[0] != string(want) {
				t.Errorf("kept %d", len(d.kept))
			}
		})
	}
}

// Data from a guest that was not asked, or that is not a program, is never kept.
func TestHostedHandOutRefused(t *testing.T) {
	t.Parallel()
	for name, words := range map[string][]byte{
		"too large":      program(contract.MaxProgram+1, nil),
		"half a length":  {contract.ControlProgram, 0, 0},
		"half a program": program(100, []byte("half")),
	} {
		t.Run(name, func(t *testing.T) {
			var d draft
			h, c := handing(t, &d)
			h.say(words...)
			h.ctl.Close() // it has died
			h.ctl = nil
			time.AfterFunc(100*time.Millisecond, func() { _, _ = h.event.Write(make([]byte, 8)) })
			ctx, cancel := context.WithTimeout(t.Context(), hostedPatience)
			defer cancel()
			if end, err := c.Stream(ctx, nil, io.Discard, io.Discard); err != nil || end != (End{}) || len(d.kept) > 0 {
				t.Errorf("%+v %v, kept %q", end, err, d.kept)
			}
		})
	}
	t.Run("nobody asked", func(t *testing.T) {
		h := host(t, "agent")
		c := h.connect()
		h.run(c)
		h.say(program(4, []byte("evil"))...)
		h.say(contract.ControlExit, 5)
		if end, err := c.Stream(t.Context(), nil, io.Discard, io.Discard); err != nil || end != (End{Code: 5}) {
			t.Errorf("%+v %v", end, err)
		}
	})
	t.Run("before it has started", func(t *testing.T) {
		h := host(t, "agent")
		c := h.connect()
		var d draft
		if err := c.HandOut(&d); err != nil {
			t.Fatal(err)
		}
		go func() {
			h.takeStart()
			h.say(program(4, []byte("evil"))...)
			h.say(contract.ControlStarted, contract.ControlExit, 5)
		}()
		if err := c.Start(t.Context(), Start{}); err != nil {
			t.Fatal(err)
		}
		if end, err := c.Stream(t.Context(), nil, io.Discard, io.Discard); err != nil || end != (End{Code: 5}) ||
			len(d.kept) > 0 {
			t.Errorf("%+v %v %q", end, err, d.kept)
		}
	})
}
