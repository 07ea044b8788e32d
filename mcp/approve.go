package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// approvalForm is the form for the user of a client.
var approvalForm = map[string]any{
	"type": "object",
	"properties": map[string]any{"answer": map[string]any{
		"type": "string", "title": "May it connect?",
		"enum":      []any{string(unitask.Deny), string(unitask.AllowOnce), string(unitask.AllowRun)},
		"enumNames": []any{"No, not in this run", "This connection or request only", "To this host and port, in this run"},
	}},
	"required": []any{"answer"},
}

// asker shows a form to a client's user until its context ends; "" means no answer. A nil asker asks nobody.
type asker func(ctx context.Context, form func() *sdk.ElicitParams) unitask.Verdict

// approver returns the asker as a run's approver, nil for a nil one.
func (a asker) approver() unitask.Approver {
	if a == nil {
		return nil
	}
	return func(ctx context.Context, q unitask.Question) unitask.Verdict {
		return a(ctx, func() *sdk.ElicitParams { return elicitation(q) })
	}
}

// askerOf asks the user of the client that made the call (elicitation), if that is the server's own user. A remote
// client must not approve what the ceiling asks about. A client that can't ask is no approver: unitask approve can
// answer. Nor is a client of a revision that asks at the end of a call (rounds).
func askerOf(call context.Context, caller unitask.Caller, req *sdk.CallToolRequest) asker {
	if req.ProtocolVersion() >= stateless || !canAsk(caller, req) {
		return nil
	}
	return func(ctx context.Context, form func() *sdk.ElicitParams) unitask.Verdict {
		asked, cancel := context.WithCancel(call) // tells to which call the question belongs
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		said := make(chan unitask.Verdict, 1)
		go func() { // a client that reads nothing blocks this goroutine, not the run
			res, err := req.Session.Elicit(asked, form())
			if err != nil && asked.Err() == nil { // the SDK refuses an answer that is not in the form
				said <- unitask.Deny
				return
			}
			said <- verdict(res, err)
		}()
		select {
		case v := <-said:
			return v
		case <-asked.Done():
			return ""
		}
	}
}

// canAsk reports whether the client of a call can show its user a form. It must be our own user's client.
func canAsk(caller unitask.Caller, req *sdk.CallToolRequest) bool {
	can := req.ClientCapabilities()
	if remote(caller) || can == nil || can.Elicitation == nil {
		return false
	}
	return can.Elicitation.Form != nil || can.Elicitation.URL == nil // a client that names no mode shows forms
}

// askFirst makes a run ask the call's user about each host that the call names. It does so if the client can ask, and
// no ceiling says which hosts need a question. The runs of a fleet can't ask.
func (s *Server) askFirst(caller unitask.Caller, req *sdk.CallToolRequest, run *unitask.Request) {
	if canAsk(caller, req) && !caller.Ceiling.DecidesHosts() && s.rt.HasSessions() {
		run.Ask, run.AllowNet = append(run.Ask, run.AllowNet...), nil
	}
}

// verdict returns the meaning of a client's answer, "" if it is not an answer.
func verdict(res *sdk.ElicitResult, err error) unitask.Verdict {
	if err != nil || res == nil {
		return ""
	}
	switch res.Action {
	case "accept":
		answer, _ := res.Content["answer"].(string)
		switch v := unitask.Verdict(answer); v {
		case unitask.AllowOnce, unitask.AllowRun:
			return v
		}
		return unitask.Deny // nobody waits for a better answer
	case "decline", "cancel": // a client without a user cancels each form: the run does not wait for others
		return unitask.Deny
	}
	return ""
}
