package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/policy"
)

// These start the program of an installed package as npx and uvx do, in the same process.
var (
	//go:embed mcpwrap.js
	npxStart string
	//go:embed mcpwrap.py
	uvxStart string
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
	server := wrapped{image: "shell", args: args}
	if named := cmd.Flags().Lookup("image").Value.String(); named == "" || slices.Contains(language.Images(), named) {
		var err error
		if server, err = translate(args); err != nil {
			return usage(err)
		}
	}
	for _, p := range server.packages {
		if err := cmd.Flags().Set("with", p); err != nil {
			return usage(err)
		}
	}
	limited := cmd.Flags().Changed("timeout")
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	s, end, err := a.ownSession(ctx, cmd, f, server.image, "", life)
	if err != nil {
		return err
	}
	defer end()
	l := &linger{end: func() { stop(errLingers) }}
	defer l.stop()
	run := unitask.Command{Args: server.args, Endless: true, Unbounded: true, ResultBytes: 1,
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

// wrapped is how a server starts in a machine.
type wrapped struct {
	image    string
	packages []string // as --with has them
	args     []string
}

// translate returns how the command of a client's configuration starts in a machine of ours.
func translate(args []string) (wrapped, error) {
	name, rest := path.Base(args[0]), args[1:]
	switch {
	case name == "npx" || name == "bunx":
		return translateNpx(name, rest)
	case name == "uvx":
		return translateUvx(name, rest)
	case name == "pipx" && len(rest) > 0 && rest[0] == "run":
		return translateUvx("pipx run", rest[1:])
	case name == "node":
		return wrapped{image: "node", args: append([]string{"node"}, rest...)}, nil
	case name == "python" || name == "python3":
		return wrapped{image: "python", args: append([]string{"python3"}, rest...)}, nil
	case name == "docker" || name == "podman":
		return wrapped{}, fmt.Errorf("%s: a machine has no containers: --image IMAGE -- COMMAND runs a command of an image",
			name)
	}
	return wrapped{image: "shell", args: args}, nil
}

// Options of npx and uvx, with what they mean to us.
const (
	optionIgnored = iota + 1
	optionPackage // a further package, or the one that has the program
)

// options reads the options in front of a program's name.
func options(tool string, args []string, known map[string]int) (packages, rest []string, err error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		option, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		if option == "--" {
			break
		}
		switch known[option] {
		case optionIgnored:
		case optionPackage:
			if !joined {
				if len(args) == 0 {
					return nil, nil, fmt.Errorf("%s %s: a package must follow", tool, option)
				}
				value, args = args[0], args[1:]
			}
			packages = append(packages, value)
		default:
			return nil, nil, fmt.Errorf("%s %s: unitask knows no such option of %s: it knows -y and the packages'",
				tool, option, tool)
		}
	}
	if len(args) == 0 {
		return nil, nil, fmt.Errorf("%s: a package must follow", tool)
	}
	return packages, args, nil
}

func translateNpx(tool string, args []string) (w wrapped, err error) {
	packages, rest, err := options(tool, args, map[string]int{"-y": optionIgnored, "--yes": optionIgnored,
		"-q": optionIgnored, "--quiet": optionIgnored, "--bun": optionIgnored, "-p": optionPackage,
		"--package": optionPackage})
	if err != nil {
		return w, err
	}
	program := rest[0]
	if len(packages) == 0 {
		packages, program = []string{rest[0]}, ""
	}
	for _, p := range packages {
		rule, err := policy.ParsePackage("npm:" + strings.TrimSuffix(p, "@latest"))
		if err != nil {
			return w, fmt.Errorf("%s %.80q: %w", tool, p, err)
		}
		w.packages = append(w.packages, string(rule))
	}
	first := strings.TrimPrefix(w.packages[0], "npm:")
	if at := strings.LastIndexByte(first, '@'); at > 0 {
		first = first[:at]
	}
	w.image = "node"
	w.args = slices.Concat([]string{"node", "-e", npxStart, "--", first, program}, rest[1:])
	return w, nil
}

func translateUvx(tool string, args []string) (w wrapped, err error) {
	packages, rest, err := options(tool, args, map[string]int{"-q": optionIgnored, "--quiet": optionIgnored,
		"--from": optionPackage, "--spec": optionPackage, "--with": optionPackage})
	if err != nil {
		return w, err
	}
	program := rest[0]
	if !slices.ContainsFunc(args[:len(args)-len(rest)], func(option string) bool {
		return strings.HasPrefix(option, "--from") || strings.HasPrefix(option, "--spec")
	}) { // the program has its package's name
		name, version, _ := strings.Cut(rest[0], "@")
		spec := name
		if version != "" && version != "latest" {
			spec += "==" + version
		}
		packages = append([]string{spec}, packages...)
		program = name[:strings.IndexAny(name+"[", "[=<>~!")]
	}
	for _, p := range packages {
		rule, err := policy.ParsePackage("pip:" + p)
		if err != nil {
			return w, fmt.Errorf("%s %.80q: %w", tool, p, err)
		}
		w.packages = append(w.packages, string(rule))
	}
	w.image = "python"
	w.args = slices.Concat([]string{"python3", "-c", uvxStart, program}, rest[1:])
	return w, nil
}

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
