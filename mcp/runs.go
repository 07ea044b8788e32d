package mcp

import (
	"context"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/record"
)

type inspectArgs struct {
	RunID string `json:"runId" jsonschema:"a run's id, a unique prefix of one, or last"`
}

type listArgs struct {
	Status string `json:"status,omitempty" jsonschema:"only runs with this outcome or status"`
	Limit  int    `json:"limit,omitempty" jsonschema:"at most this many, the newest first; 20 if not given"`
}

type listResult struct {
	Runs []unitask.Summary `json:"runs"`
}

func (s *Server) inspectRun(ctx context.Context, req *sdk.CallToolRequest, in inspectArgs) (*sdk.CallToolResult, *unitask.Inspection, error) {
	caller := s.caller(req.Extra)
	id, err := s.find(caller, in.RunID)
	if err != nil {
		return nil, nil, err
	}
	found, err := s.inspection(ctx, caller, id)
	return nil, found, err
}

// inspection is a run's record as a caller may see it. What it costs is drawn before it is read.
func (s *Server) inspection(ctx context.Context, caller unitask.Caller, id string) (*unitask.Inspection, error) {
	bytes, err := s.rt.Runs().Size(id, partBytes)
	if err != nil {
		return nil, err
	}
	if err := leaseOf(ctx).draw(ctx, bytes*escapedByte, budgetPatience); err != nil {
		return nil, err
	}
	found, err := s.rt.Inspect(id, partBytes)
	if err == nil && remote(caller) {
		s.hider.inspection(found)
	}
	return found, err
}

// find returns the id that a caller means, of a run that it may see. Another's run is
// like none.
func (s *Server) find(caller unitask.Caller, prefix string) (string, error) {
	own, err := s.rt.Summaries(unitask.Filter{Whose: sees(caller)})
	if err != nil {
		return "", err
	}
	var found []string
	for _, run := range own {
		if run.ID == prefix || prefix == "last" {
			return run.ID, nil
		}
		if prefix != "" && strings.HasPrefix(run.ID, prefix) {
			found = append(found, run.ID)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("runId %q: %w; list_runs has the ids", prefix, record.ErrNotFound)
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("runId %q: %d runs begin with it: give more of the id", prefix, len(found))
}

func (s *Server) listRuns(_ context.Context, req *sdk.CallToolRequest, in listArgs) (*sdk.CallToolResult, listResult, error) {
	if in.Limit == 0 {
		in.Limit = 20
	}
	caller := s.caller(req.Extra)
	list, err := s.rt.Summaries(unitask.Filter{Status: in.Status, Limit: in.Limit, Whose: sees(caller)})
	for i := range list {
		if remote(caller) {
			list[i].Error = s.hider.all(list[i].Error)
		}
	}
	return nil, listResult{list}, err
}

func (s *Server) doctor(ctx context.Context, req *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, *unitask.Report, error) {
	caller := s.caller(req.Extra)
	report, err := s.report(ctx, caller)
	if err != nil {
		return nil, nil, err
	}
	if remote(caller) {
		s.hider.report(report)
	}
	if !report.OK {
		return &sdk.CallToolResult{IsError: true}, report, nil
	}
	return nil, report, nil
}
