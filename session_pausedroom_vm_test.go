package unitask_test

import (
	"errors"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// Paused sessions count with the disk space that they take: pages of zeros take none. One that is being paused needs
// room for all of its memory.
func TestPausedRoom(t *testing.T) {
	needClones(t)
	rt := openRuntime(t, unitask.Options{Home: newHome(t)})
	ceiling, err := policy.ParseCeiling("test", []byte("pausedBytes = 805306368\n")) // 768 MiB
	if err != nil {
		t.Fatal(err)
	}
	var all []*unitask.Session
	for range 3 {
		s, err := rt.NewSessionFor(t.Context(), unitask.Caller{Ceiling: ceiling}, unitask.SessionRequest{
			Request: unitask.Request{Language: "python", MemoryMB: 512}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		all = append(all, s)
	}
	value(t, all[1], "python", "import os; held = os.urandom(200 << 20); len(held)")
	for i, s := range all[:2] {
		if err := s.Pause(t.Context()); err != nil {
			t.Fatalf("session %d: %v", i, err)
		}
	}
	if err := all[2].Pause(t.Context()); !errors.As(err, new(*unitask.BusyError)) {
		t.Errorf("beside one that takes 200 MiB: %v", err)
	}
	if err := all[1].Close(); err != nil {
		t.Fatal(err)
	}
	if err := all[2].Pause(t.Context()); err != nil {
		t.Errorf("after that one has ended: %v", err)
	}
}
