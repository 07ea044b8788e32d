package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Each operation of the document has a function, and each function an operation; New panics otherwise.
func TestDocument(t *testing.T) {
	s := New(Options{Version: "1"})
	if len(s.doc.operations) == 0 || len(s.doc.text) == 0 {
		t.Error("the document is empty")
	}
	if strings.Contains(string(s.doc.text), ":null") {
		t.Error("the document has an empty member: a text with a comma or colon needs quotes")
	}
	var states []string
	for _, p := range s.doc.operations["listRuns"].Parameters {
		if p.Name == "status" {
			var schema struct{ Enum []string }
			if err := json.Unmarshal(p.Schema, &schema); err != nil {
				t.Fatal(err)
			}
			states = schema.Enum
		}
	}
	if want := history.States(); !slices.Equal(states, want) {
		t.Errorf("the document has the states %q, and there are %q", states, want)
	}
	var doc struct {
		Tags []struct{ Name string }
	}
	if err := json.Unmarshal(s.doc.text, &doc); err != nil || len(doc.Tags) < 3 {
		t.Errorf("%+v %v", doc, err)
	}
}

// A result's members are in the document.
func TestResultSchema(t *testing.T) {
	var doc struct {
		Components struct {
			Schemas map[string]struct{ Properties map[string]json.RawMessage }
		}
	}
	if err := json.Unmarshal(New(Options{Version: "1"}).doc.text, &doc); err != nil {
		t.Fatal(err)
	}
	for name, full := range map[string]any{
		"RunResult": &runResult{Cut: []string{"stdout"}}, "RunSummary": history.Summary{},
		"Problem": Problem{Remedy: "x", RetryAfterMS: 1}, "RunState": runState{},
		"Artifact": record.Artifact{}, "Denial": policy.Denial{}, "Question": unitask.Question{},
	} {
		text, err := json.Marshal(full)
		if err != nil {
			t.Fatal(err)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(text, &members); err != nil {
			t.Fatal(err)
		}
		for member := range members {
			if doc.Components.Schemas[name].Properties[member] == nil {
				t.Errorf("schema %s has no %s", name, member)
			}
		}
	}
}

func TestParameters(t *testing.T) {
	a := newAPI(t, setup{})
	for path, detail := range map[string]string{
		"/v1/runs?limit=x": "limit: \"x\" is not a number", "/v1/runs?limit=0": "limit", "/v1/runs?limit=1.5": "limit",
		"/v1/runs?limit=1e400": "limit", "/v1/runs?limit=1&limit=2": "limit is given twice", "/v1/runs?status=x": "status",
		"/v1/runs?none=1": `unknown parameter "none"`, "/v1/runs?limit=%zz": "the query", "/v1/runs?limit=NaN": "limit",
		"/v1/runs/x/result?waitSeconds=51": "waitSeconds", "/v1/runs/x/result?waitSeconds=inf": "waitSeconds",
		"/v1/runs/x/events?after=-1": "after", "/v1/runs/x/events?after=": "after",
	} {
		p := a.refused(400, "usage", "GET", path, nil)
		if text, _ := p["detail"].(string); !strings.Contains(text, detail) {
			t.Errorf("%s: %s", path, text)
		}
	}
	a.refused(400, "usage", "POST", "/v1/runs?wait=yes", python("1"))
	a.refused(400, "usage", "POST", "/v1/runs", python("1"), keyHeader, "with blank")
	a.refused(400, "usage", "POST", "/v1/runs", python("1"), keyHeader, strings.Repeat("x", 201))
	a.refused(415, "usage", "POST", "/v1/runs", python("1"), "Content-Type", "text/plain")
	res, _ := a.send("PATCH", "/v1/runs", nil)
	if res.StatusCode != 405 || res.Header.Get("Allow") != "GET, POST" {
		t.Errorf("%d %s", res.StatusCode, res.Header.Get("Allow"))
	}
	for body, detail := range map[string]string{
		`{}`: "lacks", `{"language":"python","code":1}`: "code: ", `{"language":"python","code":"1","none":1}`: "none",
		`{"language":"python","code":"1","memoryMb":1}`: "memoryMb: ", `{"language":"none","code":"1"}`: "none",
		`{"language":"python","code":"1","files":[{"name":"a"}]}`: "files",
		`{"language":"python","code":"1","secrets":["A","A"]}`:    "twice",
	} {
		p := a.refused(422, "usage", "POST", "/v1/runs", strings.NewReader(body))
		if text, _ := p["detail"].(string); !strings.Contains(text, detail) || strings.Contains(text, "$defs") {
			t.Errorf("%s: %s", body, text)
		}
	}
}

func TestProblems(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
		retry  string // the header
	}{
		{policy.Bad("memoryMb", "1", "is too little"), 422, "usage", ""},
		{&unitask.BusyError{What: "full", After: 1500 * time.Millisecond}, 429, "busy", "2"},
		{&unitask.BusyError{What: "full"}, 429, "busy", "1"},
		{fmt.Errorf("run: %w", record.ErrNotFound), 404, "run.gone", ""},
		{unitask.ErrClosed, 503, "closing", "10"}, {&unitask.HostError{Op: "disk", Err: os.ErrClosed}, 503, "host", ""},
		{&unitask.GuestError{Reason: "x"}, 502, "guest", ""}, {&unitask.LostError{}, 502, "lost", ""},
		{&unitask.JailError{}, 503, "jail", ""}, {errors.New("other"), 422, "usage", ""},
		{&Problem{Status: 409, Code: "unknown", Detail: "x"}, 409, "unknown", ""},
	} {
		w := httptest.NewRecorder()
		writeProblem(w, problemOf(c.err))
		var p Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != c.status || p.Code != c.code ||
			p.Status != c.status || p.Detail == "" || p.Title != http.StatusText(c.status) ||
			w.Header().Get("Retry-After") != c.retry || p.Retryable != (c.retry != "") {
			t.Errorf("%v: %d %s %q %v", c.err, w.Code, w.Body, w.Header().Get("Retry-After"), err)
		}
	}
}

func TestServer(t *testing.T) {
	a := newAPI(t, setup{})
	images := a.want(200, "GET", "/v1/images", nil)["images"].([]any)
	if one := images[0].(object); one["name"] != "node" || one["about"] == "" {
		t.Errorf("%v", one)
	}
	if about := a.want(200, "GET", "/v1/about", nil); about["version"] != "1" {
		t.Errorf("%v", about)
	}
	if doc := a.want(200, "GET", documentPath, nil); doc["openapi"] != "3.1.0" {
		t.Errorf("%v", doc["openapi"])
	}
	if open := a.want(200, "GET", "/v1/approvals", nil); fmt.Sprint(open) != "map[questions:[]]" {
		t.Errorf("%v", open)
	}
}
