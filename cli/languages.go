package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
)

func (a *app) languagesCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "languages",
		Short: "List the languages that runs may have, and their images",
		Long: `List the languages that runs may have: unitask's own, those of the images that it builds
on first use from packages of Debian or npm, and those that your images declare. STATE is the
size of the image, or "on first use" if that builds it. ABOUT has what the image adds.`,
		Args: cobra.NoArgs,
		RunE: a.withRuntime(func(_ *cobra.Command, _ []string, rt *unitask.Runtime) error {
			list := rt.Catalog().ListLanguages(nil)
			if asJSON {
				return a.ui.json(list)
			}
			var rows [][]string
			for _, l := range list {
				state := "on first use"
				if l.Ready {
					state = fmt.Sprintf("%d MiB", l.SizeMB)
				}
				rows = append(rows, []string{l.Name, strings.Join(l.Extensions, " "), l.Image, l.Version, state, l.About})
			}
			a.ui.table("LANGUAGE|EXTENSIONS|IMAGE|VERSION|STATE|ABOUT…", rows)
			return nil
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}
