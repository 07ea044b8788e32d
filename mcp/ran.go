package mcp

import (
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// ran is the result of a run, or of a session's step, in the form for clients.
type ran struct {
	unitask.ResultJSON
	Cut       []cut     `json:"cut,omitempty" jsonschema:"the streams of which only the beginning is here"`
	ExpiresAt time.Time `json:"expiresAt,omitzero" jsonschema:"the end of the session"`
}

// cut is a stream whose result contains only the beginning.
type cut struct {
	Stream   string `json:"stream" jsonschema:"stdout or stderr"`
	Shown    int64  `json:"shown" jsonschema:"bytes of it that are here"`
	Total    int64  `json:"total" jsonschema:"bytes of it that the resource has"`
	Resource string `json:"resource" jsonschema:"what has all of it"`
}

// stream receives output: it sends the output to the client and keeps the beginning for the result. The record
// has all of it.
type stream struct {
	live  *live
	rest  []byte // of an incomplete character
	kept  []byte
	total int64
}

func (s *stream) Write(p []byte) (int, error) {
	s.rest = s.live.add(s.rest, p)
	s.total += int64(len(p))
	s.kept = append(s.kept, p[:min(len(p), shownBytes-len(s.kept))]...)
	return len(p), nil
}

// shown returns the beginning; if that is not all, it ends with a complete character.
func (s *stream) shown() []byte {
	if s.total > int64(len(s.kept)) {
		return s.kept[:whole(s.kept)]
	}
	return s.kept
}

// streams are the streams of a run.
type streams struct{ stdout, stderr stream }

func newStreams(live *live) *streams { return &streams{stream{live: live}, stream{live: live}} }

// show stores the shown beginnings of the streams in a result.
func (s *streams) show(res *unitask.Result) {
	res.Stdout, res.Stderr = s.stdout.shown(), s.stderr.shown()
}

// forget drops the kept output: a result then tells where it is.
func (s *streams) forget() { s.stdout.kept, s.stderr.kept = nil, nil }

// cut returns the streams of a run that are not shown completely.
func (s *streams) cut(id string) (list []cut) {
	for _, one := range []struct {
		name string
		*stream
	}{{"stdout", &s.stdout}, {"stderr", &s.stderr}} {
		if n := int64(len(one.shown())); n < one.total {
			list = append(list, cut{one.name, n, one.total, partURI(id, one.name)})
		}
	}
	return list
}

// partURI returns the resource URI of a part of a run's record.
func partURI(id, part string) string { return runsURI + id + "/" + part }

// answer returns the form of a result for clients; the run ended with err if that is not nil. said receives
// details that the text lacks. of is the session of a step, or nil.
func answer(said *sdk.CallToolResult, res *unitask.Result, err error, printed *streams, of *heldSession) *ran {
	r := &ran{ResultJSON: res.JSON(), Cut: printed.cut(res.RunID)}
	r.Truncated = r.Truncated || len(r.Cut) > 0
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
