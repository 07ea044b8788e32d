package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

func (a *app) auditCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "audit",
		Short: "Show, verify and export the log of what runs were given and did",
		Long: `The audit log has a line of JSON for each start and end of a run, for what it was
denied, the secrets that it was given and that went to hosts, what its network
refused, the bounds that it reached, runs that were refused, images, packages, and
the ceilings that were trusted. It only grows; unitask runs prune
leaves it as it is. A head (audit export --head) that is kept elsewhere shows later
whether a line was changed or taken away (audit verify --head).`,
	}, a.auditList(), a.auditVerify(), a.auditExport())
}

// auditLog returns the home's audit log.
func (a *app) auditLog() (audit.Log, error) {
	home, err := a.homeFolder()
	return audit.In(home), err
}

func (a *app) auditList() *cobra.Command {
	var kind, since string
	var limit int
	var f audit.Filter
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the last lines of the log",
		Long: `List the last lines of the log. Each filter leaves fewer of them: a line must match all
that are given. An owner is who a run was for, as inspect shows it: local:USER on the
command line, or the name of a caller of a shared server. Lines about images, packages
and ceilings have no owner.`,
		Example: `  unitask audit ls --kind net.refused --since 7d
  unitask audit ls --owner alice --since 2026-11-01 --json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			log, err := a.auditLog()
			if err != nil {
				return err
			}
			if limit < 1 {
				return usage(fmt.Errorf("--limit %d: must be 1 or more", limit))
			}
			if f.Since, err = parseSince(since, time.Now()); err != nil {
				return usage(fmt.Errorf("--since %q: %w", since, err))
			}
			if f.Kind = audit.Kind(kind); kind != "" && !slices.Contains(audit.KindNames(), kind) {
				return hint(usage(fmt.Errorf("--kind %.80q: no line has that kind%s", kind,
					language.Nearest(kind, audit.KindNames()))), "use one of "+strings.Join(audit.KindNames(), ", "))
			}
			list, err := log.Last(f, 0, math.MaxInt64, limit)
			if err != nil {
				return err
			}
			return a.report(list, func() {
				var rows [][]string
				for _, e := range list {
					rows = append(rows, []string{fmt.Sprint(e.Line), e.Time.Local().Format(time.DateTime), safe(string(e.Kind)),
						safe(e.Run), safe(e.Caller), policy.PlainText(e.Detail)})
				}
				a.ui.table("LINE|TIME|KIND|RUN|CALLER|DETAIL", rows)
			})
		},
	}
	cmd.Flags().StringVar(&kind, "kind", "", "only of this kind, as run.started or secret.used")
	cmd.Flags().StringVar(&f.Run, "run", "", "only of the run with this id")
	cmd.Flags().StringVar(&f.Owner, "owner", "", "only of runs for this owner, and of requests by it")
	cmd.Flags().StringVar(&since, "since", "", "only since then: "+sinceForms)
	cmd.Flags().IntVar(&limit, "limit", 50, "list at most this many")
	return cmd
}

// maxHead bounds the file of a head, which has some 200 bytes.
const maxHead = 64 << 10

func (a *app) auditVerify() *cobra.Command {
	var head, key string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that no line was changed since it was written, and that none is missing",
		Long: `Verify makes the hashes of all lines again and compares them with those that were
written with the lines. Who can write the home could write both anew: a head that was kept
elsewhere shows that, too. Then it looks for the start and the end of each run whose
record is younger than the log and has ended: a line is missing where it could not be
written, as on a full disk.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			log, err := a.auditLog()
			if err != nil {
				return err
			}
			text := []byte(nil)
			if head != "" {
				f, err := os.Open(head)
				if err != nil {
					return usage(fmt.Errorf("--head: %w", err))
				}
				text, err = io.ReadAll(io.LimitReader(f, maxHead))
				if err = errors.Join(err, f.Close()); err != nil {
					return usage(fmt.Errorf("--head: %w", err))
				}
				if len(bytes.TrimSpace(text)) == 0 {
					return usage(fmt.Errorf("--head %s: is empty: `unitask audit export --head` makes one", head))
				}
			}
			n, err := log.Verify(string(text), key)
			if err != nil {
				a.code = 1
				return err
			}
			how := "as they were written"
			if n == 1 {
				how = "as it was written"
			}
			err = a.report(map[string]any{"lines": n}, func() { a.ui.line("%s %s", count(int(n), "line"), how) })
			if err != nil {
				return err
			}
			home, err := a.homeFolder()
			if err != nil {
				return err
			}
			lacks, err := history.FindAuditLacks(home, time.Now())
			if err == nil && lacks.String() != "" {
				a.code = 1
				return fmt.Errorf("the audit log has no line of %s", safe(lacks.String()))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&head, "head", "", "a file with a head that was kept elsewhere")
	cmd.Flags().StringVar(&key, "key", "",
		"the key that has signed the head (default the one in the home, audit/verifier)")
	return cmd
}

func (a *app) auditExport() *cobra.Command {
	var head bool
	var format string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Print all lines, or the head of the log",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			log, err := a.auditLog()
			if err != nil {
				return err
			}
			if head {
				text, err := log.Head()
				if err == nil {
					_, err = io.WriteString(a.std.Stdout, text)
				}
				return err
			}
			switch format {
			case "lines":
				return log.Read(func(_ int64, line []byte) error {
					_, err := a.std.Stdout.Write(line)
					return err
				})
			case "cloudevents":
				return a.printEvents(log.Events(), 0)
			}
			return usage(fmt.Errorf("--format %q: use lines or cloudevents", format))
		},
	}
	cmd.Flags().StringVar(&format, "format", "lines",
		"lines, as they are in the log, or cloudevents: an event of CloudEvents 1.0 for each, in JSON")
	cmd.Flags().BoolVar(&head, "head", false, "print the signed head alone: how many lines, and their hash")
	return cmd
}

// auditTrust logs that a ceiling is trusted, or no longer trusted.
func (a *app) auditTrust(kind audit.Kind, home, file string, widens []string) {
	if err := audit.In(home).Append(audit.Entry{Time: time.Now(), Kind: kind, Via: "cli",
		Detail: map[string]any{"file": file, "widens": widens}}); err != nil {
		a.ui.note("%v", err)
	}
}
