package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unitask/unitask"
)

func (a *app) approveCommand() *cobra.Command {
	var deny, once bool
	cmd := &cobra.Command{
		Use:   "approve [RUN HOST:PORT]",
		Short: "Answer a run that waits for a connection to be allowed (run --ask)",
		Long: `A run whose code connects to a host that --ask, or the ceiling's ask, names stands
still until somebody allows that. approve lists what runs ask; with a run and the
host and port that it asks about, it allows these for the rest of the run.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 0 && len(args) != 2 {
				return errors.New("give the run and the HOST:PORT that it asks about, or neither to list what is asked")
			}
			if len(args) == 0 && (deny || once) {
				return errors.New("--deny and --once answer a run: name it, and the HOST:PORT that it asks about")
			}
			return nil
		},
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			if len(args) == 0 {
				list, err := rt.Questions(cmd.Context())
				if err != nil {
					return err
				}
				var rows [][]string
				for _, q := range list {
					rows = append(rows, []string{q.RunID, safe(q.Host), safe(q.Rule), time.Until(q.Until).Round(time.Second).String()})
				}
				a.ui.table("RUN|HOST|RULE|LEFT", rows)
				return nil
			}
			verdict := unitask.AllowRun
			switch {
			case deny:
				verdict = unitask.Deny
			case once:
				verdict = unitask.AllowOnce
			}
			if err := rt.Approve(cmd.Context(), args[0], args[1], verdict); err != nil {
				return hint(usage(err), "unitask approve lists what runs ask")
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&deny, "deny", false, "deny it for the rest of the run")
	cmd.Flags().BoolVar(&once, "once", false, "allow this one connection; the next is asked about again")
	cmd.MarkFlagsMutuallyExclusive("deny", "once")
	return cmd
}

// approver asks on our terminal, where it is one that nothing else reads; elsewhere it says how
// another terminal can answer.
func (a *app) approver(f runFlags) func(context.Context, unitask.Question) unitask.Verdict {
	tty, ok := a.std.Stdin.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) || !a.ui.tty || f.tty || f.input {
		return func(_ context.Context, q unitask.Question) unitask.Verdict {
			a.ui.note("the code waits: it wants to connect to %s (%s). Within %s: unitask approve %s %s", q.Host, q.Rule, left(q), q.RunID, q.Host)
			return ""
		}
	}
	var lines chan string // what is typed; one goroutine reads it until we end
	return func(ctx context.Context, q unitask.Question) unitask.Verdict {
		if lines == nil {
			lines = make(chan string)
			go func() {
				defer close(lines)
				for in := bufio.NewScanner(tty); in.Scan(); {
					lines <- in.Text()
				}
			}()
		}
		forget(tty, lines)
		a.ui.note("the machine stands still: its code wants to connect to %s (%s)", q.Host, q.Rule)
		for {
			fmt.Fprintf(a.std.Stderr, "unitask: allow it? o: this once, r: for this run, d: deny (or in %s) ", left(q))
			select {
			case line, ok := <-lines:
				if !ok {
					return ""
				}
				switch strings.ToLower(strings.TrimSpace(line)) {
				case "o", "once":
					return unitask.AllowOnce
				case "r", "run":
					return unitask.AllowRun
				case "d", "deny":
					return unitask.Deny
				}
			case <-ctx.Done():
				fmt.Fprintln(a.std.Stderr)
				return ""
			}
		}
	}
}

// forget drops what was typed before the question was there: it is no answer to it.
func forget(tty *os.File, lines <-chan string) {
	dropTyped(tty)
	for {
		select {
		case _, ok := <-lines:
			if ok {
				continue
			}
		case <-time.After(10 * time.Millisecond): // a line that was read already
		}
		return
	}
}

func left(q unitask.Question) time.Duration { return time.Until(q.Until).Round(time.Second) }
