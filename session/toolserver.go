package session

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/internal/wrapped"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Starter starts a session: Manager.Start, or Runtime.NewSessionFor.
type Starter func(context.Context, run.Caller, Request) (*Session, error)

// ToolServer starts an MCP server, whose table has wrap = true, in a session of its own. It belongs to the user of this
// process, not to a run's caller. It gets what the table says, and the file with the table must allow all of that. The
// session ends with the server.
func (start Starter) ToolServer(ctx context.Context, ceiling *policy.Ceiling, server *policy.ToolServer,
	stderr io.Writer) (*toolhost.Process, error) {
	req, args, err := wrappedRequest(server)
	if err != nil {
		return nil, err
	}
	s, err := start(ctx, run.Caller{Via: record.ViaTools, Ceiling: ceiling.ToolCeiling()}, req)
	if err != nil {
		return nil, err
	}
	if denied := s.Policy.Denials; len(denied) > 0 {
		s.Close()
		return nil, fmt.Errorf("its machine may not have %s", denied[0])
	}
	done, err := s.use(ctx) // an idle pause would hold a slow answer back, and leave the machine on the disk at the end
	if err != nil {
		s.Close()
		return nil, err
	}
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	ended := make(chan struct{})
	live, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		defer close(ended)
		res, err := s.Exec(live, Command{Args: args, Endless: true, Unbounded: true, ResultBytes: 1, Stdin: in, Stdout: out,
			Stderr: stderr})
		if err == nil {
			err = fmt.Errorf("it ended with code %d", res.ExitCode)
		}
		in.CloseWithError(err)
		out.CloseWithError(err)
		s.Close() // its machine would stay until the end of the run
	}()
	return &toolhost.Process{Stdin: stdin, Stdout: stdout, End: sync.OnceFunc(func() {
		stdin.Close()
		stdout.Close() // what it still prints must not keep its session
		stop(engine.ErrSessionClosed)
		s.Close()
		<-ended
		done()
	})}, nil
}

// wrappedRequest returns the session of a server, and its command there.
func wrappedRequest(server *policy.ToolServer) (req Request, args []string, err error) {
	w, err := wrapped.Translate(server.Command)
	if err != nil {
		return req, nil, err
	}
	req.Request = run.Request{Image: w.Image, Packages: w.Packages, Env: server.Env, AllowNet: server.AllowNet,
		Secrets: map[string]string{}, SecretHosts: map[string][]string{},
		OutputBytes: 1} // the record of the run has what it answers, without the run's secrets
	for _, dir := range server.Dirs {
		req.Dirs = append(req.Dirs, run.ParseMount(dir))
	}
	for _, text := range server.PassEnv {
		secret, err := policy.ParseSecret(text)
		if err != nil {
			return req, nil, err
		}
		value, set := os.LookupEnv(secret.Name)
		if !set {
			return req, nil, fmt.Errorf("tools.%s.passEnv: unitask has no variable %s: set it", server.Name, secret.Name)
		}
		req.Secrets[secret.Name] = value
		if bound := secret.Bound(); bound != nil {
			req.SecretHosts[secret.Name] = bound
		}
	}
	return req, w.Args, nil
}
