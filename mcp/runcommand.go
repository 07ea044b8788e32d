package mcp

import (
	"context"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

func (s *Server) runCommand(ctx context.Context, req *sdk.CallToolRequest, in commandArgs) (*sdk.CallToolResult, any,
	error) {
	caller := s.caller(req.Extra)
	of, err := s.reach(ctx, caller, callerNames(req.Extra), in.Session)
	if err != nil {
		return nil, nil, err
	}
	if !in.Background && inRounds(caller, req) {
		return s.round(ctx, caller, req, func(live context.Context, ask asker) (*sdk.CallToolResult, any, error) {
			return s.commandNow(live, newLive(ctx, req), caller, of, in, ask.approver())
		})
	}
	asks := ctx
	if in.Background { // the command outlives its call
		asks = s.ctx
	}
	return s.commandNow(ctx, newLive(ctx, req), caller, of, in, askerOf(asks, caller, req).approver())
}

// commandNow runs a command, or starts it in the background; live and approve are as in runNow.
func (s *Server) commandNow(ctx context.Context, live *live, caller unitask.Caller, of *heldSession, in commandArgs,
	approve unitask.Approver) (*sdk.CallToolResult, any, error) {
	defer live.close()
	done, err := s.begin()
	if err != nil {
		return nil, nil, err
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	command := unitask.Command{Args: []string{"/bin/sh", "-c", in.Command}, Dir: in.Cwd, Env: in.Env,
		Timeout: time.Duration(in.TimeoutSeconds * float64(time.Second))}
	if in.Background { // uses no slot: its session's life bounds it
		if err := s.admitted(caller, s.queue.count(caller.Name)); err != nil {
			return nil, nil, err
		}
		return s.startCommand(ctx, of, in, command, approve)
	}
	leave, err := s.enter(ctx, caller, live)
	if err != nil {
		return nil, nil, err
	}
	defer leave()
	printed := newStreams(live, in.MaxOutput)
	command.Timeout, command.Stdin, command.Stdout, command.Stderr, command.ResultBytes = of.limit(command.Timeout),
		strings.NewReader(in.Stdin), &printed.stdout, &printed.stderr, 1
	command.Approve = approve
	res, err := of.Exec(ctx, command)
	leave()
	done()
	live.close()
	if res == nil {
		return nil, nil, err
	}
	printed.show(res)
	out := s.result(ctx, caller, res, printed)
	return out, answer(out, res, err, printed, of), nil
}
