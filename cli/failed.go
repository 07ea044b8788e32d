package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
)

// A command with --json prints one JSON value for its errors, too.

// resultFlag adds the flag.
func resultFlag(fl *pflag.FlagSet, asked *bool) {
	fl.BoolVar(asked, "json", false, "print one result object and nothing else, also for an error")
}

// asksForObject reports whether a command line requests a result object, even if not all of its flags were read.
func (a *app) asksForObject(cmd *cobra.Command, args []string) bool {
	flag := cmd.Flags().Lookup("json")
	if flag == nil {
		return false
	}
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return flag.Value.String() == "true" || a.misread && !flag.Changed && slices.Contains(args, "--json")
}

// flows are the commands without --json: they serve, open a terminal, or print a line of JSON for each entry or step.
var flows = []string{"mcp", "mcp wrap", "codex-exec", "kernel run", "hook claude-code", "skill run",
	"serve", "ui", "worker", "shell", "repl", "session attach", "events", "audit export",
	"pool serve",
	"session serve", "session forward", "debug run", "debug attach", "debug script", "debug trace"}

// addJSON gives every command --json that prints and does not have it.
func (a *app) addJSON(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		a.addJSON(sub)
	}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	do := cmd.RunE
	if do == nil || isGroup(cmd) || cmd.Flags().Lookup("json") != nil || slices.Contains(flows, path) ||
		strings.HasPrefix(path, "completion ") { // a shell reads it
		return
	}
	cmd.Flags().BoolVar(&a.asJSON, "json", false, "print JSON, also for an error")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := do(cmd, args)
		if err == nil && a.asJSON && !a.answered {
			return a.ui.json(map[string]any{"exitCode": a.code})
		}
		return err
	}
}

// report prints what a command has found: as JSON with --json, else as text.
func (a *app) report(v any, text func()) error {
	if a.asJSON {
		a.answered = true
		return a.ui.json(v)
	}
	text()
	return nil
}

// failed is the result object of an error.
func (a *app) failed(err error) error {
	is := struct {
		Outcome      unitask.Outcome `json:"outcome"`
		ExitCode     int             `json:"exitCode"`
		Error        string          `json:"error"`
		Hint         string          `json:"hint,omitempty"`
		RetryAfterMS int64           `json:"retryAfterMs,omitempty"`
		Done         any             `json:"done,omitempty"` // before the error
	}{Outcome: unitask.OutcomeFailed, ExitCode: a.code, Error: err.Error(), Done: a.done}
	var busy *unitask.BusyError
	var h hinted
	switch {
	case exitCodeOf(err) == unitask.ExitUsage:
		is.Outcome = "usage"
	case is.ExitCode == unitask.ExitCancelled:
		is.Outcome = unitask.OutcomeCancelled
	case errors.As(err, &busy):
		is.Outcome, is.RetryAfterMS = unitask.OutcomeBusy, busy.After.Milliseconds()
	}
	if errors.As(err, &h) {
		is.Hint = h.hint
	}
	return a.ui.json(is)
}
