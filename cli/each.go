package cli

import "errors"

// severalErrors are errors about several items that the user named. Each is printed separately.
type severalErrors []error

func (s severalErrors) Error() string { return errors.Join(s...).Error() }

func (s severalErrors) Unwrap() []error { return s }

// collect joins the errors of a list that are not nil.
func collect(list []error) error {
	var several severalErrors
	for _, err := range list {
		if err != nil {
			several = append(several, err)
		}
	}
	if len(several) == 0 {
		return nil
	}
	return several
}

// exitCodeOf is like exitCode; of several errors, a fault of the host takes precedence over a mistake on the command
// line.
func exitCodeOf(err error) int {
	var several severalErrors
	if !errors.As(err, &several) {
		return exitCode(err)
	}
	code := 0
	for _, e := range several {
		code = max(code, exitCode(e))
	}
	return code
}

// removeEach removes several items, and continues after an error. remove returns the removed names, which are printed.
func (a *app) removeEach(names []string, remove func(name string) (removed []string, err error)) error {
	var errs []error
	all := []string{}
	for _, name := range names {
		removed, err := remove(name)
		errs, all = append(errs, err), append(all, removed...)
		for _, name := range removed {
			if !a.asJSON {
				a.ui.line("%s", name)
			}
		}
	}
	done := map[string]any{"removed": all}
	if err := collect(errs); err != nil {
		a.done = done
		return err
	}
	return a.report(done, func() {})
}
