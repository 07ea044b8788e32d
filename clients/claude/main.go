// The program unitask-worker-claude runs the tools of Claude Managed Agents in machines of unitask. It claims the
// sessions of one self-hosted environment, and each session has a machine of its own. The platform's key stays in this
// process. unitask worker claude starts it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	anthropic "github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/lib/environments"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/tools/agenttoolset"
)

const usage = `Usage: unitask worker claude [--environment ID] [--sessions N] [-- FLAGS of unitask session new]

The worker runs the tools of Claude Managed Agents in machines of unitask. It needs
ANTHROPIC_ENVIRONMENT_KEY, the key of a self-hosted environment.

`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "unitask-worker-claude:", err)
		os.Exit(1)
	}
}

// worker claims sessions, and runs their tools.
type worker struct {
	unitask string   // the program
	flags   []string // of unitask codex-exec
	log     *slog.Logger
}

func run(args []string) error {
	w := worker{log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	fl := flag.NewFlagSet("unitask worker claude", flag.ContinueOnError)
	fl.Usage = func() { fmt.Fprint(fl.Output(), usage); fl.PrintDefaults() }
	environment := fl.String("environment", os.Getenv("ANTHROPIC_ENVIRONMENT_ID"),
		"the `ID` of the self-hosted environment (default $ANTHROPIC_ENVIRONMENT_ID)")
	sessions := fl.Int("sessions", 1, "how many sessions to serve at once, 1 to 64")
	fl.StringVar(&w.unitask, "unitask", "unitask", "the unitask `PROGRAM`")
	switch err := fl.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	w.flags = fl.Args()
	key := os.Getenv("ANTHROPIC_ENVIRONMENT_KEY")
	switch {
	case *environment == "":
		return errors.New("name the environment with --environment or ANTHROPIC_ENVIRONMENT_ID")
	case key == "":
		return errors.New("ANTHROPIC_ENVIRONMENT_KEY is missing: make a key in the environment's settings")
	case *sessions < 1 || *sessions > 64:
		return fmt.Errorf("--sessions %d: use 1 to 64", *sessions)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return w.serve(ctx, *environment, key, *sessions)
}

// serve claims sessions until ctx ends, or the platform refuses the key.
func (w worker) serve(ctx context.Context, environment, key string, sessions int) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	failed := make([]error, sessions)
	for i := range failed {
		all.Go(func() {
			defer stop()
			failed[i] = w.claim(ctx, environment, key)
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// claim serves one session after the other.
func (w worker) claim(ctx context.Context, environment, key string) error {
	dir, err := os.MkdirTemp("", "unitask-worker-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return environments.NewEnvironmentWorker(platform(), environments.EnvironmentWorkerOptions{
		EnvironmentID: environment, EnvironmentKey: key, Workdir: dir, Logger: w.log,
		MemorySyncInterval: -1, // the platform names folders of this host for them
		ToolsFunc: func(env *agenttoolset.AgentToolContext) []anthropic.BetaTool {
			skills, err := skillsIn(env.Workdir)
			if err != nil {
				w.log.Warn("skills are left out", slog.Any("error", err))
			}
			return tools(startMachine(w.unitask, w.flags, skills))
		},
	}).Run(ctx)
}

// platform returns a client without credentials of its own: each request has the environment's or the session's.
func platform() anthropic.Client {
	opts := []option.RequestOption{option.WithoutEnvironmentDefaults()}
	if at := os.Getenv("ANTHROPIC_BASE_URL"); at != "" {
		opts = append(opts, option.WithBaseURL(at))
	}
	return anthropic.NewClient(opts...)
}
