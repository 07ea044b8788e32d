package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

func (a *app) doctorCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check everything a run needs, and boot a machine",
		Long:  `Doctor checks QEMU, the vendored parts, the image, the store and what models get here, and boots the image on every accelerator that might work here. It exits with 1 if something is wrong.`,
		Args:  cobra.NoArgs,
		RunE: a.withRuntime(func(cmd *cobra.Command, _ []string, rt *unitask.Runtime) error {
			r := rt.Doctor(cmd.Context())
			held, err := policy.LoadForModels(rt.Images().Home(), "", "", false)
			r.Ceiling(held, err)
			if !r.OK {
				a.code = 1
			}
			if asJSON {
				return a.ui.json(r)
			}
			for _, c := range r.Checks {
				fmt.Fprintf(a.std.Stdout, "%s %-8s %s\n", a.ui.mark(c.OK), c.Name, safe(c.Detail))
				if c.Remedy != "" {
					fmt.Fprintf(a.std.Stdout, "    hint: %s\n", c.Remedy)
				}
			}
			for _, acc := range r.Accelerators {
				if acc.OK {
					fmt.Fprintf(a.std.Stdout, "%s accel    %s boots in %d ms\n", a.ui.mark(true), acc.Accel, acc.BootMs)
				} else {
					fmt.Fprintf(a.std.Stdout, "- accel    %s: %s\n", acc.Accel, safe(acc.Reason))
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one report object")
	cmd.Flags().StringVar(&a.accel, "accel", "auto", "accelerator to boot with: auto, kvm, hvf or tcg")
	return cmd
}
