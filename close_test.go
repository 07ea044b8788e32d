package unitask_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
)

// A closed runtime starts nothing, and says so.
func TestClosed(t *testing.T) {
	home := testdir.Private(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := rt.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for name, call := range map[string]func() error{
		"Run": func() error { _, err := rt.Run(t.Context(), unitask.Request{Code: "1"}, unitask.IO{}); return err },
		"RunFor": func() error {
			_, err := rt.RunFor(t.Context(), unitask.Caller{}, unitask.Request{}, unitask.IO{})
			return err
		},
		"MakeTemplate": func() error { _, err := rt.MakeTemplate(t.Context(), unitask.MachineClass{}); return err },
		"ServePool":    func() error { return rt.ServePool(t.Context(), time.Minute) },
	} {
		if err := call(); !errors.Is(err, unitask.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r := rt.Doctor(t.Context()); r.OK || len(r.Checks) != 1 {
		t.Errorf("Doctor: %+v", r)
	}
	if left, _ := os.ReadDir(home); len(left) != 0 {
		t.Errorf("in the home: %v", left)
	}
}

// Close waits for a current run, and refuses the next.
func TestCloseWaits(t *testing.T) {
	needVM(t)
	started := make(chan struct{})
	rt, err := unitask.Open(unitask.Options{Home: newHome(t), Events: func(e unitask.Event) {
		if e.Kind == unitask.EventStarted {
			close(started)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended, closed := make(chan *unitask.Result, 1), make(chan struct{})
	go func() {
		res, _ := rt.Run(ctx, unitask.Request{Code: `setInterval(() => {}, 1000)`}, unitask.IO{})
		ended <- res
	}()
	<-started
	go func() {
		rt.Close()
		close(closed)
	}()
	for !errors.Is(err, unitask.ErrClosed) { // until Close has started
		_, err = rt.MakeTemplate(t.Context(), unitask.MachineClass{Arch: "none"})
	}
	select {
	case <-closed:
		t.Error("Close did not wait")
	case <-ended:
		t.Error("the run has ended")
	default:
	}
	cancel()
	<-closed
	select {
	case res := <-ended:
		if res == nil || res.Outcome != unitask.OutcomeCancelled {
			t.Errorf("%+v", res)
		}
	case <-time.After(5 * time.Second):
		t.Error("Close did not wait for the run's end")
	}
	if left := qemuChildren(t, os.Getpid()); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
