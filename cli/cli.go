// Package cli is the unitask command: a file for each subcommand, and ui.go for everything that is printed. It parses
// and prints; the packages below do the work.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/telemetry"
)

// Streams are a command's standard streams. Stdin is passed to the code if it is not a terminal.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Main runs the command line and returns the exit code. It never exits itself.
func Main(args []string, std Streams) int {
	// A closed pipe is a write error and must not kill us: the machine and the record still need cleanup.
	signal.Ignore(syscall.SIGPIPE)
	log.SetOutput(io.Discard) // net/http logs servers' unrequested data, which may contain secrets (netstack/broker)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C kills

	a := &app{std: std, ui: newUI(std)}
	defer telemetry.Start(ctx, version(), func(what string) { a.ui.note("%s", safe(what)) })()
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	a.ui.clear()
	if err == nil {
		return a.code
	}
	if a.readerGone(err) {
		return exitPipe
	}
	if a.code == 0 {
		a.code = exitCodeOf(err)
	}
	if a.asksForObject(cmd, args) {
		if err = a.failed(err); a.readerGone(err) {
			return exitPipe
		}
	}
	if err != nil {
		a.ui.fail(err)
	}
	return a.code
}

// exitPipe is the shell's exit code for a command whose reader closed the pipe.
const exitPipe = 128 + int(syscall.SIGPIPE)

// readerGone reports whether nobody reads our output any more, as with `| head -1`. As with other commands,
// nothing is printed about it; the run's record has the error.
func (a *app) readerGone(err error) bool {
	var write *fs.PathError
	if !errors.As(err, &write) || !errors.Is(write, syscall.EPIPE) {
		return false
	}
	return slices.ContainsFunc([]io.Writer{a.std.Stdout, a.std.Stderr}, func(w io.Writer) bool {
		f, ok := w.(*os.File)
		return ok && f.Name() == write.Path
	})
}

// Command returns the command line for tools that describe it: manual pages. Main runs it.
func Command() *cobra.Command {
	a := &app{}
	a.ui = newUI(a.std)
	return a.root()
}

// app is one invocation.
type app struct {
	std  Streams
	ui   *ui
	code int // the exit code, if the error does not determine it

	asJSON   bool // --json of a command that has no such flag
	answered bool // its answer is printed

	done any // what a command had done before an error

	misread bool // an error in the flags prevented reading the rest of them

	home    string
	accel   string
	store   *size
	verbose bool
	offline *pflag.Flag

	sessionFleet fleetFlags // of the session commands

	showing sync.Mutex
	editor  *term.Terminal // of a debug console on a terminal
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func usage(err error) error { return usageError{err} }

func exitCode(err error) int {
	if errors.As(err, new(usageError)) {
		return unitask.ExitUsage
	}
	return unitask.ExitCode(nil, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "unitask",
		Short: "Run untrusted code in a fresh, one-shot virtual machine",
		Long: `unitask runs code that nobody trusts (JavaScript, TypeScript, Python, shell, Go, or a
container image) in a fresh, one-shot virtual machine: code in, runs, result out,
machine gone, record kept.`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root = group(root, a.runCommand(), a.shellCommand(), a.replCommand(), a.sessionCommand(), a.inspectCommand(),
		a.applyCommand(), a.signCommand(), a.verifyCommand(), a.runsCommand(), a.approveCommand(), a.imageCommand(),
		a.mcpCommand(), a.codexExecCommand(), a.kernelCommand(), a.hookCommand(), a.skillCommand(),
		a.serveCommand(), a.consoleCommand(), a.poolCommand(), a.initCommand(), a.policyCommand(), a.auditCommand(),
		a.eventsCommand(),
		a.secretCommand(), a.toolsCommand(), a.webCommand(),
		a.diskCommand(), a.statsCommand(), a.languagesCommand(), a.doctorCommand(), a.debugCommand(), a.workerCommand(),
		a.fleetCommand(), a.selfCommand(), a.uninstallCommand())
	root.SetIn(a.std.Stdin)
	root.SetOut(a.std.Stdout)
	root.SetErr(a.std.Stderr)
	root.SetVersionTemplate("unitask {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		a.misread = true
		return flagError(cmd, err)
	})
	root.PersistentFlags().StringVar(&a.home, "home", "",
		"folder for parts, images and records (default $UNITASK_HOME, or ~/.unitask)")
	a.store = sizeVar(root.PersistentFlags(), "store-bytes", 1,
		"limit on the size of all records, -1 for none; beyond it the oldest are removed (default 10 GiB)")
	root.PersistentFlags().Bool("offline", false,
		"never fetch missing image parts: fail, and name the command that fetches them (also UNITASK_OFFLINE=1, or "+
			"offline = true in the home's "+unitask.ConfigFile+")")
	a.offline = root.PersistentFlags().Lookup("offline")
	root.PersistentFlags().BoolVarP(&a.verbose, "verbose", "v", false, "print more about what is being done, on stderr")
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Args = func(_ *cobra.Command, args []string) error {
				found, rest, _ := root.Find(args)
				return noArgument(found, rest)
			}
		case "completion":
			group(cmd)
		}
	}
	wrapArgs(root)
	a.addJSON(root)
	a.addCompletions(root)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { a.help(cmd) })
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		return writeUsage(cmd, cmd.OutOrStderr(), helpColumns(cmd.OutOrStderr()))
	})
	return root
}

// wrapArgs turns errors in a command's arguments into usage errors.
func wrapArgs(cmd *cobra.Command) {
	check := cmd.Args
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := emptyFlag(cmd)
		if err == nil && check != nil {
			err = check(cmd, args)
		}
		if err != nil {
			return hint(usage(err), cmd.CommandPath()+" --help")
		}
		return nil
	}
	for _, sub := range cmd.Commands() {
		wrapArgs(sub)
	}
}

// emptyFlag returns an error if a flag for a file, place or filter is empty. Usually a shell variable is not set, and a
// limit would then not apply.
func emptyFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		switch flag.Name {
		case "policy", "out", "release", "pcap", "ca", "http", "token-file", "jwks", "audience", "issuer", "url",
			"tls-cert", "tls-key", "kind", "owner", "since":
			if flag.Value.String() == "" && err == nil {
				err = fmt.Errorf("--%s is empty: give it a value, or leave it out", flag.Name)
			}
		}
	})
	return err
}

// open opens the runtime that every command but help uses.
func (a *app) open() (*unitask.Runtime, error) {
	return a.openWith(unitask.Options{Machines: unitask.PoolDaemon(nil)})
}

// homeFolder returns the home from --home or the environment.
func (a *app) homeFolder() (string, error) {
	if a.home != "" {
		return a.home, nil
	}
	return unitask.DefaultHome()
}

// openWith adds the options of all commands.
func (a *app) openWith(opts unitask.Options) (*unitask.Runtime, error) {
	opts.Home, opts.Accel, opts.Events = a.home, unitask.Accel(a.accel), a.ui.event(a.verbose)
	opts.StoreBytes, opts.Offline = a.store.n, a.mayNotFetch()
	return unitask.Open(opts)
}

// mayNotFetch returns the error for --offline, nil without the flag.
func (a *app) mayNotFetch() *bool {
	if !a.offline.Changed {
		return nil
	}
	said := a.offline.Value.String() == "true"
	return &said
}

// passOn returns the global flags, for another unitask process.
func (a *app) passOn(home string) []string {
	flags := []string{"--home", home}
	if a.offline.Changed {
		flags = append(flags, "--offline="+a.offline.Value.String())
	}
	return flags
}

// withRuntime provides a command with a runtime while it runs.
func (a *app) withRuntime(do func(*cobra.Command, []string, *unitask.Runtime) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		rt, err := a.open()
		if err != nil {
			return err
		}
		defer rt.Close()
		return do(cmd, args, rt)
	}
}

// withCeiling is like withRuntime, for a command with arguments that a policy file limits.
func (a *app) withCeiling(file *string, do func(*cobra.Command, []string, *unitask.Runtime) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return a.withRuntime(do)(cmd, args)
		}
		ceiling, err := a.findCeiling(*file)
		if err != nil {
			return err
		}
		rt, err := a.openWith(unitask.Options{Ceiling: ceiling, Machines: unitask.PoolDaemon(nil)})
		if err != nil {
			return err
		}
		defer rt.Close()
		return do(cmd, args, rt)
	}
}

// isGroup reports whether a command only contains other commands.
func isGroup(cmd *cobra.Command) bool { return cmd.Annotations["group"] != "" }

// noArgument takes an argument for the misspelt name of a command.
func noArgument(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), language.Nearest(args[0], names))
}

// group returns a command that only contains other commands.
func group(cmd *cobra.Command, members ...*cobra.Command) *cobra.Command {
	cmd.Annotations = map[string]string{"group": "yes"}
	cmd.Args = noArgument
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(members...)
	return cmd
}

// detached returns a command line of our own program that outlives us.
func detached(args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd, nil
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(s any) bool {
	f, ok := s.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
