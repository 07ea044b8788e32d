package run

import (
	"fmt"
	"strings"
	"time"
)

// Question asks whether the code of a run may connect to exactly this host and port, or call exactly this tool.
type Question struct {
	RunID string `json:"run"`
	// Host is HOST:PORT; an international name is in ASCII, as xn--…. For a call of a tool it is ToolPrefix and
	// SERVER.TOOL, and Request has the arguments.
	Host string `json:"host"`
	// Request is the method and path of the waiting request, "" if requests to the host are not read. The code has chosen
	// them; they are printable ASCII, cut after maxAskedRequest bytes.
	Request string `json:"request,omitempty"`
	// Rule is the rule that asks: "ask *.example.com".
	Rule string `json:"rule"`
	// Until is the deadline for an answer: after it, the connection is denied.
	Until time.Time `json:"until"`
}

// ToolPrefix begins the Host of a question about a call of a tool. No host begins so.
const ToolPrefix = "tool:"

// Wants returns, for a person, what the code wants: "to connect to HOST:PORT (ask RULE)".
func (q Question) Wants() string {
	if tool, is := strings.CutPrefix(q.Host, ToolPrefix); is {
		return fmt.Sprintf("to call the tool %s with %s (%s)", tool, q.Request, q.Rule)
	}
	if q.Request != "" {
		return fmt.Sprintf("to send %s to %s (%s)", q.Request, q.Host, q.Rule)
	}
	return fmt.Sprintf("to connect to %s (%s)", q.Host, q.Rule)
}

// Verdict answers a Question; "" means no answer.
type Verdict string

const (
	Deny      Verdict = "deny"  // for this run
	AllowOnce Verdict = "once"  // this connection, or this request if the question names one
	AllowRun  Verdict = "allow" // and all others of the run to the same host and port
	// AllowAlways is like AllowRun, and the home remembers it (policy.Approvals) for the user's next runs under
	// the same ceiling. Only IO.Approve of a command line or program may return it: from an MCP client or unitask
	// approve it does not count as an answer.
	AllowAlways Verdict = "always"
)

// Approval is a question that was asked, and its outcome.
type Approval struct {
	Host    string  `json:"host"` // HOST:PORT
	Request string  `json:"request,omitempty"`
	Verdict Verdict `json:"verdict"`
	By      string  `json:"by,omitempty"`  // "" if nobody answered
	Why     string  `json:"why,omitempty"` // the reason for a denial that nobody gave
	Ms      int64   `json:"ms"`            // how long the machine was stopped
}

func (a Approval) String() string {
	what := a.Host
	tool, isTool := strings.CutPrefix(a.Host, ToolPrefix)
	if isTool {
		what = "the call of " + tool
	}
	if a.Request != "" && !isTool {
		what += " (" + a.Request + ")"
	}
	if a.Verdict != Deny {
		return fmt.Sprintf("%s was allowed by %s (%s)", what, a.By, a.Verdict)
	}
	if a.By != "" {
		return fmt.Sprintf("%s was denied by %s", what, a.By)
	}
	if isTool {
		return fmt.Sprintf("%s was denied: %s", what, a.Why)
	}
	return fmt.Sprintf("%s was denied: %s; a host in allowNet of the ceiling needs no question", what, a.Why)
}

// Valid reports whether anybody may give this verdict.
func (v Verdict) Valid() bool { return v == Deny || v == AllowOnce || v == AllowRun }

// PolicyChange narrows and widens the network of a current run or session. What DenyNet denies stays denied, whatever
// else allows it, until an equal AllowNet reverses that.
type PolicyChange struct {
	// AllowNet lists hosts as in Request.AllowNet, within the ceiling that the run began under.
	AllowNet []string `json:"allowNet,omitempty"`
	// DenyNet lists hosts in the same form; one without a port is denied on every port.
	DenyNet []string `json:"denyNet,omitempty"`
	// At is the time when the change took effect.
	At time.Time `json:"at,omitzero"`
}
