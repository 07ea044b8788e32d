package guest

import (
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// readsUntil is a guest whose program reads until the first frame of that kind, and then ends.
func readsUntil(kind byte, took *strings.Builder) func(net.Conn) {
	return func(inside net.Conn) {
		for {
			got, payload, err := hostFrame(inside)
			if err != nil {
				return
			}
			if got == contract.FrameStdin {
				took.Write(payload)
			}
			if got == kind {
				sendFrame(inside, 'x', `{"code":0,"signal":0,"oom":false,"out":false}`)
				return
			}
		}
	}
}

// An error of standard input differs from its end.
func TestStdinThatBreaks(t *testing.T) {
	broken := errors.New("the sender hung up")
	half := func() io.Reader { return io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)) }
	for _, row := range []struct {
		name  string
		stdin io.Reader
		tty   bool
		took  string
		err   error
	}{
		{"it breaks", half(), false, "half", broken},
		{"at once", iotest.ErrReader(io.ErrUnexpectedEOF), false, "", io.ErrUnexpectedEOF},
		{"a terminal that hangs up", half(), true, "half", nil},
		{"it ends", strings.NewReader("whole"), false, "whole", nil},
		{"with its last bytes", iotest.DataErrReader(strings.NewReader("whole")), false, "whole", nil},
		{"none", nil, false, "", nil},
	} {
		var took strings.Builder
		served := make(chan struct{})
		c := start(t, withGuest(t, func(inside net.Conn) {
			defer close(served)
			sendFrame(inside, 'h', goodHello)
			_, _, _ = hostFrame(inside)
			sendFrame(inside, 's', "")
			readsUntil(contract.FrameStdinEnd, &took)(inside)
		}))
		if row.tty {
			c.resized = make(chan Size)
		}
		end, err := c.Stream(t.Context(), row.stdin, io.Discard, io.Discard)
		if <-served; end != (End{}) || err != nil || took.String() != row.took || !errors.Is(c.StdinErr(), row.err) ||
			(row.err == nil) != (c.StdinErr() == nil) {
			t.Errorf("%s: %+v %v; %q, %v", row.name, end, err, took.String(), c.StdinErr())
		}
	}
}

// The unread part of standard input is there for the next program, whose reads wait as if there had been none before.
func TestStdinInTurn(t *testing.T) {
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	defer to.Close()
	ours, theirs := loopback(t)
	for name, ends := range map[string]struct {
		from io.Reader
		to   io.Writer
	}{"a pipe": {from, to}, "a connection": {ours, theirs}} {
		for _, line := range []string{"one\n", "two\n", "three\n"} {
			var took strings.Builder
			served := make(chan struct{})
			c := start(t, withGuest(t, func(inside net.Conn) {
				defer close(served)
				sendFrame(inside, 'h', goodHello)
				_, _, _ = hostFrame(inside)
				sendFrame(inside, 's', "")
				_, _ = io.WriteString(ends.to, line)
				readsUntil(contract.FrameStdin, &took)(inside)
			}))
			end, err := c.Stream(t.Context(), ends.from, io.Discard, io.Discard)
			if <-served; end != (End{}) || err != nil || took.String() != line || c.StdinErr() != nil {
				t.Errorf("%s: %+v %v; %q, %v", name, end, err, took.String(), c.StdinErr())
			}
		}
	}
}

// deafReader accepts a deadline and ignores it.
type deafReader struct{ io.Reader }

func (deafReader) SetReadDeadline(time.Time) error { return nil }

// A reader that ignores its deadline delays nobody, and its later data is not sent.
func TestStdinThatIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := io.Pipe()
		s := NewStdin(deafReader{from})
		read := make(chan error)
		go func() {
			_, err := s.Read(make([]byte, 1))
			read <- err
		}()
		synctest.Wait()
		began := time.Now()
		s.Stop()
		if took := time.Since(began); took != stopPatience {
			t.Error(took)
		}
		to.CloseWithError(io.ErrUnexpectedEOF)
		if err := <-read; err != io.ErrUnexpectedEOF || s.Err() != nil {
			t.Error(err, s.Err())
		}
		s.Stop()
		if _, err := s.Read(make([]byte, 1)); err != io.EOF {
			t.Error(err)
		}
	})
}
