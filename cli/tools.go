package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

func (a *app) toolsCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "tools",
		Short: "Review the tools of MCP servers that code may call",
	}, a.toolsPin(), a.toolsLs())
}

// toolFile reads the policy file that has the tables of tools: the named one, or the first from here upwards.
func toolFile(named string) (*policy.Ceiling, error) {
	file, err := policy.NearestCeiling("")
	if named != "" {
		file, err = policy.ReadCeiling(named)
	}
	if err == nil && file == nil {
		err = fmt.Errorf("no %s here or above: name the file with --policy", policy.CeilingFile)
	}
	return file, err
}

func (a *app) toolsPin() *cobra.Command {
	var named string
	cmd := &cobra.Command{
		Use:   "pin NAME",
		Short: "Write the digest of a server's list of tools into the policy file",
		Long: `Pin starts the MCP server of the table [tools.NAME], prints its tools, and writes the digest of
their list into the table. Code may only call tools of a list that was reviewed so. When a server
has another list, its calls fail until you pin it again.

The server works on this host, so the file must be trusted (unitask policy trust). It stays so.`,
		Example: `  unitask tools pin github`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := toolFile(named)
			if err != nil {
				return usage(err)
			}
			server := file.ToolServers()[args[0]]
			if server == nil {
				return usage(fmt.Errorf("%s has no table [tools.%.60s]", file.Path, args[0]))
			}
			folder, err := a.homeFolder()
			if err != nil {
				return err
			}
			if err := mayStart(folder, file); err != nil {
				return err
			}
			a.ui.note("starting %s", safe(strings.Join(append(server.Command, server.URL), " ")))
			list, err := a.fetchTools(cmd.Context(), file, server)
			if err != nil {
				return err
			}
			if err := toolhost.Store(home.Dir(folder).Tools()).Save(list); err != nil {
				return err
			}
			if err := a.writePin(folder, file, server.Name, list.Digest()); err != nil {
				return err
			}
			return a.report(map[string]any{"server": server.Name, "pin": list.Digest(), "tools": list.Tools}, func() {
				a.ui.table("TOOL|CODE MAY CALL IT|ABOUT", toolRows(server, list))
			})
		},
	}
	cmd.Flags().StringVar(&named, "policy", "", "the policy file; the first .unitask.toml from here upwards if not given")
	return cmd
}

// fetchTools starts a server of a trusted file, and returns its list of tools.
func (a *app) fetchTools(ctx context.Context, file *policy.Ceiling, server *policy.ToolServer) (*toolhost.List, error) {
	if !server.Wrap {
		return toolhost.Fetch(ctx, server, os.Stderr, nil)
	}
	rt, err := a.openWith(unitask.Options{Ceiling: file})
	if err != nil {
		return nil, err
	}
	defer rt.Close()
	return toolhost.Fetch(ctx, server, os.Stderr, func(ctx context.Context, s *policy.ToolServer, stderr io.Writer) (
		*toolhost.Process, error) {
		return session.Starter(rt.NewSessionFor).ToolServer(ctx, file, s, stderr)
	})
}

// maxToolAbout bounds a description in a table.
const maxToolAbout = 60

func toolRows(server *policy.ToolServer, list *toolhost.List) (rows [][]string) {
	for _, t := range list.Tools {
		may := "yes"
		if !server.Allows(t.Name) {
			may = "no"
		} else if server.Approve {
			may = "if you say so"
		}
		about, _, _ := strings.Cut(t.Description, "\n")
		if len(about) > maxToolAbout {
			about = strings.ToValidUTF8(about[:maxToolAbout], "") + "…"
		}
		rows = append(rows, []string{safe(t.Name), may, safe(about)})
	}
	return rows
}

// mayStart reports an error unless the user trusts the file, whose commands work on this host.
func mayStart(folder string, file *policy.Ceiling) error {
	err := policy.OpenTrust(folder).Of(file)
	if errors.Is(err, policy.ErrNotTrusted) {
		return usage(fmt.Errorf("%w: its commands work on this host; read it, then: unitask policy trust %s", err,
			safe(file.Path)))
	}
	return err
}

// writePin writes a pin into the server's table of a trusted file, which stays trusted.
func (a *app) writePin(folder string, file *policy.Ceiling, name, digest string) error {
	file, err := policy.ReadCeiling(file.Path) // again: it may have changed while the server started
	if err != nil {
		return err
	}
	if err := mayStart(folder, file); err != nil {
		return err
	}
	text, err := os.ReadFile(file.Path)
	if err != nil {
		return err
	}
	now, err := policy.WithPin(file.Path, text, name, digest)
	if err != nil {
		return err
	}
	st, err := os.Stat(file.Path)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(file.Path, now, st.Mode().Perm()); err != nil {
		return err
	}
	again, err := policy.ReadCeiling(file.Path)
	if err != nil {
		return err
	}
	return policy.OpenTrust(folder).Add(again, time.Now())
}

func (a *app) toolsLs() *cobra.Command {
	var named string
	cmd := &cobra.Command{
		Use:   "ls [NAME]",
		Short: "List the servers of the policy file, or the reviewed tools of one",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			file, err := toolFile(named)
			if err != nil {
				return usage(err)
			}
			folder, err := a.homeFolder()
			if err != nil {
				return err
			}
			servers, store := file.ToolServers(), toolhost.Store(home.Dir(folder).Tools())
			if len(args) == 0 {
				return a.listToolServers(servers, store)
			}
			server := servers[args[0]]
			if server == nil {
				return usage(fmt.Errorf("%s has no table [tools.%.60s]", file.Path, args[0]))
			}
			list, err := store.Load(server.Pin)
			if server.Pin == "" || err != nil {
				return usage(fmt.Errorf("the tools of %s are not reviewed: unitask tools pin %[1]s", server.Name))
			}
			return a.report(map[string]any{"server": server.Name, "pin": server.Pin, "tools": list.Tools}, func() {
				a.ui.table("TOOL|CODE MAY CALL IT|ABOUT", toolRows(server, list))
			})
		},
	}
	cmd.Flags().StringVar(&named, "policy", "", "the policy file; the first .unitask.toml from here upwards if not given")
	return cmd
}

func (a *app) listToolServers(servers map[string]*policy.ToolServer, store toolhost.Store) error {
	type shown struct {
		Name  string `json:"name"`
		Works string `json:"works"` // its command or URL
		Pin   string `json:"pin,omitempty"`
		Tools int    `json:"tools"` // that code may call
	}
	list := []shown{}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s := servers[name]
		one := shown{Name: name, Works: strings.TrimSpace(strings.Join(append(s.Command, s.URL), " ")), Pin: s.Pin}
		reviewed := "not reviewed"
		if tools, err := store.Load(s.Pin); s.Pin != "" && err == nil {
			for _, t := range tools.Tools {
				if s.Allows(t.Name) {
					one.Tools++
				}
			}
			reviewed = count(one.Tools, "tool")
		} else if s.Pin != "" {
			reviewed = "pinned elsewhere"
		}
		list = append(list, one)
		rows = append(rows, []string{name, reviewed, safe(one.Works)})
	}
	return a.report(map[string]any{"servers": list}, func() { a.ui.table("SERVER|TOOLS|WORKS BY", rows) })
}

// toolTable returns the calls of tools of a run: totals in one line, and a row for each call.
func toolTable(rec *history.Inspection) (summary string, rows [][]string) {
	failed := 0
	for _, c := range rec.Tools {
		said := c.Code
		if said != "" {
			failed++
			said += ": " + c.Error
		}
		rows = append(rows, []string{safe(c.Server + "." + c.Tool), safe(string(c.Arguments)), secondsOf(c.Ms),
			safe(c.Rule), safe(said)})
	}
	return fmt.Sprintf("%s, %d failed", count(len(rec.Tools), "call"), failed), rows
}
