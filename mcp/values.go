package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// pass copies files between a caller's sessions, or gives one a value, or reads it, without the session's secrets.
func (s *Server) pass(ctx context.Context, caller unitask.Caller, of *heldSession, in sessionArgs, sent json.RawMessage) (shown *sdk.CallToolResult, res sessionsResult, err error) {
	select {
	case s.filing <- struct{}{}:
		defer func() { <-s.filing }()
	case <-ctx.Done():
		return nil, res, context.Cause(ctx)
	}
	switch {
	case in.Op == "put":
		// As it was sent: the protocol's library makes numbers 64-bit floats.
		var as struct{ Value json.RawMessage }
		if err := json.Unmarshal(sent, &as); err != nil {
			return nil, res, err
		}
		return nil, res, of.Put(ctx, in.Name, as.Value)
	case in.Op == "copy":
		to, err := s.held.find(cmp.Or(in.To, of.ID), caller.Name)
		if err == nil && in.Path == "" {
			err = errors.New("path is empty")
		}
		if err == nil {
			err = of.Copy(ctx, in.Path, to.Session, cmp.Or(in.ToPath, in.Path))
		}
		return nil, res, err
	case in.Name == "":
		res.Names, res.More, err = of.Values(ctx)
		return nil, res, err
	}
	text, err := of.Get(ctx, in.Name)
	if err != nil {
		return nil, res, err
	}
	value := json.RawMessage(of.Redact(string(text)))
	if !json.Valid(value) {
		return nil, res, fmt.Errorf("value %s without the session's secrets is not JSON", in.Name)
	}
	res.Value = value
	// The text has it as it is, the structured result has floats.
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(value)}}}, res, nil
}
