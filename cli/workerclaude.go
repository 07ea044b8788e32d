package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// claudeWorker is the program of clients/claude. It is one of its own, since the platform's library is large.
const claudeWorker = "unitask-worker-claude"

func (a *app) workerClaudeCommand() *cobra.Command {
	var environment string
	var sessions int
	cmd := &cobra.Command{
		Use:   "claude [--environment ID] [--sessions N] [-- SESSION-FLAGS]",
		Short: "Run the tools of Claude Managed Agents in machines",
		Long: `Worker claude claims the sessions of a self-hosted environment of Claude Managed Agents.
Each session has a machine of its own, for the tools bash, read, write, edit, glob and
grep. The environment's key, ANTHROPIC_ENVIRONMENT_KEY, stays outside the machines.
The flags after -- are those of session new. It needs the program ` + claudeWorker + `.`,
		Example: `  unitask worker claude --environment env_123 -- --project --allow-net api.example.com`,
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at != 0 && len(args) > 0 {
				return usage(fmt.Errorf("%q: flags of a session follow --", args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			own := []string{"--sessions", strconv.Itoa(sessions)}
			if environment != "" {
				own = append(own, "--environment", environment)
			}
			return a.workerClaude(cmd, slices.Concat(own, []string{"--"}, args))
		},
	}
	cmd.Flags().StringVar(&environment, "environment", "",
		"the self-hosted environment (default $ANTHROPIC_ENVIRONMENT_ID)")
	cmd.Flags().IntVar(&sessions, "sessions", 1, "how many sessions to serve at once, 1 to 64")
	return cmd
}

// workerClaude runs the program, which stands beside this one or in PATH, to its end.
func (a *app) workerClaude(cmd *cobra.Command, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := exec.LookPath(filepath.Join(filepath.Dir(self), claudeWorker))
	if err != nil {
		program, err = exec.LookPath(claudeWorker)
	}
	if err != nil {
		return usage(fmt.Errorf("%s is not in PATH: make worker-claude in unitask's repository builds it", claudeWorker))
	}
	worker := exec.CommandContext(cmd.Context(), program, append([]string{"--unitask", self}, args...)...)
	worker.Stdin, worker.Stdout, worker.Stderr = a.std.Stdin, a.std.Stdout, a.std.Stderr
	// At a SIGTERM the changes of projects leave the machines.
	worker.Cancel = func() error { return worker.Process.Signal(syscall.SIGTERM) }
	worker.WaitDelay = 5 * time.Minute
	var exited *exec.ExitError
	if err := worker.Run(); errors.As(err, &exited) && exited.ExitCode() > 0 { // it has said why
		a.code = exited.ExitCode()
		return nil
	} else if err != nil && cmd.Context().Err() == nil {
		return err
	}
	return nil
}
