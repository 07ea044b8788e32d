package run

import (
	"fmt"
	"time"
)

// Question is what somebody is asked: whether the code of a run may connect to a host, as it is
// named here and nowhere else, on this port.
type Question struct {
	RunID string `json:"run"`
	// Host is HOST:PORT; of a name in ASCII, as xn--… where it has other letters.
	Host string `json:"host"`
	// Request is the method and path of the request that waits, "" where requests to the host are
	// not read. The code has chosen them; they are printable ASCII, and cut after maxAskedRequest bytes.
	Request string `json:"request,omitempty"`
	// Rule is why it is asked: "ask *.example.com".
	Rule string `json:"rule"`
	// Until is when it is denied.
	Until time.Time `json:"until"`
}

// Wants is what the code wants, for a person: "to connect to HOST:PORT (ask RULE)".
func (q Question) Wants() string {
	if q.Request != "" {
		return fmt.Sprintf("to send %s to %s (%s)", q.Request, q.Host, q.Rule)
	}
	return fmt.Sprintf("to connect to %s (%s)", q.Host, q.Rule)
}

// Verdict answers a Question; "" is no answer.
type Verdict string

const (
	Deny      Verdict = "deny"  // for this run
	AllowOnce Verdict = "once"  // this connection, or this one request where the question names it
	AllowRun  Verdict = "allow" // and all others of the run to the same host and port
	// AllowAlways is AllowRun, which the home remembers (policy.Approvals) for the user's next runs
	// under the same ceiling. Only IO.Approve of a command line or program says so: from an MCP client
	// or unitask approve it is no answer.
	AllowAlways Verdict = "always"
)

// Approval is a question that was asked, and what became of it.
type Approval struct {
	Host    string  `json:"host"` // HOST:PORT
	Request string  `json:"request,omitempty"`
	Verdict Verdict `json:"verdict"`
	By      string  `json:"by,omitempty"`  // "" where nobody answered
	Why     string  `json:"why,omitempty"` // it was denied, where nobody denied it
	Ms      int64   `json:"ms"`            // for which the machine stood still
}

func (a Approval) String() string {
	what := a.Host
	if a.Request != "" {
		what += " (" + a.Request + ")"
	}
	if a.Verdict != Deny {
		return fmt.Sprintf("%s was allowed by %s (%s)", what, a.By, a.Verdict)
	}
	if a.By != "" {
		return fmt.Sprintf("%s was denied by %s", what, a.By)
	}
	return fmt.Sprintf("%s was denied: %s; --allow-net allows it without a question", what, a.Why)
}

// Valid says that a verdict is one that anybody may give.
func (v Verdict) Valid() bool { return v == Deny || v == AllowOnce || v == AllowRun }

// PolicyChange narrows and widens the network of a run or session that is under way. What it denies
// is so whatever else allows it, until an equal AllowNet takes that back.
type PolicyChange struct {
	// AllowNet are hosts as Request.AllowNet has them, within the ceiling that the run began under.
	AllowNet []string `json:"allowNet,omitempty"`
	// DenyNet are hosts in the same form; one without a port is denied on every port.
	DenyNet []string `json:"denyNet,omitempty"`
	// At is when it took effect.
	At time.Time `json:"at,omitzero"`
}
