package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// A worker is killed while it runs one that may be made again, and one that may not.
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
	if e := <-ends["again"]; e.err != nil || string(e.res.Stdout) != "begun\nended\n" || !strings.Contains(e.res.Retried, "lost") {
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

// The only worker is killed: what may not be made again does not wait for another one.
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

// A worker that goes puts back what may be made again.
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

// Many runs, each submitted by two, and workers that are killed one after another: every run ends exactly once, and both submitters are told the same.
func TestFaults(t *testing.T) {
	t.Parallel()
	const runs = 60
	ns := startNATS(t, nil)
	log := filepath.Join(t.TempDir(), "log")
	stop := make(chan struct{})
	var killing sync.WaitGroup
	_, kill := startProcess(t, ns.ClientURL(), log)
	startProcess(t, ns.ClientURL(), log)
	killing.Go(func() {
		for n := 0; n < 3; n++ {
			seen := len(lines(log))
			for len(lines(log)) < seen+runs/6 { // it has something under way
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
			}
			kill()
			_, kill = startProcess(t, ns.ClientURL(), log)
		}
	})
	type end struct{ out, outcome string }
	var mu sync.Mutex
	ends := map[string][]end{}
	var submitting sync.WaitGroup
	for s := range 2 {
		config := fleet.Config{URL: ns.ClientURL(), Times: quick}
		home := t.TempDir()
		slots := make(chan struct{}, 16)
		for n := range runs {
			submitting.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				id := fmt.Sprintf("run-%03d", (n+s*runs/2)%runs)
				client, err := fleet.Connect(config)
				if err != nil {
					t.Error(err)
					return
				}
				defer client.Close()
				client.RunID = id
				rt, err := unitask.Open(unitask.Options{Home: home, Fleet: client})
				if err != nil {
					t.Error(err)
					return
				}
				defer rt.Close()
				req := unitask.Request{Code: "out " + id + "\nsleep 30ms\nout done"}
				if strings.HasSuffix(id, "7") {
					req.AllowNet = []string{"example.com"}
				}
				res, err := rt.Run(context.Background(), req, unitask.IO{})
				mu.Lock()
				defer mu.Unlock()
				if res == nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				ends[id] = append(ends[id], end{string(res.Stdout), string(res.Outcome)})
			})
		}
	}
	submitting.Wait()
	close(stop)
	killing.Wait()
	started := map[string]int{}
	for _, id := range lines(log) {
		started[id]++
	}
	lost, again := 0, 0
	for id, both := range ends {
		once := strings.HasSuffix(id, "7")
		switch {
		case len(both) != 2 || both[0].outcome != both[1].outcome:
			t.Errorf("%s ended as %v", id, both)
		case both[0].outcome == "lost" && once:
			lost++
		case both[0].outcome != "exited":
			t.Errorf("%s ended as %v", id, both)
		case slices.ContainsFunc(both, func(e end) bool { return e.out != id+"\ndone\n" }):
			t.Errorf("%s printed %q", id, both)
		}
	}

	for id, n := range started { // the id is the submitter's
		if n > 1 && strings.HasSuffix(id, "7") {
			t.Errorf("%s may run once, and was started %d times", id, n)
		}
		again += n - 1
	}
	if len(ends) != runs {
		t.Errorf("%d runs ended, want %d", len(ends), runs)
	}
	t.Logf("%d runs, %d lost, %d made again", runs, lost, again)
}
