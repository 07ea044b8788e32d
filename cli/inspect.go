package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

func (a *app) inspectCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect ID",
		Short: "Show the record of a run",
		Long:  `Inspect shows what a run was asked, what it was granted, how it ended and what it printed. ID is a run's id, a unique prefix of one, or "last".`,
		Args:  cobra.ExactArgs(1),
		RunE: a.withRuntime(func(_ *cobra.Command, args []string, rt *unitask.Runtime) error {
			runs := rt.Runs()
			id, err := runs.Find(args[0])
			if err != nil {
				if errors.Is(err, record.ErrNotFound) {
					return usage(err)
				}
				return err
			}
			rec, err := runs.Get(id)
			if err != nil {
				return err
			}
			if asJSON {
				all, err := rt.Inspect(id, 0)
				if err != nil {
					return err
				}
				return a.ui.json(all)
			}
			return a.inspect(runs, rec)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the record as one object, streams included")
	return cmd
}

func (a *app) inspect(runs *record.Store, rec *record.Record) error {
	w := a.std.Stdout
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("run", "%s", rec.ID)
	row("status", "%s", rec.Status)
	row("for", "%s", caller(rec.Owner, rec.Via))
	row("created", "%s", rec.Created.Local().Format(time.RFC3339))
	var res unitask.Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &res) == nil {
		row("outcome", "%s, exit code %d", res.Outcome, res.ExitCode)
		row("time", "%d ms: boot %d, connect %d, run %d", res.Duration.Total, res.Duration.Boot, res.Duration.Connect, res.Duration.Run)
	}
	if rec.Error != "" {
		row("error", "%s", safe(rec.Error))
	}
	if m := rec.Machine; m != nil {
		row("machine", "%s %s, node %s, %s, %d MiB, %s (QEMU %s), image %.12s, %s", m.Kernel, m.KernelVersion, m.Node, m.Arch, m.MemoryMB, m.Accelerator, m.QEMU, m.ImageDigest,
			startedAs(m.Cloned, m.Pooled))
		row("held by", "%s", m.Jail)
	}
	row("requested", "%s", oneLine(rec.Request))
	if rec.Effective != nil {
		row("effective", "%s", oneLine(rec.Effective))
	}
	var denials []policy.Denial
	if rec.Denials != nil && json.Unmarshal(rec.Denials, &denials) == nil {
		for _, d := range denials {
			row("denied", "%s", denial(d))
		}
	}
	summary, decisions := networkTable(runs, rec)
	row("network", "%s", summary)
	row("record", "%s", runs.Path(rec.ID, ""))
	for _, art := range res.Artifacts {
		row("artifact", "%s, %d bytes, mode %s, sha256 %s", safe(art.Path), art.Size, art.Mode, art.SHA256)
	}
	for _, r := range res.ArtifactsRefused {
		row("not taken", "%s: %s", safe(r.Path), safe(r.Reason))
	}
	for _, r := range res.ArtifactsLeft {
		row("left here", "%s: %s", safe(r.Path), safe(r.Reason))
	}
	if len(decisions) > 0 {
		fmt.Fprintln(w)
		a.ui.table("PROTO|NAME|PORT|VERDICT|RULE|UP|DOWN|TIME|REASON", decisions[:min(len(decisions), maxNetRows)])
		if more := len(decisions) - maxNetRows; more > 0 {
			fmt.Fprintf(w, "and %d more; --json has all\n", more)
		}
	}
	for _, s := range []struct{ title, name string }{{"code", rec.CodeFile}, {"stdout", record.StdoutFile}, {"stderr", record.StderrFile}} {
		text, err := os.ReadFile(runs.Path(rec.ID, s.name))
		if err != nil {
			return err
		}
		if len(text) > 0 {
			fmt.Fprintf(w, "\n--- %s\n", s.title)
			for _, line := range strings.SplitAfter(string(text), "\n") {
				fmt.Fprint(w, safeLine(line))
			}
			if text[len(text)-1] != '\n' {
				fmt.Fprintln(w)
			}
		}
	}
	return nil
}

// oneLine is JSON without line breaks.
func oneLine(raw json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, raw) != nil {
		return safe(string(raw))
	}
	return b.String()
}

// safeLine is a line of text whose control characters, tabs and the newline
// aside, are shown as escapes.
func safeLine(line string) string {
	body := strings.TrimSuffix(line, "\n")
	var out strings.Builder
	for _, r := range body {
		if r != '\t' && (r < 0x20 || r >= 0x7f && r < 0xa0) {
			fmt.Fprintf(&out, "\\x%02x", r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String() + line[len(body):]
}

// maxNetRows bounds the table; --json has all.
const maxNetRows = 100

// networkTable reads the netlog: totals in one line, and a row for each decision.
func networkTable(runs *record.Store, rec *record.Record) (summary string, rows [][]string) {
	text, err := os.ReadFile(runs.Path(rec.ID, record.NetlogFile))
	if err != nil {
		return err.Error(), nil
	}
	var allowed, denied int
	var up, down int64
	for _, line := range strings.Split(string(text), "\n") {
		var d netstack.Decision
		if json.Unmarshal([]byte(line), &d) != nil {
			continue
		}
		if d.Verdict == netstack.Allowed {
			allowed++
		} else {
			denied++
		}
		up, down = up+d.BytesUp, down+d.BytesDown
		name := d.Name
		if name == "" {
			name = d.Addr
		}
		port := ""
		if d.Port != 0 {
			port = strconv.Itoa(int(d.Port))
		}
		rows = append(rows, []string{d.Proto, safe(name), port, d.Verdict.String(), safe(d.Rule), strconv.FormatInt(d.BytesUp, 10), strconv.FormatInt(d.BytesDown, 10),
			fmt.Sprintf("%d ms", d.DurationMs), safe(d.Reason)})
	}
	parts := []string{fmt.Sprintf("%d allowed, %d denied, %d bytes up, %d down", allowed, denied, up, down)}
	var drops map[string]uint64
	if json.Unmarshal(rec.Drops, &drops) == nil {
		for kind, n := range drops {
			parts = append(parts, fmt.Sprintf("%d %s dropped", n, safe(kind)))
		}
	}
	sort.Strings(parts[1:])
	return strings.Join(parts, ", "), rows
}

// caller says whom a run was for, and through what it was asked for.
func caller(owner string, via record.Via) string {
	if owner == "" { // a record of an older unitask
		return "not recorded"
	}
	return fmt.Sprintf("%s, through %s", safe(owner), safe(string(via)))
}

// startedAs says where a machine came from.
func startedAs(cloned, pooled bool) string {
	switch {
	case pooled:
		return "cloned, from the pool"
	case cloned:
		return "cloned"
	}
	return "booted"
}
