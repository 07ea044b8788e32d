package engine

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// A run that names no kernel may be repeated on linux if the code asks for something that
// nanos lacks. Nothing may have left the first machine: no network, no standard input, no
// output.

// attempt watches the first run. A nil one watches none.
type attempt struct {
	live *egress.LiveRules

	mu   sync.Mutex // is taken after live's
	left bool       // something was printed
	over bool       // nothing more is passed on: the run will be repeated
}

// mayRetry returns an attempt if the run may be repeated, else nil.
func (x *Execution) mayRetry() *attempt {
	if !x.Code.Retry || x.Granted.Kernel != "" || x.Image.Kernel != image.Nanos || x.purpose.Debug != nil ||
		x.streams.Stdin != nil || policy.Reaches(x.Granted) {
		return nil
	}
	return &attempt{live: x.Live}
}

// writer notes what is printed.
func (a *attempt) writer(w io.Writer) io.Writer {
	if a == nil {
		return w
	}
	return noting{a, w}
}

type noting struct {
	a *attempt
	w io.Writer
}

func (n noting) Write(p []byte) (int, error) {
	n.a.mu.Lock()
	defer n.a.mu.Unlock()
	if n.a.over {
		return len(p), nil
	}
	n.a.left = n.a.left || len(p) > 0
	return n.w.Write(p)
}

// giveUp reports whether the run must be repeated, if it still may. If so, it cuts the machine's network, which a
// change of the policy could have opened.
func (a *attempt) giveUp(cut func()) bool {
	a.live.Lock()
	defer a.live.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over = a.over || !a.left && !a.live.Opened()
	if a.over {
		cut()
	}
	return a.over
}

// watch ends the run when the code asks for something that the kernel lacks; done ends the
// watch.
func (a *attempt) watch(m *machine.Machine, cancel context.CancelCauseFunc, done <-chan struct{}) {
	select {
	case <-m.Lacking():
		if a.giveUp(m.Cut) {
			cancel(failure.ErrRetry)
		}
	case <-done:
	}
}

// consoleDelay bounds how much later than the code's end its missing feature appears on the
// console: the two come by different ways.
const consoleDelay = 100 * time.Millisecond

// ended reports whether a run that has failed must be repeated.
func (a *attempt) ended(m *machine.Machine, code int) bool {
	if a == nil || code == 0 {
		return false
	}
	select {
	case <-m.Lacking():
		return a.giveUp(m.Cut)
	case <-time.After(consoleDelay):
		return false
	}
}
