package mcp

import (
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// ran is the result of a run, or of a session's step, in the form for clients. Some clients show models only this
// form, others only the text, so both contain the output. The record contains the rest (inspect_run).
type ran struct {
	RunID            string            `json:"runId"`
	Outcome          run.Outcome       `json:"outcome"`
	ExitCode         int               `json:"exitCode"`
	Error            string            `json:"error,omitempty"`
	Stdout           string            `json:"stdout"`
	Stderr           string            `json:"stderr"`
	Value            string            `json:"value,omitempty"`
	Truncated        bool              `json:"truncated"`
	ProcessesRefused int               `json:"processesRefused,omitempty"`
	Cut              []cut             `json:"cut,omitempty"`
	Hints            []run.Hint        `json:"hints,omitempty"`
	Policy           ranPolicy         `json:"policy"`
	Artifacts        []record.Artifact `json:"artifacts,omitempty"`
	ArtifactsRefused []record.Refusal  `json:"artifactsRefused,omitempty"`
	ArtifactsMore    int               `json:"artifactsMore,omitempty"`
	Approvals        []run.Approval    `json:"approvals,omitempty"`
	Retried          string            `json:"retried,omitempty"`
	Redacted         []string          `json:"redacted,omitempty"`
	Duration         run.DurationsJSON `json:"durationMs"`
	RetryAfter       policy.Millis     `json:"retryAfterMs,omitempty"`
	Session          string            `json:"session,omitempty"`
	ExpiresAt        time.Time         `json:"expiresAt,omitzero"`
}

// ranPolicy is what a run was denied.
type ranPolicy struct {
	Denials []policy.Denial `json:"denials"`
	Ceiling string          `json:"ceiling,omitempty"`
}

// cut is a stream that a result does not contain completely.
type cut struct {
	Stream   string `json:"stream"`
	Shown    int64  `json:"shown"` // bytes
	Total    int64  `json:"total"` // bytes of the resource
	Resource string `json:"resource"`
}

// partURI returns the resource URI of a part of a run's record.
func partURI(id, part string) string { return runsURI + id + "/" + part }

// answer returns the form of a result for clients. err, if not nil, ended the run. said receives details that the text
// lacks. of is the session if the run is a step, else nil.
func answer(said *sdk.CallToolResult, res *unitask.Result, err error, printed *streams, of *heldSession) *ran {
	wire := res.JSON()
	r := &ran{RunID: res.RunID, Outcome: res.Outcome, ExitCode: res.ExitCode, Error: res.Error, Stdout: wire.Stdout,
		Stderr: wire.Stderr, Value: res.Value, Cut: printed.cut(res.RunID), Hints: res.Hints,
		Policy: ranPolicy{wire.Policy.Denials, res.Policy.Ceiling}, ArtifactsRefused: res.ArtifactsRefused,
		Approvals: res.Approvals, Retried: res.Retried, Redacted: res.Redacted, Duration: wire.Duration,
		RetryAfter: wire.RetryAfter, Session: res.Session}
	r.Artifacts = res.Artifacts[:min(len(res.Artifacts), maxListed)]
	r.ArtifactsMore = len(res.Artifacts) - len(r.Artifacts)
	r.ProcessesRefused = res.ProcessesRefused
	r.Truncated = res.Truncated || len(r.Cut) > 0
	var more strings.Builder
	for _, c := range r.Cut {
		fmt.Fprintf(&more, "\n(%s: %d of %d bytes are shown; the resource %s has them all", c.Stream, c.Shown, c.Total,
			c.Resource)
		if c.Total > pageBytes {
			fmt.Fprintf(&more, ", %d at a time: ?%s%d goes on", pageBytes, offsetQuery, pageBytes)
		}
		more.WriteByte(')')
	}
	if of != nil && !as[*unitask.SessionError](err) { // otherwise it is over
		r.ExpiresAt = of.view().ExpiresAt
		fmt.Fprintf(&more, "\nsession %s, expires at %s", of.ID, r.ExpiresAt.Format(time.RFC3339))
	}
	if text, ok := said.Content[0].(*sdk.TextContent); ok {
		text.Text += more.String()
	}
	if err != nil {
		typed := typed(err)
		typed.Message = res.Error // the same, without secrets and facts that its caller must not learn
		said.Meta = sdk.Meta{errorKey: typed}
	}
	return r
}
