package fleet_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/fleet"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testhome"
	"github.com/unitask/unitask/policy"
)

// A runtime whose runs go to a fleet has no sessions. Its error says who has them, and that a session starts on a
// worker.
func TestSessionOfRuntime(t *testing.T) {
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	testhome.Ready(t, base, image.Linux)
	ns := startNATS(t, nil)
	worker, err := unitask.Open(unitask.Options{Home: testhome.New(t, base)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { worker.Close() })
	w := startWorker(t, workerConfig(ns.ClientURL(), 2), fleet.OnHost(worker, nil))
	rt, client := submitter(t, fleet.Config{URL: ns.ClientURL()})

	ask := unitask.SessionRequest{Request: unitask.Request{Language: "python"}}
	_, started := rt.NewSession(t.Context(), ask)
	_, revived := rt.Revive(t.Context(), unitask.Caller{}, "2026-a-session", nil)
	for what, err := range map[string]error{"started": started, "revived": revived} {
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "fleet" ||
			!strings.Contains(err.Error(), "fleet.Client.NewSession") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if runs, err := rt.Runs().IDs(); err != nil || len(runs) != 0 || w.Info().Running != 0 {
		t.Errorf("something ran: %v %v", runs, err)
	}

	for _, name := range []string{"words", "alpine:3.20", "python\x1b[2J"} {
		_, err := client.NewSession(t.Context(), unitask.Caller{},
			unitask.SessionRequest{Request: unitask.Request{Image: name}})
		var field *policy.FieldError
		if !errors.As(err, &field) || field.Field != "image" ||
			!strings.Contains(err.Error(), "has no sessions on a fleet") || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v", name, err)
		}
	}

	s, err := client.NewSession(t.Context(), unitask.Caller{}, ask)
	if err != nil {
		t.Fatal(err)
	}
	value(t, s, "x = 40; x", "40")
	value(t, client.Session(s.ID), "x + 2", "42")
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	waitFor(t, func() bool { return w.Info().Running == 0 && w.Info().UsedMB == 0 })
}
