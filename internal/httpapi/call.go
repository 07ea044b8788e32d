package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/mcp"
)

// An operation answers a call. A nil answer means that it has written the answer itself, as streams do. The error may
// be a *Problem.
type operation = func(*call) (*answer, error)

// call is a request that has passed the document's checks.
type call struct {
	w      http.ResponseWriter
	r      *http.Request
	caller unitask.Caller
	body   json.RawMessage // valid by the operation's schema; nil if the operation has none
	values map[string]any  // of the parameters
}

// answer is a response in JSON.
type answer struct {
	Status int // 0 means 200
	Header http.Header
	Body   any // nil means that there is none
}

// text returns a parameter that is a string, "" if it is not given.
func (c *call) text(name string) string {
	text, _ := c.values[name].(string)
	return text
}

// number returns a parameter that is a number, or the default if it is not given.
func (c *call) number(name string, usual float64) float64 {
	if n, ok := c.values[name].(float64); ok {
		return n
	}
	return usual
}

// is returns a parameter that is a boolean, or the default if it is not given.
func (c *call) is(name string, usual bool) bool {
	if is, ok := c.values[name].(bool); ok {
		return is
	}
	return usual
}

// decode reads the body, which is valid by its schema.
func (c *call) decode(into any) error { return json.Unmarshal(c.body, into) }

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		what := recover()
		if what == nil {
			return
		}
		if what != http.ErrAbortHandler { //nolint:errorlint // the value itself is panicked with
			s.log.Error("httpapi: panic", "what", what, "stack", string(debug.Stack()))
		}
		panic(http.ErrAbortHandler)
	}()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.routes.ServeHTTP(w, r)
}

// handle returns the handler of an operation.
func (s *Server) handle(op *described, do operation) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{w: w, r: r, caller: s.shared.Caller(r)}
		got, err := s.answer(c, op, do)
		if err != nil {
			p := problemOf(s.shared.Hide(c.caller, err))
			if p.Status >= http.StatusInternalServerError && r.Context().Err() == nil {
				s.log.Error("httpapi", "operation", op.ID, "error", err)
			}
			writeProblem(w, p)
			return
		}
		if got != nil {
			s.write(c, got)
		}
	})
}

// answer checks a call and carries it out.
func (s *Server) answer(c *call, op *described, do operation) (*answer, error) {
	if err := c.readParameters(op); err != nil {
		return nil, err
	}
	if op.body != nil {
		release, err := s.readBody(c, op)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	return do(c)
}

// write writes an answer. Its memory is the caller's until the client has read it.
func (s *Server) write(c *call, got *answer) {
	var text bytes.Buffer
	if got.Body != nil {
		if err := json.NewEncoder(&text).Encode(got.Body); err != nil {
			s.log.Error("httpapi: an answer is not JSON", "error", err)
			writeProblem(c.w, &Problem{Status: http.StatusInternalServerError, Code: "host", Detail: "the answer is no JSON"})
			return
		}
		release, err := s.shared.Answer(c.r.Context(), c.caller, text.Len())
		if err != nil {
			writeProblem(c.w, problemOf(err))
			return
		}
		defer release()
		c.w.Header().Set("Content-Type", jsonType)
	}
	for name, values := range got.Header {
		c.w.Header()[name] = values
	}
	if got.Status == 0 {
		got.Status = http.StatusOK
	}
	c.w.WriteHeader(got.Status)
	_, _ = c.w.Write(text.Bytes())
}

// wrong returns the problem of a request that can't be read.
func wrong(status int, detail string) error {
	return &Problem{Status: status, Code: "usage", Detail: detail, Remedy: "send it as " + documentPath + " describes it"}
}

// readParameters reads and checks the parameters of the path, the query and the headers.
func (c *call) readParameters(op *described) error {
	c.values = map[string]any{}
	query, err := url.ParseQuery(c.r.URL.RawQuery)
	if op.Proxy {
		query, err = nil, nil
	}
	if err != nil {
		return wrong(http.StatusBadRequest, "the query: "+err.Error())
	}
	known := op.names("query")
	for name := range query {
		if !slices.Contains(known, name) {
			return wrong(http.StatusBadRequest, "the query has an unknown parameter "+quoted(name))
		}
	}
	for i := range op.Parameters {
		p := &op.Parameters[i]
		var texts []string
		switch p.In {
		case "path":
			texts = []string{c.r.PathValue(p.Name)}
		case "query":
			texts = query[p.Name]
		case "header":
			texts = c.r.Header.Values(p.Name)
		}
		switch {
		case len(texts) > 1:
			return wrong(http.StatusBadRequest, p.Name+" is given twice")
		case len(texts) == 0 && p.Required:
			return wrong(http.StatusBadRequest, p.Name+" is missing")
		case len(texts) == 0:
			continue
		}
		if c.values[p.Name], err = p.parse(texts[0]); err != nil {
			return wrong(http.StatusBadRequest, p.Name+": "+err.Error())
		}
	}
	return nil
}

// readBody reads and checks a body in JSON. Its memory is the caller's until release is called.
func (s *Server) readBody(c *call, op *described) (release func(), err error) {
	text, decoded, release := []byte("{}"), func() {}, func() {}
	if c.r.ContentLength != 0 || op.RequestBody.Required {
		if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || kind != jsonType {
			return nil, wrong(http.StatusUnsupportedMediaType, "the body's Content-Type is not "+jsonType)
		}
		text, decoded, release, err = s.shared.Body(c.w, c.r)
		if is := new(mcp.BodyError); errors.As(err, &is) {
			return nil, wrong(is.Status, is.Text)
		}
		if err != nil {
			return nil, err
		}
	}
	var value any
	if err = json.Unmarshal(text, &value); err != nil {
		err = wrong(http.StatusBadRequest, "the body: "+err.Error())
	} else if err = op.body.Validate(value); err != nil {
		err = wrong(http.StatusUnprocessableEntity, "the body: "+plain(err))
	}
	if err != nil {
		release()
		return nil, err
	}
	decoded()
	c.body = text
	return release, nil
}

// quoted returns an attacker's text for a message.
func quoted(text string) string {
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "…"
	}
	out, _ := json.Marshal(text)
	return string(out)
}
