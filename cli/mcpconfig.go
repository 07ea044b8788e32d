package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/mcp"
)

func (a *app) mcpConfig() *cobra.Command {
	var write bool
	cmd := &cobra.Command{
		Use:   "config CLIENT [-- FLAGS...]",
		Short: "Print what goes into a client's configuration, or put it there",
		Long: `Config prints the configuration of an MCP client that starts unitask mcp, and the
file that it goes in; --write puts it there, keeps what is in the file, and the file
as it was beside it as .bak. In a project it follows no link that leads out of it.
Flags for unitask mcp follow --.

A client that is started from a desktop has not your shell's environment: what unitask
needs of it (UNITASK_HOME and its like, folders of PATH that QEMU, npm or gcc are in) is
written down, too.

Clients: ` + strings.Join(mcp.Clients(), ", ") + ".",
		Example: `  unitask mcp config claude-code
  unitask mcp config cursor --write -- --policy /home/me/.unitask.toml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 && cmd.ArgsLenAtDash() != 1 {
				return usage(fmt.Errorf("unexpected argument %q: flags for unitask mcp follow --", args[1]))
			}
			home, err := userdir.Home()
			if err != nil {
				return err
			}
			dir, err := userdir.Working()
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
			cfg, err := mcp.ClientConfig(args[0], home, dir, self, append([]string{"mcp"}, args[1:]...),
				host{os.Getenv, exec.LookPath, runtime.GOOS}.desktopEnv())
			if err != nil {
				return usage(fmt.Errorf("%w%s", err, language.Nearest(args[0], mcp.Clients())))
			}
			defer a.ui.note("%s", mcp.DefaultReach)
			if !write {
				a.ui.note("goes into %s; --write puts it there", cfg.File)
				return a.report(map[string]any{"file": cfg.File, "snippet": cfg.Snippet},
					func() { fmt.Fprint(a.std.Stdout, cfg.Snippet) })
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
			return a.report(map[string]any{"file": cfg.File, "backup": backup}, func() {})
		},
	}
	cmd.Flags().BoolVar(&write, "write", false, "put it into the client's file")
	return cmd
}

// host is the system for which a server's environment is made.
type host struct {
	getenv func(string) string
	look   func(program string) (path string, err error)
	goos   string
}

// variables are unitask's variables that change a server's behaviour; the value tells whether it is a path.
var variables = []struct {
	name string
	path bool
}{{"UNITASK_HOME", true}, {"UNITASK_QEMU", true}, {"UNITASK_PARTS_URL", false}, {"UNITASK_DEBIAN_MIRROR", false},
	{"UNITASK_OFFLINE", false}}

// looked are the programs that a server searches for in PATH.
var looked = []string{"qemu-system-x86_64", "qemu-system-aarch64", "npm", "gcc"}

// desktopPath returns the PATH of a program that is started from a desktop: launchd's, or systemd's.
func desktopPath(goos string) []string {
	if goos == "darwin" {
		return []string{"/usr/bin", "/bin", "/usr/sbin", "/sbin"}
	}
	return []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}
}

// desktopEnv returns the part of this environment that a server started from a desktop lacks.
func (h host) desktopEnv() map[string]string {
	env := map[string]string{}
	for _, v := range variables {
		value := h.getenv(v.name)
		if value != "" && v.path {
			if abs, err := filepath.Abs(value); err == nil {
				value = abs
			}
		}
		if value != "" {
			env[v.name] = value
		}
	}
	there := desktopPath(h.goos)
	var more []string
	for _, program := range looked {
		path, err := h.look(program)
		if dir := filepath.Dir(path); err == nil && filepath.IsAbs(dir) && !slices.Contains(there, dir) &&
			!slices.Contains(more, dir) {
			more = append(more, dir)
		}
	}
	if len(more) > 0 {
		env["PATH"] = strings.Join(append(more, there...), string(filepath.ListSeparator))
	}
	return env
}
