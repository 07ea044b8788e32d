package fleet

import (
	"context"
	"io/fs"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

// Run runs a step, as unitask.Session.Run does. A step that brings files is refused.
func (s *Session) Run(ctx context.Context, step unitask.Step) (*unitask.Result, error) {
	if err := refusesStep(step); err != nil {
		return nil, err
	}
	r, err := s.ask(
		ctx,
		call{
			Request: sessiond.Request{
				Op:   sessiond.OpRun,
				Step: &sessiond.Step{Code: step.Code, Language: step.Language, TimeoutMS: policy.Millis(step.Timeout)},
			},
		},
		step.Stdout,
		step.Stderr,
	)
	return r.Result, err
}

// Exec runs a command, which has no standard input and no terminal, and a time limit.
func (s *Session) Exec(ctx context.Context, c unitask.Command) (*unitask.Result, error) {
	if c.Stdin != nil || c.Terminal != nil || c.Approve != nil || c.Endless {
		return nil, policy.Bad(
			"command",
			"with standard input, a terminal, questions or no time limit",
			"has none of these in a session on a fleet",
		)
	}
	r, err := s.ask(
		ctx,
		call{
			Request: sessiond.Request{
				Op:      sessiond.OpExec,
				Command: &sessiond.Command{Args: c.Args, Dir: c.Dir, Env: c.Env, TimeoutMS: policy.Millis(c.Timeout)},
			},
		},
		c.Stdout,
		c.Stderr,
	)
	return r.Result, err
}

// ReadFile returns a file of at most unitask.MaxSessionFile bytes.
func (s *Session) ReadFile(ctx context.Context, name string) ([]byte, error) {
	r, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpRead, Path: name}}, nil, nil)
	return r.Content, err
}

// WriteFile makes or replaces a file of at most unitask.MaxSessionFile bytes.
func (s *Session) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	_, err := s.ask(
		ctx,
		call{Request: sessiond.Request{Op: sessiond.OpWrite, Path: name, Mode: uint32(mode.Perm())}, Content: content},
		nil,
		nil,
	)
	return err
}

// List is as unitask.Session.List.
func (s *Session) List(ctx context.Context, name string, depth int) (list []unitask.SessionFile, more bool, err error) {
	r, err := s.ask(ctx, call{Request: sessiond.Request{Op: opFiles, Path: name, Count: depth}}, nil, nil)
	return r.Files, r.More, err
}

// Fork starts n sessions on the same worker that continue from where this one is.
func (s *Session) Fork(ctx context.Context, n int) (forks []*Session, err error) {
	r, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpFork, Count: n}}, nil, nil)
	if err != nil {
		return nil, err
	}
	for _, v := range r.Sessions {
		fork := &Session{ID: v.ID, View: v, c: s.c}
		if err := fork.values.add(s.values.all()); err != nil {
			return nil, err
		}
		forks = append(forks, fork)
	}
	return forks, nil
}

// Pause has the object store keep the session, for a day or until its life is over: any worker of the same kind that
// has the same session key continues with it. It is refused where the machine holds secrets, as unitask.Session.Pause.
func (s *Session) Pause(ctx context.Context) error {
	_, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpPause}}, nil, nil)
	return err
}

// Resume continues with a session that is paused, or from the last pause of one that is lost; what it did since then is
// lost. Secrets have the values of those that it was given.
func (s *Session) Resume(ctx context.Context, secrets map[string]string) error {
	_, err := s.c.begin(
		ctx,
		call{Request: sessiond.Request{Op: sessiond.OpResume, Session: s.ID}},
		secrets,
		&s.values,
		func(WorkerInfo) bool { return true },
	)
	return s.told(err)
}

// Extend is as unitask.Session.Extend.
func (s *Session) Extend(ctx context.Context, life time.Duration) error {
	_, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpExtend, LifeMS: policy.Millis(life)}}, nil, nil)
	return err
}

// Close ends it, wherever it is, and forgets one that is paused or lost.
func (s *Session) Close(ctx context.Context) error {
	_, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpEnd}}, nil, nil)
	return err
}
