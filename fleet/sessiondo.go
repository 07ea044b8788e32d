package fleet

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/policy"
)

// Do executes a command line's request to the session daemon with the fleet's sessions. It returns a *policy.FieldError
// for operations that these sessions lack.
func (c *Client) Do(ctx context.Context, req sessiond.Request, streams sessiond.Streams) (a sessiond.Answer,
	err error) {
	switch {
	case req.Op == sessiond.OpNew && req.New != nil:
		return c.doNew(ctx, req.New)
	case req.Op == sessiond.OpList:
		a.Sessions, err = c.SessionViews(ctx)
		return a, err
	}
	s := c.Session(req.Session)
	switch {
	case req.Op == sessiond.OpRun && req.Step != nil:
		a.Result, err = s.Run(ctx, unitask.Step{Code: req.Step.Code, Language: req.Step.Language,
			Timeout: time.Duration(req.Step.TimeoutMS), Stdout: streams.Stdout, Stderr: streams.Stderr})
	case req.Op == sessiond.OpExec && req.Command != nil && !req.Command.Detach && !req.Command.Input &&
		req.Command.Size == nil:
		r := req.Command
		a.Result, err = s.Exec(ctx, unitask.Command{Args: r.Args, Dir: r.Dir, Env: r.Env, Timeout: time.Duration(r.TimeoutMS),
			Endless: r.Endless, Stdout: streams.Stdout, Stderr: streams.Stderr})
	case req.Op == sessiond.OpRead:
		var content []byte
		if content, err = s.ReadFile(ctx, req.Path); err == nil {
			_, err = streams.Stdout.Write(content)
		}
	case req.Op == sessiond.OpWrite:
		var content bytes.Buffer
		if _, err = io.Copy(&content, io.LimitReader(streams.Stdin, unitask.MaxSessionFile+1)); err == nil &&
			content.Len() > unitask.MaxSessionFile {
			err = fmt.Errorf("write %s: more than %d bytes, which are the most", req.Path, unitask.MaxSessionFile)
		}
		if err == nil {
			err = s.WriteFile(ctx, req.Path, content.Bytes(), fs.FileMode(req.Mode))
		}
	case req.Op == sessiond.OpResume:
		err = s.Resume(ctx, req.Secrets)
	case req.Op == sessiond.OpPause, req.Op == sessiond.OpEnd, req.Op == sessiond.OpExtend, req.Op == sessiond.OpFork,
		req.Op == sessiond.OpPut, req.Op == sessiond.OpGet:
		var r reply
		r, err = s.ask(ctx, call{Request: req}, nil, nil)
		a = r.Answer
	default:
		err = policy.Bad("session", req.Op,
			"is not there for sessions on a fleet, in this form: "+
				"no folders, background commands, ports, standard input and terminals")
	}
	return a, err
}

func (c *Client) doNew(ctx context.Context, req *sessiond.New) (a sessiond.Answer, err error) {
	if req.Name != "" {
		return a, policy.Bad("name", req.Name, "is for sessions on this host: those on a fleet have ids only")
	}
	caller := unitask.Caller{Ceiling: req.Held}
	run := req.Request
	run.Secrets = req.Secrets
	view, err := c.newSession(ctx, caller, unitask.SessionRequest{Request: run, Life: time.Duration(req.LifeMS),
		Idle: time.Duration(req.IdleMS)}, new(values))
	if err == nil {
		a.Sessions = []sessiond.View{view}
	}
	return a, err
}
