package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/record"
)

// This file prints what the exit code of a run does not show.

// notTaken prints which files of /out were not copied.
func (a *app) notTaken(res *unitask.Result) {
	for _, r := range res.ArtifactsRefused {
		a.ui.note("not taken from /out: %s: %s", safe(r.Path), safe(r.Reason))
	}
	for _, r := range res.ArtifactsLeft {
		a.ui.note("left in the record, not copied to --out: %s: %s", safe(r.Path), safe(r.Reason))
	}
}

// maxNamed bounds the files of /out that a message names.
const maxNamed = 3

// inOut prints which files the code left in /out, and how to get them, unless --out has copied them.
func (a *app) inOut(res *unitask.Result, f runFlags) {
	if f.out != "" || len(res.Artifacts) == 0 {
		return
	}
	var names []string
	for _, art := range res.Artifacts[:min(len(res.Artifacts), maxNamed)] {
		names = append(names, safe(art.Path))
	}
	if more := len(res.Artifacts) - maxNamed; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	a.ui.note("in /out: %s", strings.Join(names, ", "))
	a.ui.hint("unitask inspect " + res.RunID + " --out DIR copies that")
}

// explain prints on stderr what the exit code alone does not show.
func (a *app) explain(res *unitask.Result, rt *unitask.Runtime) {
	if res.Outcome != unitask.OutcomeExited {
		a.ui.note("%s", res.Error)
	}
	a.dropped(res, "--output-bytes keeps more")
	a.notTaken(res)
	if len(res.Redacted) > 0 {
		a.ui.note("a secret stands in %s: the record has %s there, and can't be replayed",
			safe(strings.Join(res.Redacted, ", ")), record.Redacted)
	}
	for _, d := range res.Policy.Denials {
		a.ui.note("denied: %s", denial(d))
	}
	for _, done := range res.Approvals {
		if done.Verdict == unitask.Deny && !strings.Contains(res.Hint(), done.String()) {
			a.ui.note("%s", done)
		}
	}
	if a.verbose {
		how := "boot"
		switch {
		case res.Pooled:
			how = "pool"
		case res.Cloned:
			how = "clone"
		}
		a.ui.note("%s on %s: %s %s, connect %s, run %s; record %s", res.Kernel, res.Accelerator,
			how, seconds(res.Duration.Boot), seconds(res.Duration.Connect), seconds(res.Duration.Run),
			filepath.Join(rt.Runs().Dir(), res.RunID))
	}
	a.ui.hints(res)
}
