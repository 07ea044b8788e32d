package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// pass copies files between a caller's sessions, or sets or reads a session's value, without the session's
// secrets.
func (s *Server) pass(ctx context.Context, caller unitask.Caller, of *heldSession, in sessionArgs,
	req *sdk.CallToolRequest) (shown *sdk.CallToolResult, res sessionsResult, err error) {
	leave, err := s.filing.enter(ctx, caller.Name)
	if err != nil {
		return nil, res, err
	}
	defer leave()
	res.ExpiresAt = of.view().ExpiresAt
	switch {
	case in.Op == "put":
		// As sent: the protocol's library converts numbers to 64-bit floats.
		var as struct{ Value json.RawMessage }
		if err := json.Unmarshal(req.Params.Arguments, &as); err != nil {
			return nil, res, err
		}
		return nil, res, of.Put(ctx, in.Name, as.Value)
	case in.Op == "copy":
		to, err := s.reach(ctx, caller, callerNames(req.Extra), cmp.Or(in.To, of.ID))
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
	if err := passes(value); err != nil {
		return nil, res, fmt.Errorf("value %s %w: read %s/%s.json by files", in.Name, err, unitask.ValuesDir, in.Name)
	}
	res.Value = value
	// The text has it unchanged, the structured result has floats.
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: string(value)}}}, res, nil
}

// maxValueDepth bounds the nesting of lists and objects in a value. The protocol's libraries read a thousand levels,
// including those of the message, and a client's may read fewer.
const maxValueDepth = 500

// passes returns why a JSON text can't be in a structured result, in which libraries convert numbers to floats.
func passes(value []byte) error {
	depth := 0
	for d := json.NewDecoder(bytes.NewReader(value)); ; {
		token, err := d.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return errors.New("has a number that is beyond 64-bit floats")
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
		if depth > maxValueDepth {
			return fmt.Errorf("has more than %d levels", maxValueDepth)
		}
	}
}
