package httpapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"path"
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

	digest string // of a request that may have an Idempotency-Key
	key    *keyed // of its key; nil without one
	lease  func() // releases its memory, when it is answered
}

// began notes that an operation with an Idempotency-Key has begun a run or a session with an id. A later request with
// the key does not begin it again.
func (c *call) began(id string) {
	if c.key != nil {
		c.key.began(id)
	}
}

// keepLease passes the call's memory on to work that continues after the answer; release releases it.
func (c *call) keepLease() (release func()) {
	release, c.lease = c.lease, func() {}
	return release
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

// decode reads the body, which is valid by its schema. The error is a *Problem.
func (c *call) decode(into any) error {
	if err := json.Unmarshal(c.body, into); err != nil {
		return wrong(http.StatusUnprocessableEntity, "the body: "+err.Error())
	}
	return nil
}

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
	if at := path.Clean("/" + r.URL.Path); at != r.URL.Path && at+"/" != r.URL.Path { // else the routes redirect
		p := noPath(r)
		p.Remedy = "send the path without empty parts, . and ..: " + quoted(at)
		writeProblem(w, p)
		return
	}
	s.routes.ServeHTTP(w, r)
}

// Refuse answers a request that the server refuses before it reaches the API: that of a stranger, or of a caller with
// too many.
func (s *Server) Refuse(w http.ResponseWriter, status int, text string) {
	p := &Problem{Status: status, Code: "usage", Detail: text}
	switch status {
	case http.StatusUnauthorized:
		p.Code, p.Remedy = "token", "send Authorization: Bearer TOKEN"
	case http.StatusForbidden:
		p.Code = "forbidden"
	case http.StatusTooManyRequests:
		p.Code, p.Retryable, p.RetryAfterMS = "busy", true, again.Milliseconds()
	case http.StatusServiceUnavailable:
		p.Code, p.Retryable, p.RetryAfterMS = "closing", true, 10*again.Milliseconds()
	}
	writeProblem(w, p)
}

// handle returns the handler of an operation.
func (s *Server) handle(op *described, do operation) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{w: w, caller: s.shared.Caller(r)}
		ctx, release := s.shared.Lease(r.Context(), c.caller)
		c.r, c.lease = r.WithContext(ctx), release
		defer func() { c.lease() }()
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
		if err := s.readBody(c, op); err != nil {
			return nil, err
		}
		s.shared.Decoded(c.r.Context())
	}
	if key := c.text(keyHeader); key != "" {
		return s.once(c, op, key, do)
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

// readBody reads and checks a body in JSON.
func (s *Server) readBody(c *call, op *described) error {
	text, err := s.shared.Body(c.w, c.r)
	if bad := new(mcp.BodyError); errors.As(err, &bad) {
		return wrong(bad.Status, bad.Text)
	}
	if err != nil {
		return err
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
	if c.text(keyHeader) != "" {
		hash := sha256.New()
		_ = json.NewEncoder(hash).Encode(value) // members in the order of their names
		c.digest = hex.EncodeToString(hash.Sum(nil))
	}
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
