package fleet_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
)

// An attacker with a worker's credentials but not its key gets no secrets of a submitter that lists the keys.
func TestAttackWorkerKeys(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	config := workerConfig(ns.ClientURL(), 2)
	config.Key = bytes.Repeat([]byte{7}, 32)
	known := startWorker(t, config, script{})
	public := known.Info().Key
	run := func(keys ...[]byte) string {
		rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), WorkerKeys: keys})
		res, err := rt.Run(t.Context(), unitask.Request{Code: "secret TOKEN",
			Secrets: map[string]string{"TOKEN": "correct-horse-battery"}}, unitask.IO{})
		switch {
		case err == nil:
			return string(res.Stdout)
		case strings.Contains(err.Error(), "none of those that secrets are sent to"):
			return "refused"
		}
		return fmt.Sprint(err)
	}
	other := bytes.Repeat([]byte{8}, 32)
	attack.Check(t, "secrets for a worker whose key is listed", "21 bytes\n", run(other, public))
	attack.Check(t, "secrets for a worker whose key is not listed", "refused", run(other))
	attack.Check(t, "secrets where no keys are listed", "21 bytes\n", run())
	again, err := fleet.NewWorker(t.Context(), config, script{})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if !bytes.Equal(again.Info().Key, public) || bytes.Equal(public, config.Key) {
		t.Errorf("its key is %x, and was %x", again.Info().Key, public)
	}
	config.Key = []byte("short")
	if _, err := fleet.NewWorker(t.Context(), config, script{}); err == nil {
		t.Error("a short key is taken")
	}
	if _, err := fleet.Connect(fleet.Config{URL: ns.ClientURL(), WorkerKeys: [][]byte{[]byte("short")}}); err == nil {
		t.Error("a short key is listed")
	}
}

// An attacker with a worker's credentials but not its key changes a waiting run. The worker with the key gives the
// run's secrets to no other code.
func TestAttackWorkerKeysOtherCode(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	config := workerConfig(ns.ClientURL(), 1)
	config.Key = bytes.Repeat([]byte{7}, 32)
	public := startWorker(t, config, script{}).Info().Key
	rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), WorkerKeys: [][]byte{public}})
	_, js := dial(t, ns.ClientURL())
	kv, err := js.KeyValue(t.Context(), "unitask-runs-default")
	if err != nil {
		t.Fatal(err)
	}
	inState := func(state string) (id string, entry map[string]any) {
		keys, _ := kv.Keys(t.Context()) // an empty bucket is an error
		for _, id := range keys {
			v, err := kv.Get(t.Context(), id)
			if err == nil && json.Unmarshal(v.Value(), &entry) == nil && entry["state"] == state {
				return id, entry
			}
		}
		return "", nil
	}
	for _, row := range []struct{ what, task, want string }{
		{"as it was", "", "21 bytes\n"},
		{"other code", `{"request":{"code":"secret TOKEN","secrets":["TOKEN"],"allowNetAny":true}}`, "refused"},
	} {
		gate := filepath.Join(t.TempDir(), "gate")
		var before sync.WaitGroup
		before.Go(func() {
			if _, err := rt.Run(t.Context(), unitask.Request{Code: "wait " + gate}, unitask.IO{}); err != nil {
				t.Error(err)
			}
		})
		waitFor(t, func() bool { // it occupies the worker's one slot
			id, _ := inState("claimed")
			return id != ""
		})
		over := make(chan string, 1)
		go func() {
			res, err := rt.Run(t.Context(), unitask.Request{Code: "secret TOKEN",
				Secrets: map[string]string{"TOKEN": "correct-horse-battery"}}, unitask.IO{})
			switch {
			case err == nil:
				over <- string(res.Stdout)
			case strings.Contains(err.Error(), "was changed after"):
				over <- "refused"
			default:
				over <- err.Error()
			}
		}()
		id, entry := "", map[string]any(nil)
		waitFor(t, func() bool { id, entry = inState("queued"); return id != "" })
		if row.task != "" {
			entry["task"] = inlined(row.task)
			if _, err := kv.Put(t.Context(), id, []byte(asJSON(entry))); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a run with secrets is changed while it waits: "+row.what, row.want, <-over)
		before.Wait()
	}
}
