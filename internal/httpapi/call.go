package httpapi

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/unitask/unitask"
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

// maxBody bounds a body in JSON, in bytes.
const maxBody = 16 << 20

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
			write(w, got)
		}
	})
}

// answer checks a call and carries it out.
func (s *Server) answer(c *call, op *described, do operation) (*answer, error) {
	if err := c.readParameters(op); err != nil {
		return nil, err
	}
	if op.body != nil {
		if err := c.readBody(op); err != nil {
			return nil, err
		}
	}
	return do(c)
}

func write(w http.ResponseWriter, got *answer) {
	for name, values := range got.Header {
		w.Header()[name] = values
	}
	if got.Body != nil {
		w.Header().Set("Content-Type", jsonType)
	}
	if got.Status == 0 {
		got.Status = http.StatusOK
	}
	w.WriteHeader(got.Status)
	if got.Body != nil {
		_ = json.NewEncoder(w).Encode(got.Body)
	}
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

// readBody reads and checks a body in JSON.
func (c *call) readBody(op *described) error {
	text, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if errors.As(err, new(*http.MaxBytesError)) {
		return wrong(http.StatusRequestEntityTooLarge, "the body has more than 16 MiB")
	}
	if err != nil {
		return wrong(http.StatusBadRequest, "the body did not come whole: "+err.Error())
	}
	if len(text) == 0 && !op.RequestBody.Required {
		text = []byte("{}")
	} else if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || kind != jsonType {
		return wrong(http.StatusUnsupportedMediaType, "the body's Content-Type is not "+jsonType)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		return wrong(http.StatusBadRequest, "the body: "+err.Error())
	}
	if err := op.body.Validate(value); err != nil {
		return wrong(http.StatusUnprocessableEntity, "the body: "+plain(err))
	}
	c.body = text
	return nil
}

// quoted returns an attacker's text for a message.
func quoted(text string) string {
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "…"
	}
	out, _ := json.Marshal(text)
	return string(out)
}
