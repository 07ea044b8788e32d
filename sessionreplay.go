package unitask

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// RecordedStep is a step or a command of a recorded session.
type RecordedStep struct {
	ID         string
	Code       string // of a step
	Language   string
	Args       []string // of a command
	Dir        string
	Env        map[string]string
	Background bool
	Timeout    time.Duration
	// Ended is how it ended then, nil if its process did not live to see that.
	Ended *Result
}

// RecordedSession returns a request for what a recorded session of an owner was granted, and its steps in the order of their
// beginnings; both as Recorded has them. Files that were copied in, and values, are not on record.
func (rt *Runtime) RecordedSession(id, owner string) (SessionRequest, []RecordedStep, error) {
	rec, err := rt.recordOf(id, owner)
	if err == nil && rec.Session != id {
		err = errors.New("it is no session's own record")
	}
	if err == nil && rec.Parent != "" {
		err = fmt.Errorf("it is a fork of %s: what it went on from can't be made again", rec.Parent)
	}
	fail := func(err error) (SessionRequest, []RecordedStep, error) {
		return SessionRequest{}, nil, fmt.Errorf("read the session %s: %w", id, err)
	}
	if err != nil {
		return fail(err)
	}
	req, err := rt.asked(rec)
	if err != nil {
		return fail(err)
	}
	req.Path, req.Dir = "", "" // a session has its own
	if req.Kernel != Nanos {   // which is asked for by name
		req.Kernel = ""
	}
	ids, err := rt.runs.IDs()
	if err != nil {
		return fail(err)
	}
	var steps []RecordedStep
	for _, at := range ids {
		if at <= id {
			continue
		}
		one, err := rt.runs.Get(at)
		if err != nil || one.Session != id { // of others
			continue
		}
		step, err := rt.recordedStep(one)
		if err != nil {
			return fail(fmt.Errorf("step %s: %w", at, err))
		}
		steps = append(steps, step)
	}
	return SessionRequest{Request: req}, steps, nil
}

func (rt *Runtime) recordedStep(rec *record.Record) (RecordedStep, error) {
	if len(rec.Redacted) > 0 {
		return RecordedStep{}, fmt.Errorf("%w: it has %s in place of a secret in %s", ErrRedacted, record.Redacted, strings.Join(rec.Redacted, ", "))
	}
	var req Request
	var eff policy.Effective
	if err := errors.Join(json.Unmarshal(rec.Request, &req), json.Unmarshal(orNull(rec.Effective), &eff)); err != nil {
		return RecordedStep{}, err
	}
	s := RecordedStep{ID: rec.ID, Code: req.Code, Language: req.Language, Args: req.Args, Dir: req.Dir, Env: req.Env, Background: rec.Background, Timeout: eff.Timeout}
	var ended Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &ended) == nil {
		s.Ended = &ended
	}
	return s, nil
}

// Replay runs a recorded step in this session. A command in the background is started, and its Result only says so.
func (s *Session) Replay(ctx context.Context, step RecordedStep, stdout, stderr io.Writer) (*Result, error) {
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
