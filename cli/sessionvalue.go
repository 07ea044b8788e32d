package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
)

func (a *app) sessionPut() *cobra.Command {
	return &cobra.Command{
		Use:   "put SESSION NAME [JSON]",
		Short: "Give the code of a session a value",
		Long: fmt.Sprintf(`Put makes or replaces a value: JSON of 1 MiB at most, from standard input if none is given. Code
of every language finds it as the file %s/NAME.json in the machine.`, unitask.ValuesDir),
		Example: `  unitask session put build limits '{"retries": 3}'
  unitask session run build --code 'require("/work/.values/limits.json").retries'`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error {
			var text []byte
			if len(args) == 3 {
				text = []byte(args[2])
			} else {
				var err error
				if text, err = io.ReadAll(io.LimitReader(a.std.Stdin, unitask.MaxSessionValue+1)); err != nil {
					return err
				}
			}
			if len(text) > unitask.MaxSessionValue {
				return usage(fmt.Errorf("the value has more than %s: unitask session cp copies files",
					mebibytes(unitask.MaxSessionValue)))
			}
			if err := json.Unmarshal(text, new(any)); err != nil {
				return usage(fmt.Errorf("the value is not JSON, in which a text has quotes: %w", err))
			}
			_, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpPut, Session: args[0], Name: args[1], Value: text},
				sessiond.Streams{})
			return asFlags(cmd, err)
		},
	}
}

func (a *app) sessionGet() *cobra.Command {
	return &cobra.Command{
		Use:   "get SESSION [NAME]",
		Short: "Print a value of a session, or the names of all",
		Long: fmt.Sprintf(`Get prints a value, as put or the session's code has made it: the file %s/NAME.json in
the machine, which must hold JSON of 1 MiB at most. Without a NAME it prints all names, a line each.`,
			unitask.ValuesDir),
		Example: `  unitask session get build limits`,
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := sessiond.Request{Op: sessiond.OpGet, Session: args[0]}
			if len(args) == 2 {
				if req.Name = args[1]; req.Name == "" {
					return usage(errors.New("the name is empty"))
				}
			}
			answer, err := a.asked(cmd.Context(), req, sessiond.Streams{})
			if err != nil {
				return asFlags(cmd, err)
			}
			if answer.More {
				a.ui.note("there are others: unitask session exec %s -- ls %s", args[0], unitask.ValuesDir)
			}
			if req.Name != "" {
				return a.report(answer.Value, func() { fmt.Fprintf(a.std.Stdout, "%s\n", visibleJSON(answer.Value)) })
			}
			return a.report(append([]string{}, answer.Names...), func() {
				for _, name := range answer.Names {
					fmt.Fprintln(a.std.Stdout, name)
				}
			})
		},
	}
}
