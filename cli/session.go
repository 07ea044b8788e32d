package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unitask/unitask"
	layout "github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/policy"
)

func (a *app) sessionCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "session",
		Short: "Keep a machine for several steps: variables, files and processes stay",
		Long: `Session keeps machines between command lines. They are held by a background
process of your own, which the first session starts and which ends behind the last one.
SESSION is the id that session new prints, or the name that it was given.`,
	}, a.sessionNew(), a.sessionList(), a.sessionRun(), a.sessionAttach(), a.sessionExec(), a.sessionCopy(),
		a.sessionDiff(), a.sessionStatus(), a.sessionPut(), a.sessionGet(), a.sessionForward(), a.sessionPause(),
		a.sessionResume(), a.sessionExtend(), a.sessionWait(), a.sessionFork(), a.sessionRemove(), a.sessionServe())
	for _, verb := range cmd.Commands() {
		switch verb.Name() {
		case "wait", "forward", "serve", "diff", "status": // these run on this host
		default:
			a.sessionFleet.add(verb)
		}
	}
	return cmd
}

// asked sends a request to the daemon, and starts the daemon if it is needed.
func (a *app) asked(ctx context.Context, req sessiond.Request, streams sessiond.Streams) (sessiond.Answer, error) {
	answer, err := a.do(ctx, req, streams)
	var told *sessiond.Error
	switch {
	case errors.Is(err, context.Canceled) || errors.As(err, &told) && told.Code == sessiond.CodeCancelled:
		a.code = unitask.ExitCancelled
	case errors.As(err, &told) && told.Code == sessiond.CodeGone:
		if told.Unknown {
			err = usage(err)
		}
		err = hint(err, "unitask session ls lists those that live")
	case errors.As(err, &told) && told.RetryAfterMS > 0:
		err = hint(err, fmt.Sprintf("try again in %s, or end a session: unitask session rm",
			time.Duration(told.RetryAfterMS)*time.Millisecond))
	}
	return answer, err
}

// do sends a request to the fleet of --fleet, or to this host's daemon.
func (a *app) do(ctx context.Context, req sessiond.Request, streams sessiond.Streams) (sessiond.Answer, error) {
	client, err := a.sessionFleet.open(a)
	if err != nil {
		return sessiond.Answer{}, err
	}
	if client != nil {
		defer client.Close()
		answer, err := client.Do(ctx, req, streams)
		if err != nil {
			err = sessiond.WireError(err)
		}
		return answer, err
	}
	home, err := a.homeFolder()
	if err != nil {
		return sessiond.Answer{}, err
	}
	return sessiond.Do(ctx, home, req, streams, func() (<-chan struct{}, error) { return a.startDaemon(home) })
}

// startDaemon starts `session serve` as a separate process, which outlives us.
func (a *app) startDaemon(home string) (<-chan struct{}, error) {
	name := filepath.Join(layout.Dir(home).Sessions(), "holder.log")
	log, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd, err := detached(append(a.passOn(home), "session", "serve")...)
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return ended, nil
}

func (a *app) sessionServe() *cobra.Command {
	var idle time.Duration
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Hold sessions in the foreground; session new starts one in the background",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if idle <= 0 {
				return usage(fmt.Errorf("--idle %s: must be more than 0", idle))
			}
			rt, err := a.openWith(unitask.Options{Machines: unitask.Templates()})
			if err != nil {
				return err
			}
			defer rt.Close()
			return sessiond.Serve(cmd.Context(), rt.Images().Home(), rt, idle)
		},
	}
	cmd.Flags().DurationVar(&idle, "idle", 10*time.Second, "end when there has been no session for so long")
	return cmd
}

// given returns a machine flag that was set, "" if none was.
func (f *runFlags) given(cmd *cobra.Command) (name string) {
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		if flag.Changed && flag.Name != "session" && flag.Name != "raw" {
			name = flag.Name
		}
	})
	return name
}

// session returns the request for a session of the daemon.
func (f *runFlags) session(a *app, cmd *cobra.Command, name, image string) (*sessiond.New, error) {
	req, err := f.machine(a, cmd, image)
	if err != nil {
		return nil, err
	}
	if err := mountsHere(&req); err != nil { // the daemon has another working directory
		return nil, err
	}
	project, err := f.projectOf(a, cmd, name)
	if err != nil {
		return nil, err
	}
	held, err := a.foundCeiling(f.policy)
	if err != nil {
		return nil, err
	}
	return &sessiond.New{Name: name, Request: req, Secrets: req.Secrets, Project: project, Ceiling: held.Origin,
		Held: held.Ceiling}, nil
}

func (a *app) sessionNew() *cobra.Command {
	var f runFlags
	var life, idle time.Duration
	var name, lang string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "new [flags]",
		Short: "Start a session, and print its id",
		Long: `New starts a machine that stays, under the policy of a run, and prints the session's
id. The machine has its files, folders, network and secrets from its beginning. In a
container image, steps run in its own bash, python3 or node, and commands need none.`,
		Example: `  unitask session new --name agent --image shell --project
  unitask session new --name build --lang python --dir ./data
  unitask session new --name box --image debian:12
  unitask session run build --code 'x = 40'
  unitask session run build --code 'x + 2'
  unitask session rm build`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asked, err := f.session(a, cmd, name, "")
			if err != nil {
				return err
			}
			asked.Request.Language, asked.LifeMS, asked.IdleMS = lang, policy.Millis(life), policy.Millis(idle)
			answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpNew, New: asked}, sessiond.Streams{})
			if err != nil {
				return asFlags(cmd, err)
			}
			for _, s := range answer.Sessions {
				for _, d := range s.Denials {
					a.ui.note("denied: %s", denial(d))
				}
				if asJSON {
					return a.ui.json(s)
				}
				fmt.Fprintln(a.std.Stdout, s.ID)
			}
			return nil
		},
	}
	f.machineFlags(cmd, &life)
	f.projectFlags(cmd)
	fl := cmd.Flags()
	fl.DurationVar(&idle, "idle", 0, "pause it when it has done nothing for so long (default 10m, or the ceiling's)")
	fl.StringVar(&name, "name", "", "a name for it: lower-case letters, digits and dashes")
	fl.StringVar(&lang, "lang", "", "language of its steps: "+strings.Join(language.Names(), ", ")+
		" (default the image's)")
	fl.BoolVar(&asJSON, "json", false, "print one object")
	return cmd
}

func (a *app) sessionList() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List your sessions",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
			if err != nil && !errors.Is(err, sessiond.ErrNone) {
				return err
			}
			if asJSON {
				list := answer.Sessions
				if list == nil {
					list = []sessiond.View{}
				}
				return a.ui.json(list)
			}
			var rows [][]string
			for _, s := range answer.Sessions {
				if s.CeilingChanged {
					s.State += ", ceiling changed"
				}
				rows = append(rows, []string{s.ID, s.Name, s.State, s.Image, s.ExpiresAt.Local().Format(time.DateTime), s.Parent})
			}
			a.ui.table("SESSION|NAME|STATE|IMAGE|ENDS|PARENT", rows)
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a list of objects")
	return cmd
}

func (a *app) sessionPause() *cobra.Command {
	return &cobra.Command{
		Use: "pause SESSION", Short: "Keep a session's machine on the disk, and free its memory", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpPause, Session: args[0]}, sessiond.Streams{})
			return err
		},
	}
}

func (a *app) sessionResume() *cobra.Command {
	var secrets []string
	cmd := &cobra.Command{
		Use: "resume SESSION", Short: "Resume a paused session's machine; any use does",
		Long: `Resume has a paused session's machine go on, as any use does. One whose process has ended
needs the values of its secrets again, which are not kept on the disk.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			values, _, err := a.readSecrets(cmd.Context(), secrets)
			if err != nil {
				return usage(err)
			}
			_, err = a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpResume, Session: args[0], Secrets: values},
				sessiond.Streams{})
			return err
		},
	}
	cmd.Flags().StringArrayVar(&secrets, "secret", nil,
		"NAME[=SOURCE], a secret that it needs again, as session new has it; repeatable")
	return cmd
}

func (a *app) sessionRemove() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "rm SESSION... | --all",
		Short: "End sessions, and forget those that were lost",
		RunE: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage(errors.New("name sessions, or give --all"))
			}
			if all {
				answer, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpList}, sessiond.Streams{})
				if err != nil && !errors.Is(err, sessiond.ErrNone) {
					return err
				}
				for _, s := range answer.Sessions {
					args = append(args, s.ID)
				}
			}
			return a.removeEach(args, func(name string) ([]string, error) {
				_, err := a.asked(cmd.Context(), sessiond.Request{Op: sessiond.OpEnd, Session: name}, sessiond.Streams{})
				if err != nil {
					return nil, err
				}
				return []string{name}, nil
			})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all of yours")
	return cmd
}

func must(text []byte, err error) []byte {
	if err != nil {
		panic(err) // only for our own types
	}
	return text
}

// mountsHere resolves the mounts of a session's request from this working directory.
func mountsHere(req *unitask.Request) error {
	dir, err := userdir.Working()
	if err != nil {
		return usage(err)
	}
	for _, mounts := range [][]unitask.Mount{req.Files, req.Dirs} {
		for i := range mounts {
			mounts[i] = unitask.SessionMount(mounts[i], dir)
		}
	}
	return nil
}
