package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// How frames are sent. A program may read nothing, or half of a frame, as long as its machine exists. So a
// waiting sender can be stopped, and its frame is still completed, because nothing after half a frame could be
// read.

// frame is a frame being sent.
type frame struct {
	done chan struct{}
	err  error
}

// errStopped means that a sender was told to stop waiting.
var errStopped = errors.New("stopped")

// cause replaces errStopped with the context's cause.
func cause(ctx context.Context, err error) error {
	if err == errStopped {
		return context.Cause(ctx)
	}
	return err
}

// turn waits for the turn to send, which pass ends.
func (c *Client) turn(stop <-chan struct{}) error {
	select {
	case c.sending <- struct{}{}:
		return nil
	case <-stop:
		return errStopped
	case <-c.gone:
		return c.over
	}
}

func (c *Client) pass() { <-c.sending }

// begin sends a frame for the holder of the turn. The frame is sent completely, however long the program takes.
// Afterwards begin calls then.
func (c *Client) begin(kind byte, id uint32, payload []byte, then func()) *frame {
	f := &frame{done: make(chan struct{})}
	go func() {
		defer then()
		f.err = c.write(kind, id, payload)
		close(f.done)
	}()
	return f
}

func (c *Client) send(stop <-chan struct{}, kind byte, id uint32, payload []byte) error {
	if err := c.turn(stop); err != nil {
		return err
	}
	f := c.begin(kind, id, payload, c.pass)
	select {
	case <-f.done:
		return f.err
	case <-stop:
		return errStopped
	case <-c.gone:
		return c.over
	}
}

func (c *Client) write(kind byte, id uint32, payload []byte) error {
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, contract.StepHeader+len(payload)), uint32(len(payload)))
	frame = binary.BigEndian.AppendUint32(append(frame, kind), id)
	_, err := c.to.Write(append(frame, payload...))
	return err
}

// Hold makes the program hold its output, and returns when nothing is in transit in either direction. Sends wait
// for Continue, which must be called, whatever Hold returns. One goroutine calls both.
func (c *Client) Hold(ctx context.Context) error {
	if err := c.turn(ctx.Done()); err != nil {
		return cause(ctx, err)
	}
	held := make(chan struct{})
	c.mu.Lock()
	c.holding = held
	c.asked++
	c.mu.Unlock()
	c.holds = c.begin(contract.StepHold, 0, nil, func() {})
	for sent := c.holds.done; ; sent = nil {
		select {
		case <-sent:
			if c.holds.err != nil {
				return c.holds.err
			}
		case <-held:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.gone:
			return c.over
		}
	}
}

var errTakesNothing = errors.New("the session's program takes nothing")

// Continue ends Hold. It waits up to KillPatience until the program has read that. A program that reads nothing
// gets it as soon as it reads again.
//
// If to is not nil, it replaces the program's standard input. Continue then does not wait: its frame is the first
// on the new input. Call Continue after the last Write of the old output, and before the first Write of the new
// one. It drops an incomplete frame of the old output.
func (c *Client) Continue(to io.Writer) error {
	held := c.holds
	if c.holds = nil; held == nil {
		if to == nil {
			return nil // Hold did not get the turn
		}
		if err := c.turn(nil); err != nil {
			return err
		}
	}
	if to != nil {
		c.in = c.in[:0]
	}
	done := make(chan error, 1)
	go func() {
		defer c.pass()
		if held != nil {
			<-held.done
		}
		if to != nil {
			c.to = to
		}
		err := c.write(contract.StepContinue, 0, nil)
		for ; err == nil && len(c.cut) > 0; c.cut = c.cut[1:] {
			err = c.write(contract.StepSignal, c.cut[0], []byte{byte(syscall.SIGKILL)})
		}
		done <- err
	}()
	if to != nil {
		return nil
	}
	select {
	case err := <-done:
		return err
	case <-c.gone:
		return c.over
	case <-time.After(KillPatience):
		return errTakesNothing
	}
}
