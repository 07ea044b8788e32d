package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/vmm"
)

func (a *app) inspectCommand() *cobra.Command {
	var asJSON bool
	var f runFlags
	cmd := &cobra.Command{
		Use:   "inspect ID",
		Short: "Show the record of a run, or copy its files",
		Long: `Inspect shows what a run was asked, what it was granted, how it ended and what it
printed. With --out it copies the files that the code left in /out, as unitask run --out does.
ID is a run's id, a unique prefix of one, or "last".`,
		Example: `  unitask inspect last
  unitask inspect last --out ./results`,
		Args: cobra.ExactArgs(1),
		RunE: a.withRuntime(func(_ *cobra.Command, args []string, rt *unitask.Runtime) error {
			runs := rt.Runs()
			id, err := runs.Find(args[0])
			if err != nil {
				if errors.Is(err, record.ErrNotFound) {
					return usage(err)
				}
				return err
			}
			in, err := rt.History().Inspect(id, 0)
			if err != nil {
				return err
			}
			if f.out != "" || f.outReplace {
				return a.copyArtifacts(runs, in, f, asJSON)
			}
			if asJSON {
				return a.ui.json(in)
			}
			a.inspect(in, runs.Path(id, ""))
			return nil
		}),
	}
	fl := cmd.Flags()
	fl.StringVar(&f.out, "out", "", "copy what the code left in /out into this folder, by the rules of unitask run --out")
	fl.BoolVar(&f.outReplace, "out-replace", false, "have --out replace files that exist")
	fl.BoolVar(&asJSON, "json", false,
		"print the record as one object, streams included; with --out what was copied and what was not")
	return cmd
}

// copyArtifacts copies the files of a run's /out from its record.
func (a *app) copyArtifacts(runs *record.Store, in *history.Inspection, f runFlags, asJSON bool) error {
	if err := f.outFolder(); err != nil {
		return err
	}
	if in.Ended == nil {
		return usage(fmt.Errorf("run %s has no result yet, and so no files", in.ID))
	}
	folder, err := record.OpenOut(f.out, f.outReplace)
	if err != nil {
		return usage(fmt.Errorf("--out: %w", err))
	}
	defer folder.Close()
	list := append([]record.Artifact{}, in.Ended.Artifacts...)
	left, err := runs.CopyArtifacts(in.ID, list, folder)
	if err != nil {
		return err
	}
	for _, r := range left {
		if r.Missed {
			a.code = unitask.ExitUndelivered
		}
	}
	copied := slices.DeleteFunc(list, func(art record.Artifact) bool {
		return slices.ContainsFunc(left, func(r record.Refusal) bool { return r.Path == art.Path })
	})
	if asJSON {
		return a.ui.json(struct {
			Copied []record.Artifact `json:"copied"`
			Left   []record.Refusal  `json:"left,omitempty"`
		}{copied, left})
	}
	for _, r := range left {
		a.ui.note("not copied: %s: %s", safe(r.Path), safe(r.Reason))
	}
	a.ui.note("copied %s to %s", count(len(copied), "file"), safe(f.out))
	return nil
}

func (a *app) inspect(rec *history.Inspection, path string) {
	w, row := a.std.Stdout, a.ui.fact
	row("run", "%s", rec.ID)
	row("status", "%s", rec.Status)
	row("for", "%s", caller(rec.Owner, rec.Via))
	row("created", "%s", rec.Created.Local().Format(time.RFC3339))
	res := rec.Ended
	if res == nil {
		res = &unitask.Result{}
	} else {
		row("outcome", "%s, exit code %d", res.Outcome, res.ExitCode)
		row("time", "%s: boot %s, connect %s, run %s", seconds(res.Duration.Total), seconds(res.Duration.Boot),
			seconds(res.Duration.Connect), seconds(res.Duration.Run))
	}
	if rec.Error != "" {
		row("error", "%s", safe(rec.Error))
	}
	if m := rec.Machine; m != nil {
		row("machine", "%s %s, %s %s, %s, %d MiB, %s (QEMU %s), image %.12s, %s", m.Kernel, m.KernelVersion,
			cmp.Or(m.Image, "node"), cmp.Or(m.Runtime, m.Node), m.Arch, m.MemoryMB, m.Accelerator, m.QEMU, m.ImageDigest,
			startedAs(*m))
		var jail vmm.Jail
		if json.Unmarshal(m.Jail, &jail) == nil {
			row("held by", "%s", safe(jail.String()))
			for _, h := range jail.Missing() {
				row("not held", "%s: %s", h.Name, safe(h.Why))
			}
		}
	}
	switch res.Compiled {
	case unitask.CompiledCached:
		row("program", "compiled before, by a run of the same code")
	case unitask.CompiledKept:
		row("program", "compiled, and kept for the next run of the same code")
	}
	if len(rec.Redacted) > 0 {
		row("redacted", "%s: a secret stood there, so the run can't be replayed", safe(strings.Join(rec.Redacted, ", ")))
	}
	for _, d := range rec.Denied {
		row("denied", "%s", denial(d))
	}
	summary, decisions := networkTable(rec)
	row("network", "%s", summary)
	called, calls := toolTable(rec)
	if rec.Tools != nil {
		row("tools", "%s", called)
	}
	row("record", "%s", path)
	for _, art := range res.Artifacts {
		row("artifact", "%s, %s, mode %s, sha256 %s", safe(art.Path), mebibytes(art.Size), art.Mode, art.SHA256)
	}
	for _, r := range res.ArtifactsRefused {
		row("not taken", "%s: %s", safe(r.Path), safe(r.Reason))
	}
	for _, r := range res.ArtifactsLeft {
		row("left here", "%s: %s", safe(r.Path), safe(r.Reason))
	}
	if rows := requestRows(rec); len(rows) > 0 {
		fmt.Fprintln(w)
		a.ui.table("POLICY|ASKED|CEILING|GETS", rows)
	}
	a.cutTable("TOOL|ARGUMENTS|TIME|RULE|ERROR", calls)
	a.cutTable("PROTO|NAME|PORT|VERDICT|RULE|UP|DOWN|TIME|REASON", decisions)
	for _, s := range []struct{ title, text string }{{"code", rec.Code}, {"stdout", rec.Stdout}, {"stderr", rec.Stderr}} {
		if s.text == "" {
			continue
		}
		fmt.Fprintf(w, "\n--- %s\n", s.title)
		for line := range strings.Lines(s.text) {
			fmt.Fprint(w, visibleLine(line))
		}
		if !strings.HasSuffix(s.text, "\n") {
			fmt.Fprintln(w)
		}
	}
}

// requestRows returns what a run was asked and granted, where that differs from the default. The record has the
// ceiling's reasons, for what it denied.
func requestRows(rec *history.Inspection) (rows [][]string) {
	usual, _, _ := unitask.Resolve(unitask.Request{}, nil)
	for _, r := range policy.Rows(usual, rec.Request, nil, rec.Effective) {
		var reasons []string
		for _, d := range rec.Denied {
			if d.Field == r.Key && !slices.Contains(reasons, d.Reason) {
				reasons = append(reasons, d.Reason)
			}
		}
		rows = append(rows, []string{safe(r.Key), short(r.Asked), strings.Join(reasons, ", "), short(r.Gets)})
	}
	return rows
}

// maxNetRows bounds the table; --json shows all.
const maxNetRows = 100

// cutTable prints the first rows of a table, if it has any, after an empty line.
func (a *app) cutTable(titles string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(a.std.Stdout)
	a.ui.table(titles, rows[:min(len(rows), maxNetRows)])
	if more := len(rows) - maxNetRows; more > 0 {
		a.ui.line("and %d more; --json has all", more)
	}
}

// networkTable returns the netlog: totals in one line, and a row for each decision.
func networkTable(rec *history.Inspection) (summary string, rows [][]string) {
	var allowed, denied int
	var up, down int64
	for _, d := range rec.Decisions {
		if d.Verdict == unitask.Allowed {
			allowed++
		} else {
			denied++
		}
		reason := d.Reason
		if d.Method != "" { // of a connection that has its own row
			reason = strings.TrimSpace(fmt.Sprintf("%s %s: %d %s", d.Method, d.Path, d.Status, reason))
		} else {
			up, down = up+d.BytesUp, down+d.BytesDown
		}
		name := d.Name
		if name == "" {
			name = d.Addr
		}
		port := ""
		if d.Port != 0 {
			port = strconv.Itoa(int(d.Port))
		}
		rows = append(rows, []string{d.Proto, safe(name), port, d.Verdict.String(), safe(d.Rule),
			mebibytes(d.BytesUp), mebibytes(d.BytesDown), secondsOf(d.DurationMs), safe(reason)})
	}
	parts := []string{fmt.Sprintf("%d allowed, %d denied, %s up, %s down", allowed, denied, mebibytes(up),
		mebibytes(down))}
	for kind, n := range rec.Dropped {
		parts = append(parts, fmt.Sprintf("%d %s dropped", n, safe(kind)))
	}
	sort.Strings(parts[1:])
	return strings.Join(parts, ", "), rows
}

// caller describes whom a run was for, and how it was requested.
func caller(owner string, via record.Via) string {
	if owner == "" { // a record of an older unitask
		return "not recorded"
	}
	return fmt.Sprintf("%s, through %s", safe(owner), safe(string(via)))
}

// startedAs describes where a machine came from, and how warm it was.
func startedAs(m record.Machine) string {
	how := "booted"
	switch {
	case m.Pooled:
		how = "cloned, from the pool"
	case m.Cloned:
		how = "cloned"
	}
	if m.Rehearsed > 0 {
		how += ", after " + count(int(m.Rehearsed), "rehearsal")
	}
	return how
}
