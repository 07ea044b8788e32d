package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/policy"
)

func (a *app) approveCommand() *cobra.Command {
	var deny, once, always bool
	var remove string
	cmd := &cobra.Command{
		Use:   "approve [RUN HOST:PORT|tool:SERVER.TOOL [REQUEST]]",
		Short: "Answer a run that waits for a connection or a call of a tool to be allowed",
		Long: `A run whose code connects to a host that --ask, or the ceiling's ask, names stands
still until somebody allows that. approve lists what runs ask; with a run and the
host and port that it asks about, it allows these for the rest of the run. Where a
request waits (a secret is bound to the host, or a rule is about its requests), --once is
for that request alone, which is then named as it is listed: 'GET /repos/acme'.

A call of a tool whose table says approve = true waits, too. It is listed as tool:SERVER.TOOL
with its arguments as the request, and is answered by these names: without --once for all
calls of the tool in the run, with --once and the arguments for this call alone.

Permanent approvals, given on the terminal of a run or in unitask ui, are in approved.toml of the
home: --always lists them, --remove takes a host and port out. They answer questions of this user's runs under
the same ceiling, and allow nothing that is not asked about.`,
		Args: func(_ *cobra.Command, args []string) error {
			if always || remove != "" {
				if len(args) > 0 {
					return errors.New("--always and --remove are about no run: leave it out")
				}
				return nil
			}
			if len(args) == 1 || len(args) > 3 || len(args) == 3 && !once {
				return errors.New(
					"give the run and the HOST:PORT that it asks about, with --once its request, too, " +
						"or nothing to list what is asked")
			}
			if len(args) == 0 && (deny || once) {
				return errors.New("--deny and --once answer a run: name it, and the HOST:PORT that it asks about")
			}
			return nil
		},
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			switch {
			case remove != "":
				return a.disapprove(remove)
			case always:
				return a.listApproved()
			case len(args) == 0:
				list, err := rt.Approvals().Questions(cmd.Context())
				if err != nil {
					return err
				}
				return a.report(append([]unitask.Question{}, list...), func() { a.questionTable(list) })
			}
			verdict := unitask.AllowRun
			switch {
			case deny:
				verdict = unitask.Deny
			case once:
				verdict = unitask.AllowOnce
			}
			request := ""
			if len(args) == 3 {
				request = args[2]
			}
			id := a.sessionID(cmd.Context(), args[0])
			if err := rt.Approvals().Approve(cmd.Context(), id, args[1], request, verdict); err != nil {
				return hint(usage(err), "unitask approve lists what runs ask")
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&deny, "deny", false, "deny it for the rest of the run")
	cmd.Flags().BoolVar(&once, "once", false, "allow this one connection, or request; the next is asked about again")
	cmd.Flags().BoolVar(&always, "always", false, "list the permanent approvals")
	cmd.Flags().StringVar(&remove, "remove", "", "remove a HOST:PORT from the permanent approvals")
	cmd.MarkFlagsMutuallyExclusive("deny", "once", "always", "remove")
	return cmd
}

func (a *app) questionTable(list []unitask.Question) {
	var rows [][]string
	for _, q := range list {
		rows = append(rows, []string{q.RunID, safe(q.Host), safe(q.Request), safe(q.Rule), seconds(time.Until(q.Until))})
	}
	a.ui.table("RUN|HOST|REQUEST|RULE|LEFT", rows)
}

// listApproved prints the permanent approvals.
func (a *app) listApproved() error {
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	list, err := policy.OpenApprovals(home).List()
	if err != nil {
		return usage(err)
	}
	var rows [][]string
	for _, e := range list {
		rows = append(rows, []string{safe(e.Host), safe(cmp.Or(e.Ceiling, "none")), safe(e.By), safe(e.Run),
			e.At.Local().Format(time.DateTime)})
	}
	return a.report(append([]policy.Approved{}, list...), func() { a.ui.table("HOST|CEILING|BY|RUN|AT", rows) })
}

// disapprove removes a host and port from the permanent approvals.
func (a *app) disapprove(host string) error {
	home, err := a.homeFolder()
	if err != nil {
		return err
	}
	removed, err := policy.OpenApprovals(home).Remove(host)
	if errors.Is(err, policy.ErrNotApproved) {
		return hint(usage(err), "unitask approve --always lists what is")
	}
	if err != nil {
		return usage(err)
	}
	for _, e := range removed {
		if err := audit.In(home).Append(audit.Entry{Time: time.Now(), Kind: audit.ApprovalRemoved, Via: "cli",
			Detail: map[string]any{"host": e.Host, "ceiling": e.Ceiling, "by": e.By}}); err != nil {
			a.ui.note("%v", err)
		}
	}
	return nil
}

// approver asks on our terminal, if no other reader uses it; otherwise it prints how another terminal can answer.
func (a *app) approver(f runFlags) func(context.Context, unitask.Question) unitask.Verdict {
	tty, ok := a.std.Stdin.(*os.File)
	if !ok || !term.IsTerminal(int(tty.Fd())) || !a.ui.tty || f.tty || f.input {
		return func(_ context.Context, q unitask.Question) unitask.Verdict {
			a.ui.note("the code waits: it wants %s. Within %s: unitask approve %s %s", q.Wants(), left(q), q.RunID, q.Host)
			return ""
		}
	}
	var lines chan string // typed lines; one goroutine reads them until we exit
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
		fmt.Fprintf(a.std.Stderr, "%s\n", a.ui.plain()) // the code may have printed a line that looks like ours
		a.ui.note("the machine stands still: its code wants %s", q.Wants())
		for {
			fmt.Fprintf(a.std.Stderr, "%sunitask: allow it? o: this once, r: for this run, a: always, d: deny (or in %s) ",
				a.ui.plain(), left(q))
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
				case "a", "always":
					return unitask.AllowAlways
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

// forget drops lines that were typed before the question: they are no answer to it.
func forget(tty *os.File, lines <-chan string) {
	dropTyped(tty)
	for {
		select {
		case _, ok := <-lines:
			if ok {
				continue
			}
		case <-time.After(10 * time.Millisecond): // a line that was already read
		}
		return
	}
}

func left(q unitask.Question) time.Duration { return time.Until(q.Until).Round(time.Second) }
