package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/wrapped"
)

// lingerTime is how long a server may print nothing, after its client has closed its input, before its machine ends.
const lingerTime = 15 * time.Second

func (a *app) mcpWrap() *cobra.Command {
	var f runFlags
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "wrap [flags] -- COMMAND ARG...",
		Short: "Run another MCP server in a machine, for a client on stdin and stdout",
		Long: `Wrap runs a stdio MCP server in a fresh machine, under the policy of a run. Its input,
output, errors and exit code are those of the command. The machine ends with the server,
or when the client closes the server's input.

COMMAND is what a client's configuration has: npx PACKAGE or uvx PACKAGE (unitask installs
the package as --with does, once), node FILE, python -m MODULE, or with --image a command
of a container image. The server has no network, files and variables but those of flags.`,
		Example: `  unitask mcp wrap -- npx -y @modelcontextprotocol/server-memory
  unitask mcp wrap --dir ./data -- npx -y @modelcontextprotocol/server-filesystem data
  unitask mcp wrap --allow-net api.github.com --secret TOKEN@api.github.com -- uvx mcp-server-x
  unitask mcp wrap --dir ./server -- node server/main.js`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); len(args) == 0 || n != 0 {
				return hint(usage(errors.New("the server's command follows --")), "unitask mcp wrap -- npx -y PACKAGE")
			}
			return a.wrapServer(cmd, args, f, life)
		},
	}
	f.machineFlags(cmd, &life)
	return cmd
}

// wrapServer runs an MCP server in a session of its own.
func (a *app) wrapServer(cmd *cobra.Command, args []string, f runFlags, life time.Duration) error {
	if err := a.readsFolder(); err != nil {
		return err
	}
	server := wrapped.Server{Image: "shell", Args: args}
	if named := cmd.Flags().Lookup("image").Value.String(); named == "" || slices.Contains(language.Images(), named) {
		var err error
		if server, err = wrapped.Translate(args); err != nil {
			return usage(err)
		}
	}
	for _, p := range server.Packages {
		if err := cmd.Flags().Set("with", p); err != nil {
			return usage(err)
		}
	}
	limited := cmd.Flags().Changed("timeout")
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	s, end, err := a.ownSession(ctx, cmd, f, server.Image, "", life)
	if err != nil {
		return err
	}
	defer end()
	l := &linger{end: func() { stop(errLingers) }}
	defer l.stop()
	run := unitask.Command{Args: server.Args, Endless: true, Unbounded: true, ResultBytes: 1,
		Stdin: &wrapInput{a.std.Stdin, l}, Stdout: &wrapOutput{a.std.Stdout, l}, Stderr: &wrapOutput{a.std.Stderr, l}}
	if limited {
		run.Timeout = s.Policy.Effective.Timeout
	}
	res, err := s.Exec(ctx, run)
	if errors.Is(context.Cause(ctx), errLingers) {
		a.ui.note("the client is gone, and the server did not end: its machine is ended")
		return nil
	}
	a.code = unitask.ExitCode(res, err)
	if err == nil && res.Error != "" {
		a.ui.note("%s", safe(res.Error))
	}
	return err
}

var errLingers = errors.New("the client is gone")

// linger ends a server that still runs after its client has closed its input, once the server prints nothing more.
type linger struct {
	end func()

	mu    sync.Mutex
	timer *time.Timer // from the end of the input on
}

func (l *linger) closed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer == nil {
		l.timer = time.AfterFunc(lingerTime, l.end)
	}
}

func (l *linger) printed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Reset(lingerTime)
	}
}

func (l *linger) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
	}
}

type wrapInput struct {
	from io.Reader
	l    *linger
}

func (i *wrapInput) Read(p []byte) (int, error) {
	n, err := i.from.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		i.l.closed()
	}
	return n, err
}

// SetReadDeadline ends a Read, if the input supports that.
func (i *wrapInput) SetReadDeadline(at time.Time) error {
	if d, ok := i.from.(interface{ SetReadDeadline(time.Time) error }); ok {
		return d.SetReadDeadline(at)
	}
	return os.ErrNoDeadline
}

type wrapOutput struct {
	to io.Writer
	l  *linger
}

func (o *wrapOutput) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	o.l.printed()
	return n, err
}
