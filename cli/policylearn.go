package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/learn"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// learnFlags are the flags of policy learn.
type learnFlags struct {
	opts           learn.Options
	policy, output string
	force, replay  bool
	asJSON         bool
}

func (a *app) policyLearn() *cobra.Command {
	var f learnFlags
	cmd := &cobra.Command{
		Use:   "learn RUN...",
		Short: "Print the fewest lines of a ceiling that recorded runs needed",
		Long: `Print a .unitask.toml with the hosts, requests and tools that the runs used, each line with the
requests that it covers. RUN is a run's id, a unique prefix of one, or "last".

A line never allows more than the rule that allowed the request then. A wildcard stays one if
several hosts below it were used. Requests by method and path are known only if unitask read
them: because a rule or a secret was about the host. What was refused is listed, and left out: the
code chose these names.

Each recorded request is checked against the file. With --replay the runs that connected to
nothing also run again under it, with the recorded answers of their tools.`,
		Example: `  unitask run --allow-net-any task.mjs
  unitask policy learn last
  unitask policy learn last --output .unitask.toml`,
		Args: cobra.MinimumNArgs(1),
		RunE: a.withRuntime(func(cmd *cobra.Command, args []string, rt *unitask.Runtime) error {
			return a.learn(cmd.Context(), rt, args, f)
		}),
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	fl.BoolVar(&f.opts.Refused, "refused", false, "also allow public hosts and requests that no rule allowed then")
	fl.BoolVar(&f.opts.Private, "private", false,
		"also allow refused addresses that are not public: of this host, its network, a cloud's metadata")
	fl.StringVar(&f.policy, "policy", "",
		"the policy file with the tables of tools; the first .unitask.toml from here upwards if not given")
	fl.StringVarP(&f.output, "output", "o", "", "write the file here instead of to standard output")
	fl.BoolVar(&f.force, "force", false, "replace a file that exists")
	fl.BoolVar(&f.replay, "replay", false, "run the runs that connected to nothing again, under the file")
	fl.BoolVar(&f.asJSON, "json", false, "print one object")
	return cmd
}

func (a *app) learn(ctx context.Context, rt *unitask.Runtime, args []string, f learnFlags) error {
	if f.force && f.output == "" {
		return usage(errors.New("--force says what --output may do: give both"))
	}
	var ids []string
	for _, arg := range args {
		id, err := rt.Runs().Find(arg)
		if err != nil {
			return usage(err)
		}
		ids = append(ids, id)
	}
	file, err := policy.NearestCeiling("")
	if f.policy != "" {
		file, err = policy.ReadCeiling(f.policy)
	}
	if err != nil {
		return usage(err)
	}
	if file != nil {
		f.opts.Servers = file.ToolServers()
	}
	p, err := learn.From(rt.Runs(), ids, f.opts)
	if errors.Is(err, learn.ErrTooMuch) || errors.Is(err, record.ErrNotFound) {
		return usage(err)
	}
	if err != nil {
		return err
	}
	var again []replayed
	if f.replay {
		if again, err = a.replayUnder(ctx, rt, p); err != nil {
			return err
		}
	}
	if f.output != "" {
		if err := writeLearned(f.output, p.File, f.force); err != nil {
			return err
		}
	}
	if f.asJSON {
		return a.ui.json(struct {
			*learn.Proposal
			Replays []replayed `json:"replays,omitempty"`
		}{p, again})
	}
	a.learned(p, again, f)
	return nil
}

// writeLearned writes the file.
func writeLearned(name, text string, force bool) error {
	if force {
		return atomicfile.Write(name, []byte(text), 0o600)
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return hint(usage(fmt.Errorf("%s is there already", name)), "--force replaces it")
	}
	if err != nil {
		return usage(fmt.Errorf("--output: %w", err))
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// learned prints a proposal: the file, or a table of its lines if it was written.
func (a *app) learned(p *learn.Proposal, again []replayed, f learnFlags) {
	if f.output == "" {
		for line := range strings.Lines(p.File) {
			fmt.Fprint(a.std.Stdout, visibleLine(line))
		}
	} else {
		var rows [][]string
		for _, line := range p.Lines {
			rows = append(rows, []string{line.Key, safe(line.Rule), fmt.Sprint(line.Requests), fmt.Sprint(len(line.Runs)),
				safe(line.Note)})
		}
		a.ui.table("KEY|RULE|REQUESTS|RUNS|NOTE", rows)
		a.ui.note("wrote %s; unitask policy trust %[1]s gives it to models, too", safe(f.output))
	}
	a.ui.note("checked: the file allows %s of the runs; %s left out", count(p.Checked, "request"),
		count(len(p.Left), "kind"))
	for _, text := range p.Unknown {
		a.ui.note("not known: %s", safe(text))
	}
	for _, r := range again {
		a.ui.note("replay of %s: %s", r.Run, safe(r.Said))
	}
}

// replayed is a run that ran again.
type replayed struct {
	Run    string `json:"run"`
	Replay string `json:"replay,omitempty"` // the new run
	Same   bool   `json:"same"`             // the same outcome, exit code and output
	Said   string `json:"said"`
}

// replayUnder runs the runs that connected to nothing again, under the proposal. A run that ends differently makes the
// exit code 1.
func (a *app) replayUnder(ctx context.Context, rt *unitask.Runtime, p *learn.Proposal) (list []replayed, err error) {
	ceiling, err := policy.ParseCeiling("the proposal", []byte(p.File))
	if err != nil {
		return nil, err
	}
	offline := map[string]bool{}
	for _, id := range p.Offline {
		offline[id] = true
	}
	for _, id := range p.Runs {
		r := replayed{Run: id, Said: "not run again: it would repeat its connections"}
		if offline[id] {
			r = a.replayOne(ctx, rt, id, ceiling)
			if !r.Same {
				a.code = 1
			}
		}
		if list = append(list, r); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return list, nil
}

func (a *app) replayOne(ctx context.Context, rt *unitask.Runtime, id string, ceiling *policy.Ceiling) replayed {
	r := replayed{Run: id}
	then, err := rt.History().Inspect(id, 0)
	if err != nil || then.Ended == nil || then.Session != "" {
		r.Said = "not run again: it is part of a session, or has no result"
		return r
	}
	req, err := rt.History().Request(id, "")
	if err == nil {
		req.Secrets, req.SecretHosts, err = a.readSecrets(ctx, req.SecretNames())
	}
	if err != nil {
		r.Said = "not run again: " + err.Error()
		return r
	}
	var stdout, stderr bytes.Buffer // the record has them without secrets
	res, err := rt.RunFor(ctx, callerHere(ceiling), req, unitask.IO{ToolsOf: id, Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		r.Said = "failed: " + err.Error()
		return r
	}
	r.Replay = res.RunID
	now, err := rt.History().Inspect(res.RunID, 0)
	switch {
	case err != nil:
		r.Said = err.Error()
	case res.Outcome != then.Ended.Outcome || res.ExitCode != then.Ended.ExitCode:
		r.Said = fmt.Sprintf("%s, code %d; then %s, code %d", res.Outcome, res.ExitCode, then.Ended.Outcome,
			then.Ended.ExitCode)
	case now.Stdout != then.Stdout || now.Stderr != then.Stderr:
		r.Said = "the same outcome, with other output"
	default:
		r.Same, r.Said = true, "the same outcome and output"
	}
	return r
}
