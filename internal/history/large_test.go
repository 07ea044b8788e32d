package history

import (
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// The record of a step can be read, whatever its code.
func TestAttackLargeStep(t *testing.T) {
	t.Parallel()
	home := testdir.Private(t)
	h := &Store{Records: record.Open(home), Home: home}
	redactor, err := record.NewRedactor(record.Secrets{})
	if err != nil {
		t.Fatal(err)
	}
	req := run.Request{Code: strings.Repeat("\x01", 12<<20), Language: "python"} // six times as long in JSON
	caller := run.Caller{}.WithDefaults()
	rec, err := h.Begin(time.Now(), caller, "", "code.py", req, req, run.Policy{}, redactor)
	if err != nil {
		t.Fatal(err)
	}
	if err := Finish(rec, redactor, &run.Result{RunID: rec.ID, Outcome: run.OutcomeExited}); err != nil {
		t.Fatal(err)
	}
	got := "it has its code"
	read, err := h.Records.Get(rec.ID)
	if err == nil {
		var step RecordedStep
		if step, err = h.recordedStep(read); err == nil && step.Code != req.Code {
			got = "it has other code"
		}
	}
	if err != nil {
		got = err.Error()
	}
	attack.Check(t, "a step's code is 72 MiB in JSON, and its record is read", "it has its code", got)
}
