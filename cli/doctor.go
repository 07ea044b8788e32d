package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/web"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/vmm"
)

func (a *app) doctorCommand() *cobra.Command {
	var asJSON, attack bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything a run needs, and boot a machine",
		Long: `Doctor checks QEMU, the vendored parts, the image, the store and what models get here, and boots the image ` +
			`on every accelerator that might work here. It exits with 1 if something is wrong.

With --attack it starts a stand-in for a QEMU that was broken out of, in the jail that machines get here, which ` +
			`tries everything that must not be possible from there: ` +
			`files, sockets, processes, devices, the kernel's interfaces, limits. ` +
			`Each is made again without the filter for system calls, to show what holds behind it. ` +
			`It exits with 1 if an attempt gets through.`,
		Args: cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			if attack {
				return a.attack(cmd.Context(), rt, asJSON)
			}
			r := examine(cmd.Context(), rt)
			if !r.OK {
				a.code = 1
			}
			if asJSON {
				return a.ui.json(r)
			}
			for _, c := range r.Checks {
				a.ui.check(sign(c.OK), c.Name, "%s", safe(c.Detail))
				if c.Remedy != "" {
					fmt.Fprint(a.std.Stdout, "    hint: ")
					writeWrapped(a.std.Stdout, visible(c.Remedy), columnsOf(a.std.Stdout), len("    hint: "))
				}
			}
			for _, acc := range r.Accelerators {
				if acc.OK {
					a.ui.check(sign(true), "accel", "%s boots in %s", acc.Accel, secondsOf(acc.BootMs))
				} else {
					a.ui.check("-", "accel", "%s: %s", acc.Accel, safe(acc.Reason))
				}
			}
			a.ui.line("%s", r.Verdict)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one report object")
	cmd.Flags().BoolVar(&attack, "attack", false, "attack the jail from inside, and say what gets through")
	cmd.Flags().StringVar(&a.accel, "accel", "auto", "accelerator to boot with: auto, kvm, hvf or tcg")
	return cmd
}

// examine makes the report of doctor.
func examine(ctx context.Context, rt *unitask.Runtime) *doctor.Report {
	r := rt.Doctor(ctx)
	held, err := policy.LoadForModels(rt.Images().Home(), "", "", false)
	r.Ceiling(held, err)
	checkSearch(ctx, rt, r)
	return r
}

// checkSearch adds a line to a report for each search backend of the home's configuration. Code runs without them, so
// the verdict stays.
func checkSearch(ctx context.Context, rt *unitask.Runtime, r *doctor.Report) {
	states, err := web.Backends(ctx, rt.Images().Home())
	if err != nil {
		states = []web.Backend{{Name: "search", Err: err}}
	}
	for _, s := range states {
		c := doctor.Check{Name: "search", OK: s.Err == nil, Detail: s.Name + " can be asked"}
		if s.Err != nil {
			c.Detail, c.Remedy = s.Name+": "+s.Err.Error(), "web_search needs it: see [search."+s.Name+"] of config.toml"
		}
		r.Checks = append(r.Checks, c)
	}
}

// attack prints the results of the attempts to get out of the jail.
func (a *app) attack(ctx context.Context, rt *unitask.Runtime, asJSON bool) error {
	attempts, jail, err := rt.Attack(ctx)
	if err != nil {
		return err
	}
	rows, through := a.attackRows(attempts)
	if through > 0 {
		a.code = 1
	}
	if asJSON {
		return a.ui.json(map[string]any{"ok": through == 0, "jail": jail, "attempts": attempts})
	}
	a.ui.table("|ATTACK|EXPECTED|SEEN|WITHOUT THE FILTER", rows)
	a.ui.line("%s, %d got through; held by %s", count(len(attempts), "attempt"), through, safe(jail.String()))
	return nil
}

// attackRows returns the lines of the table, and how many attempts got through.
func (a *app) attackRows(attempts []vmm.Attempt) (rows [][]string, through int) {
	for _, t := range attempts {
		if t.Through {
			through++
		}
		rows = append(rows, []string{sign(!t.Through), t.Name, "stopped", safe(t.Seen), safe(t.Behind)})
	}
	return rows, through
}
