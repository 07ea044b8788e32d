package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/record"
)

func (a *app) runsCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "runs",
		Short: "List and remove the records of runs",
	}, a.runsList(), a.runsRemove(), a.runsPrune())
}

// listed is a run as the list shows it.
type listed struct {
	ID       string          `json:"id"`
	Created  time.Time       `json:"created"`
	Status   record.Status   `json:"status"`
	Outcome  unitask.Outcome `json:"outcome,omitempty"`
	ExitCode *int            `json:"exitCode,omitempty"`
	TotalMs  int64           `json:"durationMs,omitempty"`
	Kernel   string          `json:"kernel,omitempty"`
	Denials  int             `json:"denials"`
	Code     string          `json:"code"` // its first line
	Error    string          `json:"error,omitempty"`
}

// state is what a filter by status compares: the outcome where there is one.
func (l listed) state() string {
	if l.Outcome != "" {
		return string(l.Outcome)
	}
	return string(l.Status)
}

// list reads a run's record for the list. One that can't be read is listed as such.
func list(runs *record.Store, id string) listed {
	l := listed{ID: id}
	rec, err := runs.Get(id)
	if err != nil {
		l.Status, l.Error = "unreadable", err.Error()
		return l
	}
	l.Created, l.Status, l.Error = rec.Created, rec.Status, rec.Error
	var res unitask.Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &res) == nil {
		l.Outcome, l.ExitCode, l.TotalMs, l.Kernel = res.Outcome, &res.ExitCode, res.Duration.Total, string(res.Kernel)
	}
	var denials []json.RawMessage
	if rec.Denials != nil && json.Unmarshal(rec.Denials, &denials) == nil {
		l.Denials = len(denials)
	}
	l.Code = firstLine(runs.Path(id, rec.CodeFile))
	return l
}

// newest are the ids of all runs, the newest first.
func newest(runs *record.Store) ([]string, error) {
	ids, err := runs.IDs()
	slices.Reverse(ids)
	return ids, err
}

func firstLine(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 400)
	n, _ := f.Read(buf)
	for line := range strings.Lines(string(buf[:n])) {
		if line = strings.TrimSpace(strings.ToValidUTF8(line, "")); line != "" {
			return line
		}
	}
	return ""
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
			ids, err := newest(rt.Runs())
			if err != nil {
				return err
			}
			found := []listed{}
			for _, id := range ids {
				if limit > 0 && len(found) == limit {
					break
				}
				l := list(rt.Runs(), id)
				if age > 0 && time.Since(l.Created) > age {
					continue
				}
				if status == "" || status == l.state() || status == string(l.Status) {
					found = append(found, l)
				}
			}
			if asJSON {
				return a.ui.json(found)
			}
			a.runsTable(found)
			return nil
		}),
	}
	cmd.Flags().StringVar(&status, "status", "", "only with this outcome or status: exited, timeout, oom, signaled, crashed, failed, cancelled, running, interrupted, done")
	cmd.Flags().StringVar(&since, "since", "", "only from the last: 90m, 12h, 7d")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many; 0 is all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

// runsTable prints runs, the code cut to what the terminal has left.
func (a *app) runsTable(runs []listed) {
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
		rows = append(rows, []string{l.ID, l.Created.Local().Format(time.DateTime), l.state(), exit, fmt.Sprintf("%d ms", l.TotalMs), l.Kernel, cutTo(safe(l.Code), max(width-others, 10))})
	}
	a.ui.table("RUN|CREATED|OUTCOME|EXIT|TIME|KERNEL|CODE", rows)
}

// cutTo cuts a text to so many characters.
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
					err = rt.Runs().Remove(id)
				}
				if errors.Is(err, record.ErrNotFound) || errors.Is(err, record.ErrRunning) {
					return usage(err)
				}
				if err != nil {
					return err
				}
				fmt.Fprintln(a.std.Stdout, id)
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
		Short: "Remove old records; those of runs under way stay",
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
			ids, err := newest(rt.Runs())
			if err != nil {
				return err
			}
			removed := 0
			for i, id := range ids {
				if byCount && i < keep {
					continue
				}
				if byAge && time.Since(list(rt.Runs(), id).Created) < age {
					continue
				}
				switch err := rt.Runs().Remove(id); {
				case err == nil:
					removed++
				case !errors.Is(err, record.ErrRunning) && !errors.Is(err, record.ErrNotFound):
					return err
				}
			}
			fmt.Fprintf(a.std.Stdout, "%d runs removed\n", removed)
			return nil
		}),
	}
	cmd.Flags().IntVar(&keep, "keep", 0, "the newest so many stay")
	cmd.Flags().StringVar(&older, "older-than", "", "only those that are older: 90m, 12h, 7d")
	return cmd
}

// parseAge takes a duration, or days as 7d; "" is 0.
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
