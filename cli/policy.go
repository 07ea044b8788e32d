package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/policy"
)

func (a *app) policyCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "policy",
		Short: "Show or begin the ceiling that runs are held to",
		Long: `Policy is about .unitask.toml, the most that a run gets. It is looked for from
the working directory upwards: each one found narrows those above it, up to one that is trusted. A run that asks for
more gets less, and says so. While a file can't be read as it was meant (an unknown
key, a wrong type, written by others), no code runs.

What models get (unitask mcp) is narrower: see unitask policy trust.`,
	}, a.policyShow(), a.policyInit(), a.policyTrust(), a.policySet(), a.policyLearn())
}

func (a *app) policyShow() *cobra.Command {
	var f runFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [flags of run]",
		Short: "Show the ceiling here, and what a run with these flags would get",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			held, err := a.heldCeiling(f.policy)
			if err != nil {
				return err
			}
			ceiling := held.Ceiling
			req, err := f.granted(a, cmd)
			if err != nil {
				return err
			}
			effective, denials, err := unitask.Resolve(req, ceiling)
			if err != nil {
				return asFlags(cmd, err)
			}
			if denials == nil {
				denials = []policy.Denial{}
			}
			if asJSON {
				return a.ui.json(struct {
					Ceiling   *policy.Ceiling  `json:"ceiling"`
					Effective policy.Effective `json:"effective"`
					Denials   []policy.Denial  `json:"denials"`
				}{ceiling, effective, denials})
			}
			return a.policyTable(held, req, effective, denials, f.policy, cmd)
		},
	}
	cmd.Flags().SortFlags = false
	f.policyFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

// policyTable prints the fields that differ from the default.
func (a *app) policyTable(held *policy.ForPeople, req unitask.Request, effective policy.Effective,
	denials []policy.Denial, named string, cmd *cobra.Command) error {
	asked, err := json.Marshal(req)
	if err != nil {
		return err
	}
	gets, err := json.Marshal(effective)
	if err != nil {
		return err
	}
	if held.Ceiling == nil {
		a.ui.fact("file", "none: no %s here or above", policy.CeilingFile)
	} else {
		a.ui.fact("file", "%s", safe(held.String()))
	}
	if held := a.ignoredForModels(named); held != "" {
		a.ui.fact("models", "%s", safe(held))
	}
	for _, d := range denials {
		a.ui.fact("denied", "%s", denial(d))
	}
	for _, set := range setByDefaults(cmd) {
		a.ui.fact("default", "%s", safe(set))
	}
	var rows [][]string
	usual, _, err := unitask.Resolve(unitask.Request{}, nil)
	if err != nil {
		return err
	}
	for _, r := range policy.Rows(usual, asked, held.Ceiling, gets) {
		rows = append(rows, []string{r.Key, r.Asked, r.Ceiling, r.Gets})
	}
	if len(rows) == 0 {
		a.ui.fact("policy", "every value is the default; --json has all")
		return nil
	}
	fmt.Fprintln(a.std.Stdout)
	a.ui.table("KEY|ASKED|CEILING|GETS", rows)
	return nil
}

// ignoredForModels describes the parts of the ceiling's file that do not apply to models; "" if all apply.
func (a *app) ignoredForModels(named string) string {
	home, err := a.homeFolder()
	if err != nil {
		return err.Error()
	}
	held, err := policy.LoadForModels(home, "", named, false)
	if err != nil {
		return err.Error()
	}
	if held.Remedy() == "" {
		return ""
	}
	return held.String()
}

func (a *app) policyInit() *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Write a commented " + policy.CeilingFile + " into this folder",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f, err := os.OpenFile(policy.CeilingFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return usage(fmt.Errorf("%s is there already", policy.CeilingFile))
			}
			if err != nil {
				return err
			}
			_, err = f.WriteString(policy.Example)
			if err = errors.Join(err, f.Close()); err != nil {
				return err
			}
			a.ui.note("%s allows everything until a line of it is uncommented", policy.CeilingFile)
			return nil
		},
	}
}

func (a *app) policyTrust() *cobra.Command {
	var list, forget bool
	cmd := &cobra.Command{
		Use:   "trust [FILE]",
		Short: "Let a " + policy.CeilingFile + " widen what models get",
		Long: `Trust remembers FILE, by default the first .unitask.toml from here upwards, as
one that may give models more than the built-in ceiling does (unitask mcp): secrets, raw
TCP, files of other folders. Without it such a file may only narrow that ceiling: it
may have come with a repository. Read the file first.

It is remembered by its path and by what it says. When its text changes, or a folder
that it names leads elsewhere, it must be trusted again.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			home, err := a.homeFolder()
			if err != nil {
				return err
			}
			trust := policy.OpenTrust(home)
			if list {
				return a.listTrusted(trust, args)
			}
			forgotten := func(name string) error {
				err := trust.Forget(name)
				if err == nil {
					a.auditTrust(audit.CeilingForgotten, home, name, nil)
				}
				return usageOf(err)
			}
			if forget && len(args) == 1 { // also for a file that no longer exists
				return forgotten(args[0])
			}
			file, err := policy.NearestCeiling("")
			if len(args) == 1 {
				file, err = policy.ReadCeiling(args[0])
			}
			switch {
			case err != nil:
				return usage(err)
			case file == nil:
				return usage(fmt.Errorf("no %s here or above: name the file", policy.CeilingFile))
			case forget:
				return forgotten(file.Path)
			}
			if err := trust.Add(file, time.Now()); err != nil {
				return err
			}
			beyond := file.Beyond(policy.BuiltIn(filepath.Dir(file.Path), home))
			a.ui.note("%s is trusted as it is now; it gives models %s beyond the built-in ceiling", safe(file.Path),
				count(len(beyond), "value"))
			widens := []string{}
			for _, w := range beyond {
				widens = append(widens, w.String())
			}
			a.auditTrust(audit.CeilingTrusted, home, file.Path, widens)
			return a.report(map[string]any{"file": file.Path, "widens": widens}, func() {
				for _, w := range widens {
					a.ui.line("%s", safe(w))
				}
			})
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the trusted files, and whether they have changed")
	cmd.Flags().BoolVar(&forget, "forget", false, "stop trusting the file")
	cmd.MarkFlagsMutuallyExclusive("list", "forget")
	return cmd
}

// listTrusted prints the trusted files.
func (a *app) listTrusted(trust policy.Trust, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("unexpected argument %q: --list lists all", args[0]))
	}
	list, err := trust.List()
	if err != nil {
		return usage(err)
	}
	var rows [][]string
	for _, known := range list {
		state := "trusted"
		file, err := policy.ReadCeiling(known.Path)
		if err == nil {
			err = trust.Of(file)
		}
		if err != nil {
			state = err.Error()
		}
		rows = append(rows, []string{safe(known.Path), known.Since.Local().Format(time.DateTime), safe(state)})
	}
	type trusted struct {
		File  string    `json:"file"`
		Since time.Time `json:"since"`
		State string    `json:"state"`
	}
	all := []trusted{}
	for i, known := range list {
		all = append(all, trusted{known.Path, known.Since, rows[i][2]})
	}
	return a.report(all, func() { a.ui.table("FILE|SINCE|STATE", rows) })
}
