package mcp

import (
	"context"
	"slices"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// approvalForm is the form for the user of a client.
var approvalForm = map[string]any{
	"type": "object",
	"properties": map[string]any{"answer": map[string]any{
		"type": "string", "title": "May it connect?",
		"enum": []any{string(unitask.Deny), string(unitask.AllowOnce), string(unitask.AllowRun), string(untilClosed)},
		"enumNames": []any{"No, not in this run", "This connection or request only", "To this host and port, in this run",
			"To this host and port, until this server ends"},
	}},
	"required": []any{"answer"},
}

// untilClosed allows what AllowRun does, and the same in the server's later runs.
const untilClosed unitask.Verdict = "server"

// maxAgreed bounds the targets that a server remembers.
const maxAgreed = 1000

// agreed are targets (HOST:PORT) that the client's user has allowed until the server ends.
type agreed struct {
	mu      sync.Mutex
	targets map[string]bool
}

// asker returns an asker that asks nobody about what was allowed until the server ends.
func (a *agreed) asker(ask asker) asker {
	if ask == nil {
		return nil
	}
	return func(ctx context.Context, q unitask.Question) unitask.Verdict {
		a.mu.Lock()
		known := a.targets[q.Host]
		a.mu.Unlock()
		if known {
			return unitask.AllowRun
		}
		said := ask(ctx, q)
		if said != untilClosed {
			return said
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.targets == nil {
			a.targets = map[string]bool{}
		}
		if len(a.targets) < maxAgreed {
			a.targets[q.Host] = true
		}
		return unitask.AllowRun
	}
}

// canShow reports whether a call's client can show its user a form, and the user may answer: a remote client must not
// approve what the ceiling asks about.
func canShow(caller unitask.Caller, req *sdk.CallToolRequest) bool {
	can := req.ClientCapabilities()
	return !remote(caller) && can != nil && can.Elicitation != nil &&
		(can.Elicitation.Form != nil || can.Elicitation.URL == nil)
}

// askFirst has the client's user asked about the hosts that a call names, unless a policy that the user trusts says
// which hosts models may reach, or the client can't show a question. A fleet's runs ask nobody.
func (s *Server) askFirst(caller unitask.Caller, req *sdk.CallToolRequest, run *unitask.Request) {
	keys := []string{"allowNet", "allowNetAny", "ask"}
	says := slices.ContainsFunc(keys, caller.Ceiling.Bounds)
	if s.opts.Policy != nil {
		says = s.opts.Policy.Says(callerNames(req.Extra), keys...)
	}
	if says || !s.rt.HasSessions() || !canShow(caller, req) {
		return
	}
	run.Ask, run.AllowNet = append(slices.Clip(run.Ask), run.AllowNet...), nil
}

// asker shows a question to somebody until its context ends; "" means no answer.
type asker func(context.Context, unitask.Question) unitask.Verdict

// approver asks the user of the client that made the call (elicitation), if that is the server's own user: a
// remote client must not approve what the ceiling asks about. If a client can't be asked, unitask approve can
// answer. A client of a revision that asks at the end of a call is not asked here (rounds).
func approver(call context.Context, caller unitask.Caller, req *sdk.CallToolRequest) asker {
	if remote(caller) {
		return nil
	}
	return func(ctx context.Context, q unitask.Question) unitask.Verdict {
		asked, cancel := context.WithCancel(call) // tells to which call the question belongs
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		said := make(chan unitask.Verdict, 1)
		go func() { // a client that reads nothing blocks this goroutine, not the run
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

// verdict returns the meaning of a client's answer, "" if it is no answer.
func verdict(res *sdk.ElicitResult, err error) unitask.Verdict {
	if err != nil || res == nil {
		return ""
	}
	switch res.Action {
	case "accept":
		answer, _ := res.Content["answer"].(string)
		switch v := unitask.Verdict(answer); v {
		case unitask.AllowOnce, unitask.AllowRun, untilClosed:
			return v
		}
		return unitask.Deny // nobody waits for a better answer
	case "decline":
		return unitask.Deny
	}
	return ""
}
