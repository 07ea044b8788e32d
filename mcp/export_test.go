package mcp

import (
	"encoding/json"
	"io"
	"net/netip"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
)

// SDK is the server as the SDK knows it: tests add tools to it, and connect to it
// without a wire.
func SDK(s *Server) *sdk.Server { return s.sdk }

// QueueOf returns the calls that wait and the runs under way.
func QueueOf(s *Server) (waiting, running int) {
	s.queue.change(func() { waiting, running = s.queue.waiting, s.queue.running })
	return waiting, running
}

// Granted is what a principal's call of run_code would get.
func Granted(s *Server, principal, args string) (policy.Effective, []policy.Denial, error) {
	var in runArgs
	if err := json.Unmarshal([]byte(args), &in); err != nil {
		return policy.Effective{}, nil, err
	}
	caller := unitask.Caller{Name: principal, Ceiling: s.opts.Ceiling.For(principal)}
	req, err := s.request(caller, in)
	if err != nil {
		return policy.Effective{}, nil, err
	}
	return req.Resolve(caller.Ceiling)
}

// Report is a result as a model reads it.
func Report(res *unitask.Result) string { return report(res) }

// FindSocket looks for a socket in a table of the kernel's.
var FindSocket func(table io.Reader, local, remote netip.AddrPort) (uid int, err error)

// KeyFetches is how often an issuer's keys are fetched at once.
const KeyFetches = keyFetches
