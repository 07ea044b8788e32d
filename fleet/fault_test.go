package fleet_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// A worker is killed while it executes a repeatable run and one that must not be repeated.
func TestWorkerKilled(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	first, kill := startProcess(t, ns.ClientURL(), log)
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	type end struct {
		res *unitask.Result
		err error
	}
	ends := map[string]chan end{}
	for name, req := range map[string]unitask.Request{
		"again": {Code: "out begun\nwait " + filepath.Join(dir, "gate") + "\nout ended"},
		"once":  {Code: "out begun\nwait " + filepath.Join(dir, "gate") + "\nout ended", AllowNet: []string{"example.com"}},
	} {
		ends[name] = make(chan end, 1)
		go func() {
			res, err := rt.Run(context.Background(), req, unitask.IO{})
			ends[name] <- end{res, err}
		}()
	}
	waitFor(t, func() bool { return len(lines(log)) == 2 })
	_, killSecond := startProcess(t, ns.ClientURL(), log)
	defer killSecond()
	kill()
	if err := note(filepath.Join(dir, "gate"), ""); err != nil {
		t.Fatal(err)
	}
	if e := <-ends["again"]; e.err != nil || string(e.res.Stdout) != "begun\nended\n" ||
		!strings.Contains(e.res.Retried, "was lost") || !strings.Contains(e.res.Retried, "attempt 2") {
		t.Errorf("%v %s", e.err, asJSON(e.res))
	}
	e := <-ends["once"]
	var lost *unitask.LostError
	if !errors.As(e.err, &lost) || e.res.Outcome != unitask.OutcomeLost || string(e.res.Stdout) != "begun\n" {
		t.Errorf("%v %s", e.err, asJSON(e.res))
	} else if !strings.Contains(e.err.Error(), first) {
		t.Errorf("%v does not name worker %s", e.err, first)
	}
	started := map[string]int{}
	for _, id := range lines(log) {
		started[id]++
	}
	if e.res == nil || started[e.res.RunID] != 1 || len(started) != 2 {
		t.Errorf("started: %v; the one that may not be made again is to be there once", started)
	}
}

// The only worker is killed: a run that must not be repeated does not wait for another worker.
func TestOnlyWorkerKilled(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	log := filepath.Join(t.TempDir(), "log")
	_, kill := startProcess(t, ns.ClientURL(), log)
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), Times: quick})
	go func() {
		waitFor(t, func() bool { return len(lines(log)) == 1 })
		kill()
	}()
	res, err := rt.Run(t.Context(), unitask.Request{Code: "sleep 1h", AllowNetAny: true}, unitask.IO{})
	if !errors.As(err, new(*unitask.LostError)) || res.Outcome != unitask.OutcomeLost {
		t.Errorf("%v %s", err, asJSON(res))
	}
}

// A stopping worker returns its repeatable runs to the queue.
func TestDrain(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	log := filepath.Join(t.TempDir(), "log")
	config := workerConfig(ns.ClientURL(), 1)
	config.Drain = time.Millisecond
	w := startWorker(t, config, script{log})
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL()})
	over := make(chan error, 1)
	go func() {
		res, err := rt.Run(context.Background(), unitask.Request{Code: "sleep 300ms\nout ended"}, unitask.IO{})
		if err == nil && string(res.Stdout) != "ended\n" {
			err = errors.New(asJSON(res))
		}
		over <- err
	}()
	waitFor(t, func() bool { return len(lines(log)) == 1 })
	startWorker(t, workerConfig(ns.ClientURL(), 1), script{log})
	if err := client.Drain(t.Context(), "nobody"); !errors.Is(err, fleet.ErrNoWorker) {
		t.Errorf("a worker that is not there: %v", err)
	}
	if !client.There(t.Context(), w.Info().ID) || client.There(t.Context(), "nobody") {
		t.Error("a worker is there, and nobody is not")
	}
	if err := client.Drain(t.Context(), w.Info().ID); err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		t.Error(err)
	}
	if ran := lines(log); len(ran) != 2 || ran[0] != ran[1] {
		t.Errorf("started: %q", ran)
	}
}

// A run that worker after worker returns is not lost. It reports its number of starts, even to a late submitter.
func TestGivenBack(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	dir := t.TempDir()
	log, gate := filepath.Join(dir, "log"), filepath.Join(dir, "gate")
	config := workerConfig(ns.ClientURL(), 1)
	config.Drain = time.Millisecond
	w := startWorker(t, config, script{log})
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL()})
	client.RunID = "given-back"
	req := unitask.Request{Code: "wait " + gate + "\nout ended"}
	over := make(chan *unitask.Result, 1)
	go func() {
		res, err := rt.Run(context.Background(), req, unitask.IO{})
		if err != nil {
			t.Error(err)
		}
		over <- res
	}()
	const times = 5 // more than the allowed losses of a run
	for n := range times - 1 {
		waitFor(t, func() bool { return len(lines(log)) == n+1 })
		next := startWorker(t, config, script{log})
		w.Drain()
		w = next
	}
	waitFor(t, func() bool { return len(lines(log)) == times })
	if err := note(gate, ""); err != nil {
		t.Fatal(err)
	}
	late, other := submitter(t, fleet.Config{URL: ns.ClientURL()})
	other.RunID = "given-back"
	first := <-over
	second, err := late.Run(t.Context(), req, unitask.IO{})
	if err != nil {
		t.Fatal(err)
	}
	for who, res := range map[string]*unitask.Result{"first": first, "late": second} {
		if res == nil || res.Outcome != unitask.OutcomeExited || string(res.Stdout) != "ended\n" ||
			!strings.Contains(res.Retried, "went away") || !strings.Contains(res.Retried, "attempt 5") {
			t.Errorf("%s: %s", who, asJSON(res))
		}
	}
	if runs, err := client.Runs(t.Context(), 1); err != nil || len(runs) != 1 || runs[0].Attempt != times ||
		runs[0].Losses != 0 {
		t.Errorf("%v %s", err, asJSON(runs))
	}
}
