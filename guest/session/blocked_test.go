package session

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// A program that takes nothing any more holds up neither a time limit nor whoever reads what it says.
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
	waits, err := c.Start(Exec{Args: []string{"x"}})
	if err != nil {
		t.Fatal(err)
	}
	prints, err := c.Start(Exec{Args: []string{"x"}, Stdout: &limited{most: 1}})
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
}
