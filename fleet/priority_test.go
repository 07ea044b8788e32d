package fleet_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
)

// The highest priority goes first, a lower one does not starve, and a full queue of one priority does not delay the
// others.
func TestPriorities(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	dir := t.TempDir()
	log, gate := filepath.Join(dir, "log"), filepath.Join(dir, "gate")
	startWorker(t, workerConfig(ns.ClientURL(), 1), script{log})
	var submitting sync.WaitGroup
	defer submitting.Wait()
	submit := func(id string, p fleet.Priority) {
		rt, client := submitter(t, fleet.Config{URL: ns.ClientURL()})
		client.RunID, client.Priority = id, p
		submitting.Go(func() {
			if _, err := rt.Run(context.Background(), unitask.Request{Code: "wait " + gate}, unitask.IO{}); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		})
	}
	submit("before", "") // occupies the one slot
	waitFor(t, func() bool { return len(lines(log)) == 1 })
	for n := range 10 {
		submit(fmt.Sprintf("low-%d", n), fleet.Low)
		submit(fmt.Sprintf("normal-%d", n), fleet.Normal)
		submit(fmt.Sprintf("high-%d", n), fleet.High)
	}
	_, client := submitter(t, fleet.Config{URL: ns.ClientURL()})
	waitFor(t, func() bool {
		queue, err := client.Queue(t.Context())
		return err == nil && len(queue) == 3 && queue[0].Runs == 10 && queue[1].Runs == 10 && queue[2].Runs == 11
	})
	if err := note(gate, ""); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(lines(log)) == 31 })
	ran := lines(log)
	of := func(p string, list []string) (n int) {
		for _, id := range list {
			if strings.HasPrefix(id, p) {
				n++
			}
		}
		return n
	}
	// The eighth is of low priority, the sixteenth of normal, and so on in turn.
	if of("high", ran[1:7]) != 6 || of("low", ran[7:8]) != 1 || of("high", ran[8:12]) != 4 ||
		of("normal", ran[12:21]) != 9 {
		t.Errorf("ran in the order %q", ran)
	}
	if unique := slices.Compact(slices.Sorted(slices.Values(ran))); len(unique) != 31 {
		t.Errorf("%d of 31 ran", len(unique))
	}
	if _, err := fleet.ParsePriority("urgent"); err == nil || !strings.Contains(err.Error(), "high, normal or low") {
		t.Errorf("%v", err)
	}
}
