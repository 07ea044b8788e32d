package mcp

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/unitask/unitask/internal/attack"
)

// A caller whose calls hang has half of the slots, and its waiting calls take none of the others.
func TestAttackFiling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFiling(maxFileCalls)
		hanging, cancel := context.WithCancel(t.Context())
		in, out := make(chan func(), 100), make(chan error, 100)
		for range 20 {
			go func() {
				leave, err := f.enter(hanging, "a")
				if err != nil {
					out <- err
					return
				}
				in <- leave
			}()
		}
		synctest.Wait()
		attack.Check(t, "calls of one caller that hang", fmt.Sprint(maxFileCalls/2), fmt.Sprint(len(in)))
		done := false
		go func() {
			leave, err := f.enter(t.Context(), "b")
			if err != nil {
				t.Error(err)
				return
			}
			leave()
			done = true
		}()
		synctest.Wait()
		attack.Check(t, "another caller's call", "true", fmt.Sprint(done))
		cancel()
		synctest.Wait()
		for range 20 - maxFileCalls/2 {
			if err := <-out; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		for range maxFileCalls / 2 {
			(<-in)()
		}
		if len(f.own) != 0 || len(f.all) != 0 {
			t.Errorf("left: %v, %d", f.own, len(f.all))
		}
	})
}
