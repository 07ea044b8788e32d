package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// A client's reply must be one of the allowed answers, or counts as none. A remote client is not asked.
func TestAttackApprovalAnswers(t *testing.T) {
	for _, row := range []struct {
		name string
		res  *sdk.ElicitResult
		err  error
		want unitask.Verdict
	}{
		{"this once", accepts("once"), nil, unitask.AllowOnce},
		{"for the run", accepts("allow"), nil, unitask.AllowRun},
		{"no", &sdk.ElicitResult{Action: "accept", Content: map[string]any{"answer": "deny"}}, nil, unitask.Deny},
		{"declined, with an answer", &sdk.ElicitResult{Action: "decline", Content: map[string]any{"answer": "allow"}}, nil,
			unitask.Deny},
		{"dismissed, with an answer", &sdk.ElicitResult{Action: "cancel", Content: map[string]any{"answer": "allow"}}, nil,
			unitask.Deny},
		{"accepted, without an answer", &sdk.ElicitResult{Action: "accept"}, nil, unitask.Deny},
		{"another answer", &sdk.ElicitResult{Action: "accept", Content: map[string]any{"answer": "always"}}, nil,
			unitask.Deny},
		{"an answer of another type", &sdk.ElicitResult{Action: "accept", Content: map[string]any{"answer": true}}, nil,
			unitask.Deny},
		{"another action", &sdk.ElicitResult{Action: "ACCEPT", Content: map[string]any{"answer": "allow"}}, nil, ""},
		{"nothing", nil, nil, ""},
		{"an error beside an answer", accepts("allow"), errors.New("gone"), ""},
	} {
		attack.Check(t, "a client's answer: "+row.name, string(row.want), string(mcp.Verdict(row.res, row.err)))
	}
	for how, want := range map[string]bool{`{}`: true, `{"form":{}}`: true, `{"form":{},"url":{}}`: true,
		`{"url":{}}`: false} {
		var capability map[string]any
		if err := json.Unmarshal([]byte(how), &capability); err != nil {
			t.Fatal(err)
		}
		if got := mcp.AsksBy(capability); got != want {
			t.Errorf("a client with elicitation %s is asked: %t", how, got)
		}
	}
	for _, via := range []struct {
		name  string
		asked bool
		via   unitask.Caller
	}{{"over HTTP", false, unitask.Caller{Via: unitask.ViaHTTP}},
		{"that our own user has started", true, unitask.Caller{Via: unitask.ViaMCP}}} {
		if mcp.Asks(via.via) != via.asked {
			t.Errorf("a client %s is asked: %t", via.name, !via.asked)
		}
	}
}

// fetchesTwo connects to two hosts in turn.
const fetchesTwo = `(async () => {
	for (const name of ["yes", "no"])
		await fetch("http://" + name + ".w.example/").catch((e) => console.log(name, e.cause?.code))
})()`

// A client of a revision with elicitation is asked during its call, if no ceiling says otherwise. It is asked outside
// of a call when a background command connects.
func TestElicitation(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a real machine; not in -short")
	}
	s := newServer(t, open(t, unitask.PoolSize{}), mcp.Options{})
	a, b := sdk.NewInMemoryTransports()
	if _, err := mcp.SDK(s).Connect(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	opts := &sdk.ClientOptions{ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult,
		error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Params.Message)
		if strings.Contains(r.Params.Message, " yes.w.example:80 (ask yes.w.example)") {
			return accepts("once"), nil
		}
		return &sdk.ElicitResult{Action: "decline"}, nil
	}}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), b,
		&sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code",
		Arguments: object{"allowNet": []string{"yes.w.example", "no.w.example"},
			"language": "js", "code": fetchesTwo}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var got unitask.Result
	if err := json.Unmarshal(text, &got); err != nil || len(got.Approvals) != 2 || len(asked) != 2 {
		t.Fatalf("%v %q %s", err, asked, text)
	}
	for i, want := range []string{"yes.w.example:80 was allowed by the caller of the run (once)",
		"no.w.example:80 was denied by the caller of the run"} {
		if got := got.Approvals[i].String(); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}

	of := newSessionOf(t, cs, "yes.w.example")
	res, err = cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "session_command",
		Arguments: object{"session": of, "background": true, "command": "wget -q -O - http://yes.w.example/"}})
	if err != nil || res.IsError {
		t.Fatal(err, res)
	}
	testwait.Until(t, "a question outside of a call", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) == 3
	})
}

// newSessionOf starts a session that names a host, and returns its id.
func newSessionOf(t *testing.T, cs *sdk.ClientSession, host string) (id string) {
	t.Helper()
	res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code", Arguments: object{"session": "new",
		"language": "js", "code": "1", "allowNet": []string{host}}})
	if err != nil {
		t.Fatal(err)
	}
	id, _ = res.StructuredContent.(map[string]any)["session"].(string)
	if id == "" {
		t.Fatalf("%+v", res)
	}
	return id
}

// In a newer revision, a call ends with the question. The client repeats the call with the answer, and the run
// continues.
func TestInputRequired(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a real machine; not in -short")
	}
	ceiling, err := policy.ParseCeiling("test", []byte(`ask = ["*.w.example"]`))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, open(t, unitask.PoolSize{}), mcp.Options{Ceiling: ceiling})
	a, b := sdk.NewInMemoryTransports()
	if _, err := mcp.SDK(s).Connect(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	cs, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, notAsked(t)).Connect(t.Context(), b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cs.Close()
	params := &sdk.CallToolParams{Name: "run_code",
		Arguments: object{"allowNet": []string{"yes.w.example", "no.w.example"},
			"language": "js", "code": fetchesTwo}}
	call := func(state string, answer *sdk.ElicitResult) *sdk.CallToolResult {
		t.Helper()
		again := *params
		if again.RequestState = state; answer != nil {
			again.InputResponses = sdk.InputResponseMap{"approval": answer}
		}
		res, err := cs.CallTool(t.Context(), &again)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	refused := func(what, state string) {
		t.Helper()
		seen := "goes on"
		if res := call(state, accepts("allow")); res.IsError &&
			strings.Contains(res.Content[0].(*sdk.TextContent).Text, "no run waits for this answer") {
			seen = "refused"
		}
		attack.Check(t, what, "refused", seen)
	}
	first := asksAbout(t, call("", nil), "yes.w.example:80")
	refused("a state that nobody was given", "x"+first[1:])
	second := asksAbout(t, call(first, accepts("once")), "no.w.example:80")
	if again := asksAbout(t, call(first, accepts("allow")), "no.w.example:80"); again != second {
		t.Errorf("an old answer to a new question: %s, %s", again, second)
	}
	res := call(second, &sdk.ElicitResult{Action: "decline"})
	text, err := json.Marshal(res.StructuredContent)
	if err != nil {
		t.Fatal(err)
	}
	var got unitask.Result
	if err := json.Unmarshal(text, &got); err != nil || len(got.Approvals) != 2 {
		t.Fatalf("%v %s", err, text)
	}
	for i, want := range []string{"yes.w.example:80 was allowed by the caller of the run (once)",
		"no.w.example:80 was denied by the caller of the run"} {
		if got := got.Approvals[i].String(); got != want {
			t.Errorf("%q, expected %q", got, want)
		}
	}
	refused("an answer to a run that has ended", second)

	for _, background := range []bool{false, true} {
		params.Name, params.Arguments = "session_command", object{"session": newSessionOf(t, cs, "yes.w.example"),
			"command": "wget -q -O - http://yes.w.example/ 2>/dev/null; echo over", "background": background}
		if background { // the call that waits for the command asks
			run := call("", nil).StructuredContent.(map[string]any)["runId"]
			params.Name, params.Arguments = "wait_command", object{"run": run}
		}
		res := call(asksAbout(t, call("", nil), "yes.w.example:80"), &sdk.ElicitResult{Action: "decline"})
		if text, err := json.Marshal(res.StructuredContent); err != nil || !strings.Contains(string(text), "over") {
			t.Errorf("background %t: %v %s", background, err, text)
		}
	}
}

// notAsked are the options of a client that answers calls again by hand, and must not be asked during one.
func notAsked(t *testing.T) *sdk.ClientOptions {
	return &sdk.ClientOptions{MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		ElicitationHandler: func(context.Context, *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			t.Error("asked in the middle of a call")
			return nil, nil
		}}
}

// accepts answers a question.
func accepts(answer string) *sdk.ElicitResult {
	return &sdk.ElicitResult{Action: "accept", Content: map[string]any{"answer": answer}}
}

// asksAbout returns the state of a question that a call's answer must contain.
func asksAbout(t *testing.T, res *sdk.CallToolResult, about string) (state string) {
	t.Helper()
	q, ok := res.InputRequests["approval"].(*sdk.ElicitParams)
	if !ok || !res.NeedsInput() || !strings.Contains(q.Message, about) || res.RequestState == "" {
		t.Fatalf("%+v, expected a question about %s", res, about)
	}
	return res.RequestState
}
