package session

import (
	"context"
	"io"

	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/run"
)

// Replay runs a recorded step in this session. A background command is only started, and its Result contains no
// output.
func (s *Session) Replay(ctx context.Context, step history.RecordedStep, stdout, stderr io.Writer,
) (*run.Result, error) {
	limit := min(step.Timeout, s.Policy.Effective.Timeout)
	switch {
	case step.Background:
		id, err := s.Start(ctx, Command{Args: step.Args, Dir: step.Dir, Env: step.Env})
		if err != nil {
			return nil, err
		}
		return &run.Result{RunID: id, Session: s.ID, Outcome: run.OutcomeExited}, nil
	case len(step.Args) > 0:
		return s.Exec(
			ctx,
			Command{Args: step.Args, Dir: step.Dir, Env: step.Env, Timeout: limit, Stdout: stdout, Stderr: stderr},
		)
	}
	return s.Run(ctx, Step{Code: step.Code, Language: step.Language, Timeout: limit, Stdout: stdout, Stderr: stderr})
}
