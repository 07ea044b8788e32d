package sessiond

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// Clients that send no code, or a little of it from time to time, do not keep the slots of large steps.
func TestAttackSlowCode(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"nothing": time.Hour, "a byte at a time": time.Second} {
		synctest.Test(t, func(t *testing.T) {
			h := &Daemon{large: make(chan struct{}, maxLarge)}
			ends := make(chan error, maxLarge)
			stop, over := context.WithCancel(t.Context())
			defer over()
			for range maxLarge {
				ctx, cancel := context.WithCancelCause(t.Context())
				here, there := net.Pipe()
				defer here.Close()
				defer there.Close()
				c := &client{wire: &wire{Conn: here}, input: make(chan []byte, 1), ctx: ctx, cancel: cancel}
				go c.read()
				go func() {
					_, err := h.runBy(ctx, c, nil, Step{})
					ends <- err
				}()
				go func() {
					w := &wire{Conn: there}
					for err := error(nil); err == nil; _, _, err = w.receive(string(rune(kindTaken))) {
						select {
						case <-time.After(pause):
						case <-stop.Done():
							return
						}
						_ = w.send(kindInput, []byte("x"))
					}
				}()
			}
			synctest.Wait()
			var last error
			for range maxLarge {
				select {
				case last = <-ends:
				case <-time.After(10 * time.Minute):
					last = errors.New("they keep them")
				}
			}
			const want = "the step's code did not come within 2m0s"
			attack.Check(t, "four clients send "+name+" of a large step's code", want, last.Error())
		})
	}
}
