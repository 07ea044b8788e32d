package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/home/config"
	"github.com/unitask/unitask/policy"
)

// byDefault marks a flag that a [defaults] table has set, with the table's file.
const byDefault = "unitask default of"

// applyDefaults sets flags that were not given from the [defaults] tables. The table of the nearest ceiling file comes
// first, that of the home's configuration last.
func (f *runFlags) applyDefaults(a *app, cmd *cobra.Command) error {
	held, err := a.heldCeiling(f.policy)
	if err != nil {
		return err
	}
	own, err := a.ownDefaults()
	if err != nil {
		return err
	}
	decided := map[string]bool{} // also by an empty list
	for _, d := range append(held.Defaults, own) {
		if !d.Trusted { // the file may have come with a repository
			if len(d.Flags) > 0 {
				a.ui.note("%s: its [defaults] apply once you trust it: unitask policy trust", safe(d.File))
			}
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(d.Flags)) {
			flag := cmd.Flags().Lookup(name)
			lang := cmd.Flags().Lookup("lang")
			if flag == nil || flag.Changed || decided[name] || name == "image" && lang != nil && lang.Changed {
				continue
			}
			decided[name] = true
			for _, value := range d.Flags[name] {
				if err := cmd.Flags().Set(name, value); err != nil {
					return usage(fmt.Errorf("%s: [defaults] %s: %w", safe(d.File), name, err))
				}
			}
			_ = cmd.Flags().SetAnnotation(name, byDefault, []string{d.File})
		}
	}
	return nil
}

// ownDefaults returns the defaults in the home's configuration.
func (a *app) ownDefaults() (policy.Defaults, error) {
	home, err := a.homeFolder()
	if err != nil {
		return policy.Defaults{}, err
	}
	table, err := config.Defaults(home)
	d := policy.Defaults{File: layout.Dir(home).Config(), Trusted: true}
	if err != nil || table == nil {
		return d, err
	}
	if d.Flags, err = policy.ParseDefaults(table); err != nil {
		return d, usage(fmt.Errorf("%s: [defaults] %w", safe(d.File), err))
	}
	return d, nil
}

// unlisted removes a list's own brackets; an IPv6 address in it may have brackets, too.
func unlisted(text string) string {
	if inner, is := strings.CutPrefix(text, "["); is && strings.HasSuffix(inner, "]") {
		return strings.TrimSuffix(inner, "]")
	}
	return text
}

// setByDefaults returns a line for each flag that a [defaults] table has set.
func setByDefaults(cmd *cobra.Command) (lines []string) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if file := flag.Annotations[byDefault]; len(file) > 0 {
			lines = append(lines, fmt.Sprintf("--%s %s, of %s", flag.Name, unlisted(flag.Value.String()), file[0]))
		}
	})
	return lines
}
