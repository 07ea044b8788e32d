package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// claudeWorker is the program of clients/claude. It is one of its own, since the platform's library is large.
const claudeWorker = "unitask-worker-claude"

func (a *app) workerClaudeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "claude [--environment ID] [--sessions N] [-- SESSION-FLAGS]",
		Short: "Run the tools of Claude Managed Agents in machines",
		Long: `Worker claude claims the sessions of a self-hosted environment of Claude Managed Agents.
Each session has a machine of its own, for the tools bash, read, write, edit, glob and
grep. The environment's key, ANTHROPIC_ENVIRONMENT_KEY, stays outside the machines.
The flags after -- are those of session new. It needs the program ` + claudeWorker + `.`,
		Example:            `  unitask worker claude --environment env_123 -- --project --allow-net api.example.com`,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			own := args
			if at := slices.Index(args, "--"); at >= 0 {
				own = args[:at]
			}
			if slices.Contains(own, "--help") || slices.Contains(own, "-h") {
				return cmd.Help()
			}
			return a.workerClaude(cmd, args)
		},
	}
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
