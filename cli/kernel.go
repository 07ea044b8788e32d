package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/jupyter"
)

func (a *app) kernelCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "kernel",
		Short: "Run the cells of Jupyter notebooks in a machine",
		Long: `Kernel adds a kernel to Jupyter whose code runs in a fresh machine, under the policy of
a run. Every kernel that Jupyter starts has its own machine, which ends with it.`,
	}, a.kernelInstall(), a.kernelList(), a.kernelRemove(), a.kernelRun())
}

// kernelPlace is the folder of Jupyter's kernels that flags name.
type kernelPlace struct{ prefix string }

func (p *kernelPlace) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.prefix, "prefix", "",
		"the folder of a virtual environment (sys.prefix), whose Jupyter has the kernel; by default it is the user's")
}

func (p *kernelPlace) dir() (string, error) {
	if p.prefix == "" {
		return jupyter.UserKernels()
	}
	prefix, err := filepath.Abs(p.prefix)
	if err == nil {
		_, err = os.Stat(prefix)
	}
	if err != nil {
		return "", usage(fmt.Errorf("--prefix: %w", err))
	}
	return jupyter.PrefixKernels(prefix), nil
}

func (a *app) kernelInstall() *cobra.Command {
	var f runFlags
	var life time.Duration
	var at kernelPlace
	var name, display string
	cmd := &cobra.Command{
		Use:   "install [flags]",
		Short: "Write a kernel for Jupyter whose code runs in a machine",
		Long: `Install writes a kernel.json for Jupyter. Its kernels have machines with the flags that
stand here. Relative paths in them, and the ceiling, count from the notebook's folder.
A kernel of this name that unitask has installed is replaced.`,
		Example: `  unitask kernel install
  unitask kernel install --name science --image data --memory 2G --allow-net api.example.com
  unitask kernel install --prefix .venv --with pip:ipython`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := givenFlags(cmd, "name", "display-name", "prefix", "json", "home")
			if !cmd.Flags().Changed("secret") { // whose values only a kernel needs
				if _, err := f.machine(a, cmd, ""); err != nil {
					return err
				}
			}
			home, err := a.homeFolder()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			kernels, err := at.dir()
			if err != nil {
				return err
			}
			args := append([]string{self, "kernel", "run", "--home", home}, flags...)
			dir, err := jupyter.Install(kernels, name, jupyter.NewSpec(display, args...))
			if err != nil {
				return usage(err)
			}
			return a.report(map[string]any{"name": name, "dir": dir}, func() {
				fmt.Fprintln(a.std.Stdout, dir)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&name, "name", "unitask", "the kernel's name for programs")
	fl.StringVar(&display, "display-name", "Python (unitask)", "its name for people")
	at.add(cmd)
	f.machineFlags(cmd, &life)
	f.projectFlags(cmd)
	trustFlag(cmd, new(bool))
	return cmd
}

func trustFlag(cmd *cobra.Command, trust *bool) {
	cmd.Flags().BoolVar(trust, "trust-output", false, "pass HTML, JavaScript and other types of output on unchanged: "+
		"in a browser, the code may then do all that you may do in Jupyter, as start programs on this host")
}

// givenFlags returns the flags of a command line that were given, without some.
func givenFlags(cmd *cobra.Command, without ...string) (list []string) {
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if slices.Contains(without, flag.Name) {
			return
		}
		values := []string{flag.Value.String()}
		if of, ok := flag.Value.(pflag.SliceValue); ok {
			values = of.GetSlice()
		}
		for _, value := range values {
			if flag.NoOptDefVal == value {
				list = append(list, "--"+flag.Name)
			} else {
				list = append(list, "--"+flag.Name+"="+value)
			}
		}
	})
	return list
}

func (a *app) kernelList() *cobra.Command {
	var at kernelPlace
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the kernels that unitask has added to Jupyter",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			kernels, err := at.dir()
			if err != nil {
				return err
			}
			list, err := jupyter.List(kernels)
			if err != nil {
				return err
			}
			if list == nil {
				list = []jupyter.Installed{}
			}
			return a.report(list, func() {
				var rows [][]string
				for _, one := range list {
					flags := one.Args[min(len(one.Args), 5):max(len(one.Args)-1, min(len(one.Args), 5))]
					rows = append(rows, []string{one.Name, one.Display, strings.Join(flags, " ")})
				}
				a.ui.table("NAME|SHOWN AS|FLAGS", rows)
			})
		},
	}
	at.add(cmd)
	return cmd
}

func (a *app) kernelRemove() *cobra.Command {
	var at kernelPlace
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove kernels that unitask has added to Jupyter",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			kernels, err := at.dir()
			if err != nil {
				return err
			}
			return a.removeEach(args, func(name string) ([]string, error) {
				err := jupyter.Remove(kernels, name)
				if errors.Is(err, fs.ErrNotExist) {
					err = hint(usage(fmt.Errorf("no kernel %.80q in %s", name, kernels)), "unitask kernel ls lists them")
				}
				if err != nil {
					return nil, err
				}
				return []string{name}, nil
			})
		},
	}
	at.add(cmd)
	return cmd
}

func (a *app) kernelRun() *cobra.Command {
	var f runFlags
	var life time.Duration
	var trust, behind bool
	cmd := &cobra.Command{
		Use:   "run [flags] CONNECTIONFILE",
		Short: "Run as a kernel of Jupyter, which starts this itself",
		Long: `Run serves Jupyter as a kernel whose code runs in a fresh machine. Jupyter starts it with a
connection file, which has the ports and the key. It ends with Jupyter's shutdown, with
the process that has started it, or with the machine. With --project it has the project's
files. What changed is then a proposal, as after codex-exec.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.readsFolder(); err != nil {
				return err
			}
			ctx, stop := context.WithCancel(context.WithoutCancel(cmd.Context())) // SIGINT does not end it
			defer stop()
			interrupts := watchSignals(ctx, stop)
			if behind {
				go endsWithStarter(stop)
			} else {
				go endsWithParent(ctx, stop)
			}
			if cmd.Flags().Changed("project") && !behind { // Jupyter kills a kernel before its changes have left the machine
				return a.behind(ctx, interrupts)
			}
			return a.kernel(ctx, cmd, f, life, args[0], jupyter.Options{TrustOutput: trust, Interrupts: interrupts})
		},
	}
	f.machineFlags(cmd, &life)
	f.projectFlags(cmd)
	trustFlag(cmd, &trust)
	behindFlag(cmd, &behind)
	return cmd
}

// kernel serves a kernel until its end.
func (a *app) kernel(ctx context.Context, cmd *cobra.Command, f runFlags, life time.Duration, name string,
	opts jupyter.Options) error {
	connection, err := jupyter.ReadConnection(name)
	if err != nil {
		return usage(err)
	}
	brought, err := f.projectOf(a, cmd, "")
	if err != nil {
		return err
	}
	var s *unitask.Session
	end := func() {}
	opts.Dir, opts.Version = brought.Guest, version()
	opts.Start = func(ctx context.Context) (*unitask.Session, error) {
		started, closes, err := a.ownSession(ctx, cmd, f, "python", "", life)
		if err == nil {
			s, end = started, closes
		}
		return started, err
	}
	err = jupyter.Serve(ctx, connection, opts)
	defer func() { end() }()
	if s == nil || brought.Host == "" {
		return err
	}
	later, cancel := context.WithTimeout(context.WithoutCancel(ctx), proposeTime)
	defer cancel()
	return errors.Join(err, a.proposeChanges(later, s, "jupyter"))
}

// watchSignals has SIGTERM end a kernel. SIGINT interrupts its code.
func watchSignals(ctx context.Context, stop func()) <-chan struct{} {
	signals, interrupts := make(chan os.Signal, 4), make(chan struct{}, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case sig := <-signals:
				if sig == syscall.SIGTERM {
					stop()
					return
				}
				select {
				case interrupts <- struct{}{}:
				default:
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return interrupts
}

// parentTime is the time between looks whether the process that has started a kernel is still there.
const parentTime = time.Second

// endsWithParent calls stop when the process that has started this one has ended.
func endsWithParent(ctx context.Context, stop func()) {
	parent := os.Getppid()
	ticker := time.NewTicker(parentTime)
	defer ticker.Stop()
	for os.Getppid() == parent {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
	stop()
}
