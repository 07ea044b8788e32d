package unitask

import (
	"context"
	"io"

	"github.com/unitask/unitask/internal/history"
)

// Replay runs a recorded step in this session. It starts a background command without waiting for it: the Result only
// says that it started.
func (s *Session) Replay(ctx context.Context, step history.RecordedStep, stdout, stderr io.Writer) (*Result, error) {
	limit := min(step.Timeout, s.Policy.Effective.Timeout)
	switch {
	case step.Background:
		run, err := s.Start(ctx, Command{Args: step.Args, Dir: step.Dir, Env: step.Env})
		if err != nil {
			return nil, err
		}
		return &Result{RunID: run, Session: s.ID, Outcome: OutcomeExited}, nil
	case len(step.Args) > 0:
		return s.Exec(ctx, Command{Args: step.Args, Dir: step.Dir, Env: step.Env, Timeout: limit, Stdout: stdout, Stderr: stderr})
	}
	return s.Run(ctx, Step{Code: step.Code, Language: step.Language, Timeout: limit, Stdout: stdout, Stderr: stderr})
}
