package mcp

import (
	"cmp"
	"context"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/record"
)

type inspectArgs struct {
	RunID string `json:"runId" jsonschema:"a run's id, a unique prefix of one, or last"`
}

type listArgs struct {
	Status string `json:"status,omitempty" jsonschema:"only runs with this outcome or status"`
	Limit  int    `json:"limit,omitempty" jsonschema:"at most this many, the newest first; 20 if not given"`
	Before string `json:"before,omitempty" jsonschema:"only runs that are older than this id: next of the last answer"`
}

type listResult struct {
	Runs []history.Summary `json:"runs"`
	Next string            `json:"next,omitempty" jsonschema:"there may be older ones: before of the next call"`
}

// Limits of a listing.
const (
	maxLooked  = 500 // records that it reads, in some tens of milliseconds
	maxListing = 4   // listings at once; one caller may have half of them
)

// look begins a listing of a caller's records. It counts against the caller's rate, and waits for its turn:
// reading records uses processors that runs need.
func (s *Server) look(ctx context.Context, caller unitask.Caller) (leave func(), err error) {
	if err := s.admitted(caller, s.queue.look(caller.Name)); err != nil {
		return nil, err
	}
	return s.listing.enter(ctx, caller.Name)
}

// own selects a caller's runs.
func own(caller unitask.Caller) history.Filter {
	return history.Filter{Owner: caller.Name, Via: throughMCP, Looked: maxLooked}
}

func (s *Server) inspectRun(ctx context.Context, req *sdk.CallToolRequest, in inspectArgs) (*sdk.CallToolResult,
	*history.Inspection, error) {
	caller := s.caller(req.Extra)
	id, err := s.find(ctx, caller, in.RunID)
	if err != nil {
		return nil, nil, err
	}
	found, err := s.inspection(ctx, caller, id)
	return nil, found, err
}

// inspection returns a run's record as a caller may see it. Its memory is reserved before it is read.
func (s *Server) inspection(ctx context.Context, caller unitask.Caller, id string) (*history.Inspection, error) {
	bytes, err := s.rt.Runs().Size(id, partBytes)
	if err != nil {
		return nil, err
	}
	if err := leaseOf(ctx).draw(ctx, bytes*escapedByte, budgetPatience); err != nil {
		return nil, err
	}
	found, err := s.rt.History().Inspect(id, partBytes)
	if err == nil && remote(caller) {
		s.hider.inspection(found)
	}
	return found, err
}

// find returns the full id of a run that the caller may see. Another caller's run counts as unknown.
func (s *Server) find(ctx context.Context, caller unitask.Caller, prefix string) (string, error) {
	leave, err := s.look(ctx, caller)
	if err != nil {
		return "", err
	}
	defer leave()
	if rec, err := s.rt.Runs().Get(prefix); err == nil && sees(caller)(rec.Owner, rec.Via) {
		return rec.ID, nil
	}
	var found []string
	if prefix == "last" {
		of := own(caller)
		of.Limit = 1
		last, err := s.rt.History().List(of)
		if err != nil {
			return "", err
		}
		for _, run := range last {
			found = append(found, run.ID)
		}
	} else if prefix != "" {
		for id, err := range s.rt.Runs().Own(caller.Name, throughMCP, "", prefix) {
			if err != nil {
				return "", err
			}
			if found = append(found, id); len(found) == maxLooked {
				break
			}
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

func (s *Server) listRuns(ctx context.Context, req *sdk.CallToolRequest, in listArgs) (*sdk.CallToolResult, listResult,
	error) {
	list, next, err := s.Runs(ctx, s.caller(req.Extra), in.Status, in.Before, cmp.Or(in.Limit, 20))
	return nil, listResult{list, next}, err
}

func (s *Server) doctor(ctx context.Context, req *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, *doctor.Report,
	error) {
	report, err := s.Doctor(ctx, s.caller(req.Extra))
	if err != nil {
		return nil, nil, err
	}
	if !report.OK {
		return &sdk.CallToolResult{IsError: true}, report, nil
	}
	return nil, report, nil
}
