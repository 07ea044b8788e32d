package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// Missing log entries of ended runs are found, and nothing else is.
func TestAttackAuditLacks(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	for _, c := range []struct {
		name    string
		kinds   []audit.Kind
		session bool
		step    bool
		created time.Duration // ago
		ended   time.Duration // 0: it has not
		want    string
	}{
		{"both are there", []audit.Kind{audit.RunStarted, audit.RunEnded}, false, false, time.Hour, time.Hour, "0 0"},
		{"a session's are there", []audit.Kind{audit.SessionStarted, audit.SessionEnded}, true, false, time.Hour, time.Hour,
			"0 0"},
		{"none is there", nil, false, false, time.Hour, time.Hour, "1 1"},
		{"no start", []audit.Kind{audit.RunEnded}, false, false, time.Hour, time.Hour, "1 0"},
		{"no end", []audit.Kind{audit.RunStarted, audit.SecretUsed}, false, false, time.Hour, time.Hour, "0 1"},
		{"no end of a session", []audit.Kind{audit.SessionStarted, audit.SessionStarted}, true, false, time.Hour, time.Hour,
			"0 1"},
		{"older than the log", nil, false, false, 3 * time.Hour, time.Hour, "0 0"},
		{"a step", nil, false, true, time.Hour, time.Hour, "0 0"},
		{"under way", []audit.Kind{audit.RunStarted}, false, false, time.Hour, 0, "0 0"},
		{"it has just ended", []audit.Kind{audit.RunStarted}, false, false, time.Hour, time.Second, "0 0"},
	} {
		home := testdir.Private(t)
		log := audit.In(home)
		if err := log.Append(audit.Entry{Time: ago(2 * time.Hour), Kind: audit.ImageAdded}); err != nil {
			t.Fatal(err)
		}
		rec, err := paused.Open(home).Records.Create(ago(c.created), "", record.ViaCLI, "code", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.session {
			rec.Session = rec.ID
		}
		if c.step {
			rec.Session = "20261126-000000000-aaaaaa"
		}
		for _, kind := range c.kinds {
			if err := log.Append(audit.Entry{Time: ago(time.Hour), Kind: kind, Run: rec.ID}); err != nil {
				t.Fatal(err)
			}
		}
		if c.ended > 0 {
			rec.Status = record.Done
			err = rec.Finish(ago(c.ended))
		} else {
			defer rec.Leave()
		}
		lacks, e := FindAuditLacks(home, now)
		if err != nil || e != nil || lacks.Starts != len(lacks.FirstStarts) || lacks.Ends != len(lacks.FirstEnds) {
			t.Errorf("%s: %v, %v, %+v", c.name, err, e, lacks)
		}
		attack.Check(t, "starts and ends that the audit log lacks: "+c.name, c.want,
			fmt.Sprint(lacks.Starts, " ", lacks.Ends))
	}
}
