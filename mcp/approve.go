package mcp

import (
	"context"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// approvalForm is what the user of a client fills in.
var approvalForm = map[string]any{
	"type": "object",
	"properties": map[string]any{"answer": map[string]any{
		"type": "string", "title": "May it connect?",
		"enum":      []any{string(unitask.Deny), string(unitask.AllowOnce), string(unitask.AllowRun)},
		"enumNames": []any{"No, not in this run", "This connection or request only", "To this host and port, in this run"},
	}},
	"required": []any{"answer"},
}

// asker puts a question to somebody, until its context ends; "" is no answer.
type asker func(context.Context, unitask.Question) unitask.Verdict

// approver asks the user of the client whose call a run is (elicitation), where that is the
// server's own user: what the ceiling has asked about, a client from elsewhere does not allow
// itself. A client that can't be asked leaves it to unitask approve; one of a revision that asks by a call's
// end is not asked here (rounds).
func approver(call context.Context, caller unitask.Caller, req *sdk.CallToolRequest) asker {
	if remote(caller) {
		return nil
	}
	return func(ctx context.Context, q unitask.Question) unitask.Verdict {
		asked, cancel := context.WithCancel(call) // which says to what call the question belongs
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		said := make(chan unitask.Verdict, 1)
		go func() { // a client that reads nothing keeps it, and not the run
			res, err := req.Session.Elicit(asked, elicitation(q))
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

// verdict returns what a client's answer means, "" if it is none.
func verdict(res *sdk.ElicitResult, err error) unitask.Verdict {
	if err != nil || res == nil {
		return ""
	}
	switch res.Action {
	case "accept":
		answer, _ := res.Content["answer"].(string)
		switch v := unitask.Verdict(answer); v {
		case unitask.Deny, unitask.AllowOnce, unitask.AllowRun:
			return v
		}
	case "decline":
		return unitask.Deny
	}
	return ""
}
