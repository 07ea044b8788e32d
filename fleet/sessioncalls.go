package fleet

import (
	"context"
	"io/fs"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

// Run runs a step, as unitask.Session.Run does. It refuses a step with files of this host.
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

// Exec runs a command with a time limit, and without standard input and terminal.
func (s *Session) Exec(ctx context.Context, c unitask.Command) (*unitask.Result, error) {
	if c.Stdin != nil || c.Terminal != nil || c.Approve != nil || c.Endless || c.User != "" ||
		c.Started != nil {
		return nil, policy.Bad(
			"command",
			"with standard input, a terminal, questions, a user or no time limit",
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

// WriteFile creates or replaces a file of at most unitask.MaxSessionFile bytes.
func (s *Session) WriteFile(ctx context.Context, name string, content []byte, mode fs.FileMode) error {
	_, err := s.ask(
		ctx,
		call{Request: sessiond.Request{Op: sessiond.OpWrite, Path: name, Mode: uint32(mode.Perm())}, Content: content},
		nil,
		nil,
	)
	return err
}

// List lists a folder, as unitask.Session.List does.
func (s *Session) List(ctx context.Context, name string, depth int) (list []unitask.SessionFile, more bool, err error) {
	r, err := s.ask(ctx, call{Request: sessiond.Request{Op: opFiles, Path: name, Count: depth}}, nil, nil)
	return r.Files, r.More, err
}

// Fork starts n copies of this session on the same worker.
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

// Pause stores the session in the object store, for a day or until its lifetime is over. Any worker of the same kind
// with the same session key can resume it. Like unitask.Session.Pause, it refuses machines with secrets.
func (s *Session) Pause(ctx context.Context) error {
	_, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpPause}}, nil, nil)
	return err
}

// Resume resumes a paused session, or a lost one from its last pause; work since then is lost. secrets are the values
// of the secrets that the session was given.
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

// Extend changes the session's lifetime, as unitask.Session.Extend does.
func (s *Session) Extend(ctx context.Context, life time.Duration) error {
	_, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpExtend, LifeMS: policy.Millis(life)}}, nil, nil)
	return err
}

// Close ends the session on its worker, or removes a paused or lost one.
func (s *Session) Close(ctx context.Context) error {
	_, err := s.ask(ctx, call{Request: sessiond.Request{Op: sessiond.OpEnd}}, nil, nil)
	return err
}
