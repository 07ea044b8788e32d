package supervisor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
)

func step(kind byte, id uint32, payload string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	b = binary.BigEndian.AppendUint32(append(b, kind), id)
	return string(b) + payload
}

// Messages of a hostile session's program to the host. The client has two commands, 1 and 2, of which 1 has ended.
func TestAttackFrames(t *testing.T) {
	const ends, goesOn = "the session ends", "it goes on"
	end0 := step(contract.StepEnd, 2, "\x00\x00\x00\x00")
	for _, row := range []struct{ name, says, want string }{
		{"nothing", "", goesOn},
		{"a length of 2^32-1", "\xff\xff\xff\xffo\x00\x00\x00\x02", ends},
		{"a length one too large", step(contract.StepStdout, 2, strings.Repeat("x", contract.MaxChunk+1)), ends},
		{"the largest frame", step(contract.StepStdout, 2, strings.Repeat("x", contract.MaxChunk)), goesOn},
		{"an unknown type", step('?', 2, ""), ends},
		{"a host's type", step(contract.StepExec, 2, "xxxx"), ends},
		{"that it holds, unasked", step(contract.StepHeld, 0, ""), ends},
		{"that a command holds", step(contract.StepHeld, 2, ""), ends},
		{"command 0", step(contract.StepStdout, 0, "x"), ends},
		{"a command that was never started", step(contract.StepStdout, 3, "x"), ends},
		{"command 2^32-1", step(contract.StepEnd, 1<<32-1, "\x00\x00\x00\x00"), ends},
		{"output of a command that has ended", step(contract.StepStdout, 1, "x"), goesOn},
		{"another end of it", step(contract.StepEnd, 1, "\x00\x00\x00\x07"), goesOn},
		{"an end of 3 bytes", step(contract.StepEnd, 2, "\x00\x00\x00"), ends},
		{"an end of 5 bytes", step(contract.StepEnd, 2, "\x00\x00\x00\x00\x00"), ends},
		{"an empty failure", step(contract.StepFailed, 2, ""), ends},
		{"errno 2^32-1", step(contract.StepFailed, 2, "\xff\xff\xff\xff"), goesOn},
		{"signal 2^24-1", step(contract.StepEnd, 2, "\xff\xff\xff\xff"), goesOn},
		{"taken of no stream", step(contract.StepTaken, 2, "\xff\xff\xff\xff"), goesOn},
		{"taken a thousand times", strings.Repeat(step(contract.StepTaken, 2, "\x00\x00\x00\x00"), 1000), goesOn},
		{"a reply of a command without one", step(contract.StepReply, 2, "0\x00\x00"), goesOn},
		{"a thousand times that there is something in /out", strings.Repeat(step(contract.StepOut, 2, "x"), 1000), goesOn},
		{"its end twice", end0 + end0, goesOn},
		{"output behind its end", end0 + step(contract.StepStderr, 2, "late"), goesOn},
	} {
		c := New(io.Discard)
		for range 2 {
			if _, err := c.Start(t.Context(), Exec{Args: []string{"x"}, Stdout: io.Discard}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Write([]byte(step(contract.StepEnd, 1, "\x00\x00\x00\x00"))); err != nil {
			t.Fatal(err)
		}
		got := goesOn
		// In pieces, as a connection may deliver them.
		for text := row.says; len(text) > 0 && got == goesOn; {
			n := min(len(text), 1+len(text)/3)
			if _, err := c.Write([]byte(text[:n])); err != nil {
				if !errors.As(err, new(*guest.ProtocolError)) {
					t.Errorf("%s: %v", row.name, err)
				}
				got = ends
			}
			text = text[n:]
		}
		attack.Check(t, "a session's program says: "+row.name, row.want, got)
		c.Close(nil)
	}
}

// What code may write to descriptor 3, in its driver's place.
func TestAttackReplies(t *testing.T) {
	for _, row := range []struct{ says, want string }{
		{"0\x00v\x00", "0 v"},
		{"0\x00", "waits"},
		{"", "waits"},
		{"256\x00\x00", "killed"},
		{"-1\x00\x00", "killed"},
		{"x\x00\x00", "killed"},
		{"\x00\x00", "killed"},
		{"0\x00v\x001\x00w\x00", "killed"},
		{strings.Repeat("9", 6*MaxValue), "killed"},
		{"0\x00" + strings.Repeat("v", 6*MaxValue), "killed"},
		{"99999999999999999999\x00\x00", "killed"},
	} {
		to := make(chan reply, 1)
		r := &replies{to: to}
		got := "waits"
		if _, err := r.Write([]byte(row.says)); err != nil {
			got = "killed"
		}
		select {
		case a := <-to:
			if got != "killed" {
				got = fmt.Sprintf("%d %s", a.code, a.value)
			}
		default:
		}
		attack.Check(t, fmt.Sprintf("code replies %.20q (%d bytes)", row.says, len(row.says)), row.want, got)
	}
}

// Possible contents of the files' list.
func FuzzEntries(f *testing.F) {
	f.Add([]byte("f 644 3 1700000000000000000 /work/a b\x00d 755 0 -1 /work/d\x00"))
	f.Add([]byte("f 99999 -1 x /\x00\x00  \x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, more := Entries(text, 3)
		if len(list) > 3 || (!more && len(text) > 0 && text[len(text)-1] != 0) {
			t.Errorf("%d entries, more %v", len(list), more)
		}
	})
}

// Possible contents of a detailed list of files.
func FuzzInfos(f *testing.F) {
	f.Add([]byte("l 777 3 1700000000000000000 0 1000 d 755 2\x00/work/a b\x00root\x00user\x00/etc\x00k\x00v\x00" +
		"l\x00w\x00"))
	f.Add([]byte("f 644 1 2 3 4 - 0 65\x00/\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		list, more := Infos(text, 3)
		if len(list) > 3 || (!more && len(text) > 0 && text[len(text)-1] != 0) {
			t.Errorf("%d entries, more %v", len(list), more)
		}
		for _, is := range list {
			if len(is.Metadata) > MaxMetadata || is.Size < 0 || is.UID < 0 || is.GID < 0 || !path.IsAbs(is.Path) {
				t.Errorf("%+v", is)
			}
		}
	})
}

// Whatever the guest says of a watch, no change is outside the folder, and no more than an event is kept.
func FuzzWatch(f *testing.F) {
	f.Add([]byte("R\x00ca\x00wa/b\x00O\x00"), 3)
	f.Add([]byte("R\x00c../a\x00"), 1)
	f.Fuzz(func(t *testing.T, text []byte, at int) {
		ready := 0
		w := &watching{ready: func() { ready++ }, on: func(e FileEvent) {
			out := path.IsAbs(e.Name) || e.Name == ".." || strings.HasPrefix(e.Name, "../")
			if ready != 1 || e.Kind == "" || out {
				t.Errorf("%+v", e)
			}
		}}
		at = min(max(at, 0), len(text))
		if w.take(text[:at]) == nil && w.take(text[at:]) == nil && len(w.text) > 2*contract.MaxPath {
			t.Errorf("%d bytes kept", len(w.text))
		}
	})
}

// Whatever the guest sends, the client neither panics nor keeps more than one frame.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(step(contract.StepStdout, 1, "hello") + step(contract.StepEnd, 1, "\x00\x00\x00\x01")))
	f.Add([]byte(step(contract.StepFailed, 1, "\x00\x00\x00\x02")))
	f.Fuzz(func(t *testing.T, text []byte) {
		c := New(io.Discard)
		var out bytes.Buffer
		told := func(_ *Command, pid int) {
			if pid < 1 || pid > contract.MaxPID {
				t.Errorf("the number %d", pid)
			}
		}
		cmd, err := c.Start(t.Context(), Exec{Args: []string{"x"}, Stdout: &out, Stderr: &out, PID: told})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Write(text)
		if len(c.in) > contract.StepHeader+contract.MaxChunk || out.Len() > len(text) {
			t.Errorf("%d bytes kept, %d printed of %d", len(c.in), out.Len(), len(text))
		}
		c.Close(err)
		<-cmd.Done()
	})
}
