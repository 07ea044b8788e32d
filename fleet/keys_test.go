package fleet_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/internal/attack"
)

// Who has a worker's credentials and not its key gets no secrets of a submitter that lists the keys.
func TestAttackWorkerKeys(t *testing.T) {
	t.Parallel()
	ns := startNATS(t, nil)
	config := workerConfig(ns.ClientURL(), 2)
	config.Key = bytes.Repeat([]byte{7}, 32)
	known := startWorker(t, config, script{})
	public := known.Info().Key
	run := func(keys ...[]byte) string {
		rt, _ := submitter(t, fleet.Config{URL: ns.ClientURL(), WorkerKeys: keys})
		res, err := rt.Run(t.Context(), unitask.Request{Code: "secret TOKEN", Secrets: map[string]string{"TOKEN": "correct-horse-battery"}}, unitask.IO{})
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
