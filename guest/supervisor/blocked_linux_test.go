package supervisor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/testwait"
)

// A program that no longer reads delays neither a time limit nor a reader of its output.
func TestTakesNothing(t *testing.T) {
	t.Parallel()
	program, to := io.Pipe()
	defer program.Close()
	c := New(to)
	took := make(chan struct{})
	go func() { // both starts, and no more
		defer close(took)
		for range 4 {
			head := make([]byte, contract.StepHeader)
			if _, err := io.ReadFull(program, head); err != nil {
				return
			}
			_, _ = io.CopyN(io.Discard, program, int64(binary.BigEndian.Uint32(head)))
		}
	}()
	waits, err := c.Start(t.Context(), Exec{Args: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	prints, err := c.Start(t.Context(), Exec{Args: []string{"x"},
		Stdout: &bounded.Writer{To: io.Discard, Left: 1, Err: errTooMuch}})
	if err != nil {
		t.Fatal(err)
	}
	<-took
	late := errors.New("late")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(late)
	done := make(chan error, 2)
	go func() {
		_, err := waits.Wait(ctx)
		done <- err
	}()
	go func() {
		_, err := c.Write([]byte(step(contract.StepStdout, 2, strings.Repeat("x", 10))))
		if err == nil {
			<-prints.Done()
			err = prints.err
		}
		done <- err
	}()
	for range 2 {
		select {
		case err := <-done:
			if !errors.Is(err, late) && !errors.Is(err, errTooMuch) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("it is held up")
		}
	}

	briefly := func() context.Context {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, late)
		t.Cleanup(cancel)
		return ctx
	}
	if err := c.Hold(briefly()); !errors.Is(err, late) {
		t.Errorf("hold: %v", err)
	}
	if err := c.Continue(nil); err != nil {
		t.Errorf("go on behind a hold that had no turn: %v", err)
	}
	if _, err := c.Start(briefly(), Exec{Args: []string{"x"}}); !errors.Is(err, late) {
		t.Errorf("start: %v", err)
	}
}

// If the caller stops waiting, a started message is sent completely once the program reads again, with the data that
// belongs to it.
func TestTakesAgain(t *testing.T) {
	t.Parallel()
	late := errors.New("late")
	for _, row := range []struct {
		name string
		do   func(c *Client, briefly context.Context) error
		sent string // the types of its frames
	}{
		{"hold", func(c *Client, briefly context.Context) error {
			return errors.Join(c.Hold(briefly), c.Continue(nil))
		}, "HG"},
		{"start", func(c *Client, briefly context.Context) error {
			_, err := c.Start(briefly, Exec{Args: []string{"x"}})
			return err
		}, "XK"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			program, to := io.Pipe()
			defer program.Close()
			c := New(to)
			half := make([]byte, contract.StepHeader/2)
			read := make(chan error, 1)
			go func() {
				_, err := io.ReadFull(program, half)
				read <- err
			}()
			briefly, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, late)
			defer cancel()
			if err := row.do(c, briefly); !errors.Is(err, late) {
				t.Fatal(err)
			}
			if err := <-read; err != nil {
				t.Fatal(err)
			}
			from := io.MultiReader(bytes.NewReader(half), program)
			next := func() byte {
				head := make([]byte, contract.StepHeader)
				if _, err := io.ReadFull(from, head); err != nil {
					t.Fatal(err)
				}
				if _, err := io.CopyN(io.Discard, from, int64(binary.BigEndian.Uint32(head))); err != nil {
					t.Fatal(err)
				}
				return head[4]
			}
			for _, kind := range row.sent {
				if got := next(); got != byte(kind) {
					t.Errorf("%c in the place of %c", got, kind)
				}
			}
			// An answer to an earlier question does not answer this one.
			held := make(chan error, 1)
			go func() { held <- c.Hold(within(t)) }()
			if got := next(); got != contract.StepHold {
				t.Errorf("%c is sent next", got)
			}
			answers := strings.Count(row.sent, "H") + 1
			for i := range answers {
				if i == answers-1 {
					select {
					case err := <-held:
						t.Errorf("held before it has said so: %v", err)
					case <-time.After(20 * time.Millisecond):
					}
				}
				if _, err := c.Write([]byte(step(contract.StepHeld, 0, ""))); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-held; err != nil {
				t.Error(err)
			}
			go func() { _, _ = io.Copy(io.Discard, from) }()
			if err := c.Continue(nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// A machine that is stopped when its session continues does not end the session. If a machine sends data before it has
// confirmed the continuation, that data is read from the first byte, whatever it sent last.
func TestSpeaksBeforeItGoesOn(t *testing.T) {
	t.Parallel()
	c := New(io.Discard)
	if _, err := c.Start(t.Context(), Exec{Args: []string{"x"}}); err != nil {
		t.Fatal(err)
	}
	flood := []byte(strings.Repeat(step(contract.StepStdout, 1, "x"), 100))
	for round := range 5 {
		program, to := io.Pipe()
		defer program.Close()
		if err := c.Continue(to); err != nil { // nobody reads it yet
			t.Fatalf("round %d: %v", round, err)
		}
		asked, over := make(chan struct{}), make(chan error, 1)
		var said atomic.Int64
		go func() { // the program's messages
			for at := 0; ; at = (at + 1) % len(flood) {
				said.Add(1)
				_, err := c.Write(flood[:at])
				if err == nil {
					_, err = c.Write(flood[at:])
				}
				select {
				case <-asked:
					if err == nil {
						_, err = c.Write([]byte(step(contract.StepHeld, 0, "") + "\xff\xff\xff"))
					}
				default:
					if err == nil {
						continue
					}
				}
				if err != nil {
					c.Close(err)
				}
				over <- err
				return
			}
		}()
		testwait.Until(t, "it has said much", func() bool { return said.Load() > 1000 })
		kinds := make(chan string, 1)
		go func() { // its input
			defer close(asked)
			var taken []byte
			for !bytes.HasSuffix(taken, []byte{contract.StepHold}) {
				head := make([]byte, contract.StepHeader)
				if _, err := io.ReadFull(program, head); err != nil {
					break
				}
				taken = append(taken, head[4])
			}
			kinds <- string(taken)
		}()
		err := c.Hold(within(t))
		if said := <-over; said != nil || err != nil {
			t.Fatalf("round %d: it says %v; hold: %v", round, said, err)
		}
		if got := <-kinds; got != "GH" {
			t.Errorf("round %d: it took %q", round, got)
		}
	}
}
