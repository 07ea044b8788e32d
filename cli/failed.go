package cli

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
)

// A command that prints one result object prints one for its errors, too.

// resultObject is the annotation of the flag --json of such a command.
const resultObject = "result-object"

// resultFlag adds the flag.
func resultFlag(fl *pflag.FlagSet, asked *bool) {
	fl.BoolVar(asked, "json", false, "print one result object and nothing else, also for an error")
	_ = fl.SetAnnotation("json", resultObject, []string{})
}

// asksForObject reports whether a command line requests a result object, even if not all of its flags were read.
func (a *app) asksForObject(cmd *cobra.Command, args []string) bool {
	flag := cmd.Flags().Lookup("json")
	if flag == nil || flag.Annotations[resultObject] == nil {
		return false
	}
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return flag.Value.String() == "true" || a.misread && !flag.Changed && slices.Contains(args, "--json")
}

// failed is the result object of an error.
func (a *app) failed(err error) error {
	is := struct {
		Outcome      unitask.Outcome `json:"outcome"`
		ExitCode     int             `json:"exitCode"`
		Error        string          `json:"error"`
		Hint         string          `json:"hint,omitempty"`
		RetryAfterMS int64           `json:"retryAfterMs,omitempty"`
	}{Outcome: unitask.OutcomeFailed, ExitCode: a.code, Error: err.Error()}
	var busy *unitask.BusyError
	var h hinted
	switch {
	case exitCode(err) == unitask.ExitUsage:
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
