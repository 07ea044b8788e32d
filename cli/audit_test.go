package cli_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/cli"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/record"
)

// The report of `audit verify` about runs without lines, for example after a full disk.
func TestAttackAuditVerifyLacks(t *testing.T) {
	home := testdir.Private(t)
	t.Setenv("UNITASK_HOME", home)
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d) }
	log := audit.In(home)
	add := func(kind audit.Kind, run string, at time.Duration) {
		t.Helper()
		if err := log.Append(audit.Entry{Time: ago(at), Kind: kind, Run: run}); err != nil {
			t.Fatal(err)
		}
	}
	add(audit.ImageAdded, "", 2*time.Hour)
	verify := func() (code int, out, told string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		code = cli.Main([]string{"audit", "verify"}, cli.Streams{Stdin: strings.NewReader(""), Stdout: &stdout,
			Stderr: &stderr})
		return code, stdout.String(), stderr.String()
	}
	run := func(kinds ...audit.Kind) string {
		t.Helper()
		rec, err := record.Open(filepath.Join(home, "runs")).Create(ago(time.Hour), "", unitask.ViaCLI, "code", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range kinds {
			add(kind, rec.ID, time.Hour)
		}
		rec.Status = record.Done
		if err := rec.Finish(ago(time.Hour)); err != nil {
			t.Fatal(err)
		}
		return rec.ID
	}
	run(audit.RunStarted, audit.RunEnded)
	if code, out, told := verify(); code != 0 || out != "3 lines as they were written\n" || told != "" {
		t.Errorf("nothing is missing: %d %q %q", code, out, told)
	}
	one := run(audit.RunStarted)
	code, out, told := verify()
	if code != 1 || out != "4 lines as they were written\n" {
		t.Errorf("%d %q", code, out)
	}
	attack.Check(t, "audit verify: the end of a run is missing",
		"the audit log has no line of the end of 1 runs ("+one+")", said(told))
	var both []string
	for range 7 {
		both = append(both, run())
	}
	if code, _, told = verify(); code != 1 {
		t.Errorf("%d", code)
	}
	for _, part := range []string{"no line of the start of 7 runs (", "and the end of 8 runs ("} {
		got := "it says so"
		if !strings.Contains(told, part) {
			got = told
		}
		attack.Check(t, "audit verify: "+part, "it says so", got)
	}
	named := 0
	for _, id := range append(both, one) {
		named += strings.Count(told, id)
	}
	if named != 10 { // five of each kind
		t.Errorf("it names %d runs: %q", named, told)
	}
}

// said returns an error's message as the command line prints it, without what is printed before the message.
func said(text string) string {
	_, text, _ = strings.Cut(strings.TrimSpace(text), "unitask: ")
	return text
}
