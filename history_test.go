package unitask_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// An unreadable record is as old as its id says, and a paused session keeps its record.
func TestPruneKeeps(t *testing.T) {
	home := testdir.Private(t)
	rt, err := unitask.Open(unitask.Options{Home: home})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	made := func(at time.Time, end func(*record.Run) error) string {
		rec, err := rt.Runs().CreateAs(at.UTC().Format("20060102-150405")+"000-abcdef", at, "me", record.ViaCLI, "code.js",
			nil, nil)
		if err == nil {
			err = end(rec)
		}
		if err != nil {
			t.Fatal(err)
		}
		return rec.ID
	}
	hours := func(n time.Duration) time.Time { return time.Now().Add(-n * time.Hour) }
	finish := func(rec *record.Run) error { return rec.Finish(time.Now()) }
	newer := func(rec *record.Run) error { rec.SchemaVersion = 99; return finish(rec) }
	unmade := func(rec *record.Run) error { // as it is before it has its lock
		return errors.Join(finish(rec), os.Remove(rt.Runs().Path(rec.ID, "run.json")),
			os.Remove(rt.Runs().Path(rec.ID, "lock")))
	}
	ids := map[string]string{
		"old": made(hours(50), finish), "old, of a newer schema": made(hours(40), newer), "new": made(hours(2), finish),
		"new, of a newer schema": made(hours(1), newer), "being made": made(hours(0), unmade),
		"old, paused": made(hours(60),
			func(rec *record.Run) error { rec.Status = record.Paused; return errors.Join(rec.Update(), rec.Leave()) }),
		"unknown": "no-id-of-ours",
	}
	folder := filepath.Join(home, "sessions", ids["old, paused"])
	if err := errors.Join(os.MkdirAll(folder, 0o700), os.Mkdir(rt.Runs().Path(ids["unknown"], ""), 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		keep int
		age  time.Duration
		gone []string
	}{
		{0, 24 * time.Hour, []string{"old", "old, of a newer schema"}},
		{0, 0, []string{"new", "new, of a newer schema", "unknown"}},
	} {
		n, err := rt.History().Prune(row.keep, row.age)
		if err != nil || n != len(row.gone) {
			t.Errorf("older than %s: %d removed, %v", row.age, n, err)
		}
		for _, name := range row.gone {
			if _, err := os.Stat(rt.Runs().Path(ids[name], "")); err == nil {
				t.Errorf("older than %s: %s is there", row.age, name)
			}
			delete(ids, name)
		}
		for name, id := range ids {
			if _, err := os.Stat(rt.Runs().Path(id, "")); err != nil {
				t.Errorf("older than %s: %s: %v", row.age, name, err)
			}
		}
	}
	paused := ids["old, paused"]
	if err := rt.History().Remove(paused); !errors.Is(err, history.ErrPaused) {
		t.Error(err)
	}
	if err := os.Remove(folder); err != nil { // the one that ended with its session
		t.Fatal(err)
	}
	if err := rt.History().Remove(paused); err != nil {
		t.Error(err)
	}
	for _, id := range []string{paused, "", "..", "../sessions"} {
		if err := rt.History().Remove(id); !errors.Is(err, record.ErrNotFound) {
			t.Errorf("%q: %v", id, err)
		}
	}
}
