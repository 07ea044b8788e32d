package guest

import (
	"fmt"

	"github.com/unitask/unitask/guest/contract"
)

// Draft receives the compiled code, part by part. A failure to store it is not reported: the run continues.
type Draft interface {
	// Write receives the next part.
	Write(part []byte)
	// Keep is called when all parts are written, before the guest runs the program.
	Keep()
}

// handOut is a program that the guest hands out before it runs it.
type handOut struct {
	to   Draft
	size int           // bytes so far
	done chan struct{} // closed when the host has all of it: the code may run
}

// HandOut makes the guest send the compiled program to a draft, while Stream carries the streams. It must be called
// before Start, whose Compiled requests the program, too. The code runs, and standard input is sent, only when the host
// has the program. Before that, the guest has none of the code's input except its arguments. A program larger than
// contract.MaxProgram arrives empty. The guest may hand out nothing if the code does not compile.
func (c *Conn) HandOut(to Draft) error {
	c.handOut = &handOut{to: to, done: make(chan struct{})}
	if err := c.send(contract.FrameHandOut, nil); err != nil {
		return fmt.Errorf("hand out: %w", err)
	}
	return nil
}

// take processes a part; an empty part is the end.
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
