package guest

import (
	"fmt"

	"github.com/unitask/unitask/guest/contract"
)

// Draft takes what code was compiled to, part by part. One that can't be kept says so to nobody: the run continues.
type Draft interface {
	// Write takes the next part.
	Write(part []byte)
	// Keep is called when all of it was written, and before the guest runs any of it.
	Keep()
}

// handOut is a program that the guest hands out before it runs it.
type handOut struct {
	to   Draft
	size int           // so far
	done chan struct{} // closed when the host has all of it: the code may run
}

// HandOut has the guest hand out what the code is compiled to, which goes to a draft, while Stream carries the
// streams. It must come before Start, whose Compiled asks for it, too. The code runs when the host has the program,
// and standard input is sent from then on only: until then there is nothing in the guest of what the code may be told
// but its arguments. A program that is larger than contract.MaxProgram comes as an empty one. The guest may hand out
// nothing, where the code does not compile.
func (c *Conn) HandOut(to Draft) error {
	c.handOut = &handOut{to: to, done: make(chan struct{})}
	if err := c.send(contract.FrameHandOut, nil); err != nil {
		return fmt.Errorf("hand out: %w", err)
	}
	return nil
}

// take takes a part; an empty one is the end.
func (h *handOut) take(part []byte) error {
	if h == nil {
		return violation("a program that nobody asked for")
	}
	select {
	case <-h.done:
		return violation("part of a program when it has run")
	default:
	}
	if h.size += len(part); h.size > contract.MaxProgram {
		return violation("a program of more than %d bytes", contract.MaxProgram)
	}
	if len(part) > 0 {
		h.to.Write(part)
		return nil
	}
	if h.size > 0 {
		h.to.Keep()
	}
	close(h.done)
	return nil
}
