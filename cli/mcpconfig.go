package cli

import (
	"errors"
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
	var write, all bool
	var plugin string
	cmd := &cobra.Command{
		Use:   "config [CLIENT] [-- FLAGS...]",
		Short: "Print what goes into a client's configuration, or put it there",
		Long: `Config prints the configuration of an MCP client that starts unitask mcp, and the
file that it goes in; --write puts it there, keeps what is in the file, and the file
as it was beside it as .bak. In a project it follows no link that leads out of it.
Flags for unitask mcp follow --. --all is for every client that this host has. --plugin is
for Claude Code: it writes a plugin with the server, hooks that have commands of the Bash tool
run in a machine (the command hook), and a skill.

A client that is started from a desktop has not your shell's environment: what unitask
needs of it (UNITASK_HOME and its like, folders of PATH that QEMU, npm or gcc are in) is
written down, too. A unitask that npx or uvx has started is named by that command.

Clients: ` + strings.Join(mcp.Clients(), ", ") + ".",
		Example: `  unitask mcp config claude-code
  unitask mcp config cursor --write -- --policy /home/me/.unitask.toml
  unitask mcp config --all --write
  unitask mcp config claude-code --plugin ./unitask-plugin`,
		RunE: func(cmd *cobra.Command, args []string) error {
			names, flags, err := configNames(cmd, args, all, plugin != "")
			if err != nil {
				return usage(err)
			}
			home, err := userdir.Home()
			if err != nil {
				return err
			}
			dir, err := userdir.Working()
			if err != nil {
				return err
			}
			if all {
				if names = mcp.InstalledClients(home, exec.LookPath); len(names) == 0 {
					return fmt.Errorf("none of these clients is on this host: %s; name one", strings.Join(mcp.Clients(), ", "))
				}
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			if real, err := filepath.EvalSymlinks(self); err == nil {
				self = real
			}
			h := host{os.Getenv, exec.LookPath, runtime.GOOS}
			command, before := runner(self, userdir.Share())
			var reports []map[string]any
			var failed []error
			for _, name := range names {
				cfg, err := mcp.ClientConfig(name, home, dir, command, append(before, flags...), h.desktopEnv(command))
				if err != nil {
					return usage(fmt.Errorf("%w%s", err, language.Nearest(name, mcp.Clients())))
				}
				if plugin != "" {
					return a.writePlugin(plugin, cfg, append([]string{command}, before[:len(before)-1]...), h.desktopEnv(command))
				}
				report, err := a.configOf(cfg, write)
				if err == nil {
					reports = append(reports, report)
				}
				failed = append(failed, err)
			}
			if err := errors.Join(failed...); err != nil { // the other clients have theirs
				return err
			}
			a.ui.note("%s", mcp.DefaultReach)
			if all {
				return a.report(reports, func() {})
			}
			return a.report(reports[0], func() {})
		},
	}
	cmd.Flags().BoolVar(&write, "write", false, "put it into the client's file")
	cmd.Flags().StringVar(&plugin, "plugin", "", "write a plugin for Claude Code into this folder")
	cmd.Flags().BoolVar(&all, "all", false, "for every client that this host has")
	return cmd
}

// configNames returns the clients and the flags of mcp config's arguments. With all there is no client.
func configNames(cmd *cobra.Command, args []string, all, plugin bool) (names, flags []string, err error) {
	names = args
	if at := cmd.ArgsLenAtDash(); at >= 0 {
		names, flags = args[:at], args[at:]
	}
	switch {
	case plugin && (cmd.Flags().Changed("write") || all || len(names) != 1 || names[0] != "claude-code"):
		return nil, nil, errors.New("--plugin is for claude-code, and goes with neither --write nor --all")
	case all && len(names) > 0:
		return nil, nil, fmt.Errorf("client %q: --all names them", names[0])
	case !all && len(names) == 0:
		return nil, nil, fmt.Errorf("name a client: %s; or --all", strings.Join(mcp.Clients(), ", "))
	case len(names) > 1:
		return nil, nil, fmt.Errorf("unexpected argument %q: flags for unitask mcp follow --", names[1])
	}
	return names, flags, nil
}

// configOf prints a client's configuration, or writes it. It returns the report of it.
func (a *app) configOf(cfg *mcp.Config, write bool) (map[string]any, error) {
	if !write {
		a.ui.note("goes into %s; --write puts it there", cfg.File)
		if !a.asJSON {
			fmt.Fprint(a.std.Stdout, cfg.Snippet)
		}
		return map[string]any{"client": cfg.Client, "file": cfg.File, "snippet": cfg.Snippet}, nil
	}
	backup, err := cfg.Write()
	if err != nil {
		return nil, err
	}
	if backup != "" {
		a.ui.note("written to %s; what was there is in %s", cfg.File, backup)
	} else {
		a.ui.note("it is in %s", cfg.File)
	}
	return map[string]any{"client": cfg.Client, "file": cfg.File, "backup": backup}, nil
}

// runner returns the command and first arguments that start the MCP server for a client. npx and uvx keep this program
// in a cache, which they may empty. share is the folder that was installed with this program: the command names its
// package, too. Clients start servers in a project. Without --prefix, npx would prefer the project's own unitask and
// registry.
func runner(self, share string) (command string, args []string) {
	cache, _, cached := strings.Cut(self, npxCache)
	prefix := cache + strings.TrimSuffix(npxCache, "/")
	switch {
	case cached && strings.Contains(share, npxCache):
		parts := "@unitask/" + filepath.Base(filepath.Dir(filepath.Dir(share)))
		return "npx", []string{"--prefix", prefix, "-y", "-p", "unitask", "-p", parts, "unitask", "mcp"}
	case cached:
		return "npx", []string{"--prefix", prefix, "-y", "unitask", "mcp"}
	case strings.Contains(self, uvxCache) && strings.Contains(share, uvxCache):
		return "uvx", []string{"--with", "unitask-parts", "unitask", "mcp"}
	case strings.Contains(self, uvxCache):
		return "uvx", []string{"unitask", "mcp"}
	}
	return self, []string{"mcp"}
}

// npxCache and uvxCache are in the paths of the programs that npx and uvx have started.
const npxCache, uvxCache = "/_npx/", "/uv/archive-v"

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
}{{"UNITASK_HOME", true}, {"UNITASK_QEMU", true}, {userdir.ShareVariable, true},
	{"UNITASK_PARTS_URL", false}, {"UNITASK_DEBIAN_MIRROR", false},
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

// desktopEnv returns the part of this environment that a server started from a desktop by command lacks.
func (h host) desktopEnv(command string) map[string]string {
	env := map[string]string{}
	for _, v := range variables {
		value := h.getenv(v.name)
		if value != "" && v.path {
			if abs, err := filepath.Abs(value); err == nil {
				value = abs
			}
		}
		if value != "" && !strings.Contains(value, npxCache) { // that one, npx sets again
			env[v.name] = value
		}
	}
	there := desktopPath(h.goos)
	var more []string
	programs := slices.Clone(looked)
	if !filepath.IsAbs(command) {
		programs = append(programs, command)
	}
	for _, program := range programs {
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
