package cli

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

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
			age, err := parseAge(since)
			if err != nil {
				return usage(fmt.Errorf("--since %q: %w", since, err))
			}
			if limit < 0 {
				return usage(fmt.Errorf("--limit %d: must be 0 or more", limit))
			}
			found, err := rt.History().List(history.Filter{Status: status, Within: age, Limit: limit})
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
	cmd.Flags().StringVar(&since, "since", "", "only runs created within this time: 90m, 12h, 7d")
	cmd.Flags().IntVar(&limit, "limit", 50, "list at most this many; 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

// runsTable prints runs, with the code cut to the rest of the terminal's width.
func (a *app) runsTable(runs []history.Summary) {
	const others = 23 + 2 + 19 + 2 + 11 + 2 + 4 + 2 + 9 + 2 + 6 + 2
	width := 120
	if f, ok := a.std.Stdout.(*os.File); ok {
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			width = w
		}
	}
	var rows [][]string
	for _, l := range runs {
		exit := ""
		if l.ExitCode != nil {
			exit = strconv.Itoa(*l.ExitCode)
		}
		rows = append(rows, []string{l.ID, l.Created.Local().Format(time.DateTime), l.State(), exit,
			fmt.Sprintf("%d ms", l.TotalMs), l.Kernel, cutTo(safe(l.Code), max(width-others, 10))})
	}
	a.ui.table("RUN|CREATED|OUTCOME|EXIT|TIME|KERNEL|CODE", rows)
}

// cutTo cuts a text to at most that many characters.
func cutTo(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

func (a *app) runsRemove() *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID...",
		Short: "Remove records",
		Args:  cobra.MinimumNArgs(1),
		RunE: a.withRuntime(func(_ *cobra.Command, args []string, rt *unitask.Runtime) error {
			for _, arg := range args {
				id, err := rt.Runs().Find(arg)
				if err == nil {
					err = rt.History().Remove(id)
				}
				if errors.Is(err, record.ErrNotFound) || errors.Is(err, record.ErrRunning) || errors.Is(err, history.ErrPaused) {
					return usage(err)
				}
				if err != nil {
					return err
				}
				fmt.Fprintln(a.std.Stdout, visible(id))
			}
			return nil
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
			fmt.Fprintf(a.std.Stdout, "%d runs removed\n", removed)
			return nil
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
