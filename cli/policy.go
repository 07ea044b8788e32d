package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/policy"
)

func (a *app) policyCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "policy",
		Short: "Show or begin the ceiling that runs are held to",
		Long: `Policy is about .unitask.toml, the most that a run gets. It is looked for from
the working directory upwards, and the first one found holds. A run that asks for
more gets less, and says so; a file that can't be read as it was meant (an unknown
key, a wrong type, written by others) lets nothing run.`,
	}, a.policyShow(), a.policyInit())
}

func (a *app) policyShow() *cobra.Command {
	var f runFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show [flags of run]",
		Short: "Show the ceiling here, and what a run with these flags would get",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ceiling, err := findCeiling("", f.policy)
			if err != nil {
				return err
			}
			req, err := f.granted(cmd)
			if err != nil {
				return err
			}
			effective, denials, err := req.Resolve(ceiling)
			if err != nil {
				return err
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
			row := func(name string, v any) {
				text, err := json.Marshal(v)
				if err == nil {
					fmt.Fprintf(a.std.Stdout, "%-10s %s\n", name, text)
				}
			}
			if ceiling == nil {
				fmt.Fprintf(a.std.Stdout, "%-10s none: no %s here or above\n", "file", policy.CeilingFile)
			} else {
				fmt.Fprintf(a.std.Stdout, "%-10s %s\n", "file", safe(ceiling.Path))
				row("ceiling", ceiling)
			}
			row("effective", effective)
			for _, d := range denials {
				fmt.Fprintf(a.std.Stdout, "%-10s %s\n", "denied", denial(d))
			}
			return nil
		},
	}
	cmd.Flags().SortFlags = false
	f.policyFlags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object")
	return cmd
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
