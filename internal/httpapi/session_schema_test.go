package httpapi

import (
	"encoding/json"
	"mime"
	"net/http"
	"strings"
	"testing"
)

// responses are the documented answers of an operation, by status or "default".
type responses map[string]struct {
	Ref     string `json:"$ref"`
	Content map[string]struct{ Schema json.RawMessage }
}

// conforms checks that an answer is one that the document describes: its status, its type, and its JSON with all of its
// fields.
func (s *sessionServer) conforms(res *http.Response, text []byte) {
	s.t.Helper()
	var doc struct {
		Paths      map[string]map[string]json.RawMessage
		Components struct {
			Schemas   map[string]json.RawMessage
			Responses responses
		}
	}
	if err := json.Unmarshal(s.api.doc.text, &doc); err != nil {
		s.t.Fatal(err)
	}
	_, pattern := s.api.routes.Handler(res.Request)
	method, path, _ := strings.Cut(strings.Replace(pattern, "...}", "}", 1), " ")
	op := doc.Paths[path][strings.ToLower(method)]
	answered := strings.Contains(res.Header.Get("Content-Type"), "json")
	switch { // some answers come from around the API
	case op == nil, res.StatusCode == http.StatusTemporaryRedirect, res.StatusCode == http.StatusUnauthorized && !answered,
		res.StatusCode == http.StatusForbidden && !answered:
		return
	}
	var has struct {
		Responses responses
		Proxy     bool `json:"x-proxy"`
	}
	if err := json.Unmarshal(op, &has); err != nil {
		s.t.Fatal(err)
	}
	is, ok := has.Responses[res.Status[:3]]
	if !ok {
		is = has.Responses["default"]
	}
	if name, ok := strings.CutPrefix(is.Ref, "#/components/responses/"); ok {
		is = doc.Components.Responses[name]
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	content, ok := is.Content[kind]
	switch {
	case has.Proxy || kind == "" && len(is.Content) == 0:
		return
	case !ok || !strings.HasSuffix(kind, "json"):
		if !ok {
			s.t.Errorf("%s %s: the document has no %d of type %q", method, path, res.StatusCode, kind)
		}
		return
	}
	for name, schema := range doc.Components.Schemas {
		doc.Components.Schemas[name] = closed(s.t, schema)
	}
	schema, err := compile(closed(s.t, content.Schema), doc.Components.Schemas)
	if err != nil {
		s.t.Fatal(err)
	}
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	if err := schema.Validate(value); err != nil {
		s.t.Errorf("%s %s answers %.500s: %v", method, path, text, err)
	}
}

// closed returns a schema whose objects have no other members than it names.
func closed(t *testing.T, schema json.RawMessage) json.RawMessage {
	var value any
	if err := json.Unmarshal(schema, &value); err != nil {
		t.Fatal(err)
	}
	var walk func(value any, all bool)
	walk = func(value any, all bool) {
		switch value := value.(type) {
		case map[string]any:
			if _, open := value["additionalProperties"]; value["properties"] != nil && !open && !all {
				value["additionalProperties"] = false
			}
			for name, member := range value {
				walk(member, name == "allOf")
			}
		case []any:
			for _, member := range value {
				walk(member, all)
			}
		}
	}
	walk(value, false)
	out, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
