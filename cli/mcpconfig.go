package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/mcp"
)

func (a *app) mcpConfig() *cobra.Command {
	var write bool
	cmd := &cobra.Command{
		Use:   "config CLIENT [-- FLAGS...]",
		Short: "Print what goes into a client's configuration, or put it there",
		Long: `Config prints the configuration of an MCP client that starts unitask mcp, and the
file that it goes in; --write puts it there, keeps what is in the file, and the file
as it was beside it as .bak. Flags for unitask mcp follow --.

Clients: ` + strings.Join(mcp.Clients(), ", ") + ".",
		Example: `  unitask mcp config claude-code
  unitask mcp config cursor --write -- --policy /home/me/.unitask.toml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
				return usage(fmt.Errorf("unexpected argument %q: flags for unitask mcp follow --", args[1]))
			}
			home, err := os.UserHomeDir()
			if err != nil {
				return err
			}
			dir, err := os.Getwd()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			if real, err := filepath.EvalSymlinks(self); err == nil {
				self = real
			}
			cfg, err := mcp.ClientConfig(args[0], home, dir, self, append([]string{"mcp"}, args[1:]...))
			if err != nil {
				return usage(err)
			}
			if !write {
				fmt.Fprint(a.std.Stdout, cfg.Snippet)
				a.ui.note("goes into %s; --write puts it there", cfg.File)
				return nil
			}
			backup, err := cfg.Write()
			if err != nil {
				return err
			}
			if backup != "" {
				a.ui.note("written to %s; what was there is in %s", cfg.File, backup)
			} else {
				a.ui.note("it is in %s", cfg.File)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&write, "write", false, "put it into the client's file")
	return cmd
}
