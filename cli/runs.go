package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/record"
)

func (a *app) runsCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "runs",
		Short: "List and remove the records of runs",
	}, a.runsList(), a.runsRemove(), a.runsPrune())
}

func (a *app) runsList() *cobra.Command {
	var asJSON bool
	var status, since string
	var limit int
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List runs, the newest first",
		Args:  cobra.NoArgs,
		RunE: a.withRuntime(func(_ *cobra.Command, _ []string, rt *unitask.Runtime) error {
			from, err := parseSince(since, time.Now())
			if err != nil {
				return usage(fmt.Errorf("--since %q: %w", since, err))
			}
			if limit < 0 {
				return usage(fmt.Errorf("--limit %d: must be 0 or more", limit))
			}
			found, err := rt.History().List(history.Filter{Status: status, Since: from, Limit: limit})
			if errors.Is(err, history.ErrState) {
				return usage(fmt.Errorf("--%w", err))
			}
			if err != nil {
				return err
			}
			if asJSON {
				return a.ui.json(found)
			}
			a.runsTable(found)
			return nil
		}),
	}
	cmd.Flags().StringVar(&status, "status", "", "only with this outcome or status: "+strings.Join(history.States(), ", "))
	cmd.Flags().StringVar(&since, "since", "", "only runs created since then: "+sinceForms)
	cmd.Flags().IntVar(&limit, "limit", 50, "list at most this many; 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

// runsTable prints runs.
func (a *app) runsTable(runs []history.Summary) {
	var rows [][]string
	for _, l := range runs {
		exit := ""
		if l.ExitCode != nil {
			exit = strconv.Itoa(*l.ExitCode)
		}
		rows = append(rows, []string{l.ID, l.Created.Local().Format(time.DateTime), l.State(), exit,
			secondsOf(l.TotalMs), l.Kernel, safe(l.Code)})
	}
	a.ui.table("RUN|CREATED|OUTCOME|EXIT|TIME|KERNEL|CODE…", rows)
}

func (a *app) runsRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID...",
		Short: "Remove records",
		Args:  cobra.MinimumNArgs(1),
		RunE: a.withRuntime(func(_ *cobra.Command, args []string, rt *unitask.Runtime) error {
			return a.removeEach(args, func(arg string) ([]string, error) {
				id, err := rt.Runs().Find(arg)
				if err == nil {
					err = rt.History().Remove(id)
				}
				if errors.Is(err, record.ErrNotFound) || errors.Is(err, record.ErrRunning) || errors.Is(err, history.ErrPaused) {
					err = usage(err)
				}
				if err != nil {
					return nil, err
				}
				return []string{id}, nil
			})
		}),
	}
}

func (a *app) runsPrune() *cobra.Command {
	var keep int
	var older string
	cmd := &cobra.Command{
		Use:   "prune (--keep N | --older-than AGE)",
		Short: "Remove old records, except those of running runs and paused sessions",
		Args:  cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			byCount, byAge := cmd.Flags().Changed("keep"), cmd.Flags().Changed("older-than")
			if !byCount && !byAge {
				return usage(errors.New("say which: --keep N, --older-than AGE, or both"))
			}
			if keep < 0 {
				return usage(fmt.Errorf("--keep %d: must be 0 or more", keep))
			}
			age, err := parseAge(older)
			if err != nil {
				return usage(fmt.Errorf("--older-than %q: %w", older, err))
			}
			removed, err := rt.History().Prune(keep, age)
			if err != nil {
				return err
			}
			return a.report(map[string]any{"removed": removed}, func() { a.ui.line("%s removed", count(removed, "run")) })
		}),
	}
	cmd.Flags().IntVar(&keep, "keep", 0, "keep this many of the newest")
	cmd.Flags().StringVar(&older, "older-than", "", "only those that are older: 90m, 12h, 7d")
	return cmd
}

// parseAge parses a duration, or days as 7d; "" is 0.
func parseAge(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseFloat(days, 64); err == nil && n >= 0 && n < 100_000 {
			return time.Duration(n * 24 * float64(time.Hour)), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errors.New("use an age like 90m, 12h or 7d")
	}
	return d, nil
}

// sinceForms are what parseSince takes.
const sinceForms = "an age like 90m, 12h or 7d, or a time like 2026-11-27 or 2026-11-27T15:04:05Z"

// parseSince returns the time that a text names: an age before now, a time with its zone, or a time of the local zone.
// "" is the zero time.
func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if age, err := parseAge(s); err == nil {
		return now.Add(-age), nil
	}
	for _, form := range []string{time.RFC3339, time.DateOnly, time.DateTime, "2006-01-02T15:04:05", "2006-01-02T15:04",
		"2006-01-02 15:04"} {
		if at, err := time.ParseInLocation(form, s, time.Local); err != nil {
			continue
		} else if at.After(now) {
			return at, errors.New("is in the future")
		} else {
			return at, nil
		}
	}
	return time.Time{}, errors.New("use " + sinceForms)
}
