package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/mcp"
)

// taskFixtures are the tools that the official suite asks for in its scenarios of tasks.
func taskFixtures(s *mcp.Server) {
	mcp.SDK(s).AddTool(&sdk.Tool{Name: "greet", Description: "conformance", InputSchema: objectOf("name")},
		func(_ context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var in struct{ Name string }
			err := json.Unmarshal(req.Params.Arguments, &in)
			return says(textContent("Hello, %s!", in.Name)), err
		})
	for name, run := range map[string]func(context.Context, *sdk.CallToolRequest, mcp.Ask) (*sdk.CallToolResult, error){
		"slow_compute": sleeps,
		"failing_job": func(_ context.Context, _ *sdk.CallToolRequest, ask mcp.Ask) (*sdk.CallToolResult, error) {
			if ask == nil {
				return nil, mcp.MissingTasks()
			}
			res := says(textContent("it failed"))
			res.IsError = true
			return res, nil
		},
		"protocol_error_job": func(context.Context, *sdk.CallToolRequest, mcp.Ask) (*sdk.CallToolResult, error) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "it broke"}
		},
		"confirm_delete": func(ctx context.Context, _ *sdk.CallToolRequest, ask mcp.Ask) (*sdk.CallToolResult, error) {
			return says(textContent("answered: %s", ask(ctx, form("Delete it?", "confirm")))), nil
		},
		"multi_input": func(ctx context.Context, _ *sdk.CallToolRequest, ask mcp.Ask) (*sdk.CallToolResult, error) {
			var both sync.WaitGroup
			for _, field := range []string{"name", "confirm"} {
				both.Go(func() { ask(ctx, form("Your answer?", field)) })
			}
			both.Wait()
			return says(textContent("both answered")), nil
		},
	} {
		mcp.AddTaskTool(s, name, run)
	}
	mcp.AddTaskTool(s, "panics", func(context.Context, *sdk.CallToolRequest, mcp.Ask) (*sdk.CallToolResult, error) {
		panic("a bug")
	})
	composed(s)
}

// sleeps sleeps for the call's seconds.
func sleeps(ctx context.Context, req *sdk.CallToolRequest, _ mcp.Ask) (*sdk.CallToolResult, error) {
	var in struct{ Seconds float64 }
	if err := json.Unmarshal(req.Params.Arguments, &in); err != nil {
		return nil, err
	}
	select {
	case <-time.After(time.Duration(in.Seconds * float64(time.Second))):
		return says(textContent("slept")), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// composed adds a tool that asks at the end of its first call, and ends the second with a task.
func composed(s *mcp.Server) {
	mcp.AddTaskTool(s, "greets_later", func(_ context.Context, req *sdk.CallToolRequest, _ mcp.Ask) (*sdk.CallToolResult,
		error) {
		return says(textContent("Hello, %s", given(req.Params.InputResponses, "user_name", "name"))), nil
	})
	mcp.SDK(s).AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			call, ok := req.(*sdk.CallToolRequest)
			if ok && call.Params.Name == "test_tool_with_task" && len(call.Params.InputResponses) > 0 {
				call.Params.Name = "greets_later"
			}
			return next(ctx, method, req)
		}
	})
	mcp.SDK(s).AddTool(&sdk.Tool{Name: "test_tool_with_task", Description: "conformance",
		InputSchema: json.RawMessage(`{"type":"object"}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{"user_name": form("Your name?", "name")}}, nil
		})
}

// taskClient sends requests with the extension declared, and returns their results or errors.
type taskClient struct {
	url, token string
	undeclared bool
}

type taskAnswer struct {
	Result struct {
		ResultType, TaskID, Status, StatusMessage string
		TTLMs                                     int64
		InputRequests                             map[string]any
		Content                                   []struct{ Text string }
		Result                                    struct {
			Content           []struct{ Text string }
			StructuredContent map[string]any
			IsError           bool
		}
	}
	Error struct {
		Code    int
		Message string
	}
}

func (c taskClient) send(t *testing.T, method, name string, params map[string]any) (a taskAnswer) {
	t.Helper()
	can := map[string]any{"elicitation": map[string]any{}}
	if !c.undeclared {
		can["extensions"] = map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}}
	}
	params["_meta"] = map[string]any{"io.modelcontextprotocol/protocolVersion": "2026-07-28",
		"io.modelcontextprotocol/clientCapabilities": can,
		"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "test", "version": "1"}}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	_, _, text := send(t, "POST", c.url+"/mcp", string(body), "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: "+method,
		"Mcp-Name: "+name, "Authorization: Bearer "+c.token)
	for line := range strings.Lines(text) {
		line = strings.TrimPrefix(strings.TrimSpace(line), "data: ")
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &a) == nil {
			return a
		}
	}
	t.Fatalf("%s %s: %s", method, name, text)
	return a
}

func (c taskClient) call(t *testing.T, tool string, args map[string]any) taskAnswer {
	t.Helper()
	return c.send(t, "tools/call", tool, map[string]any{"name": tool, "arguments": args})
}

func (c taskClient) about(t *testing.T, method, id string) taskAnswer {
	t.Helper()
	return c.send(t, method, id, map[string]any{"taskId": id})
}

// ends waits for a task's end.
func (c taskClient) ends(t *testing.T, id string) (a taskAnswer) {
	t.Helper()
	testwait.Until(t, "the end of a task", func() bool {
		a = c.about(t, "tasks/get", id)
		return a.Result.Status != "working" && a.Result.Status != "input_required"
	})
	return a
}

// Tasks of other callers, under wrong headers, without the extension, and more of them than are kept.
func TestAttackTasks(t *testing.T) {
	s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
	taskFixtures(s)
	url := serve(t, s, mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	alice, bob := taskClient{url, "alice-token-0123456789", false}, taskClient{url, "bob-token-0123456789", false}
	said := func(a taskAnswer) string { return fmt.Sprint(a.Error.Code, " ", a.Result.Status) }

	id := alice.call(t, "slow_compute", map[string]any{"seconds": 600}).Result.TaskID
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		attack.Check(t, "another caller's "+method, "-32602 ", said(bob.about(t, method, id)))
		attack.Check(t, method+" without the extension", "-32021 ",
			said(taskClient{url, alice.token, true}.about(t, method, id)))
		attack.Check(t, method+" of a task that is none", "-32602 ", said(alice.about(t, method, "none")))
		attack.Check(t, method+" under another name", "-32020 ",
			said(alice.send(t, method, "other", map[string]any{"taskId": id})))
	}
	attack.Check(t, "the task after all that", "0 working", said(alice.about(t, "tasks/get", id)))
	attack.Check(t, "a run's id that is empty", "-32602 ", said(alice.about(t, "tasks/get", "")))

	panicked := alice.ends(t, alice.call(t, "panics", nil).Result.TaskID)
	attack.Check(t, "a panic in a task", "failed internal error",
		panicked.Result.Status+" "+panicked.Result.StatusMessage)

	var first string
	for i := range mcp.CallersTasks - 2 { // id and the panic are kept, too
		made := alice.call(t, "slow_compute", map[string]any{"seconds": 600}).Result
		if i == 0 {
			first = made.TaskID
		}
	}
	over := alice.call(t, "slow_compute", map[string]any{"seconds": 600})
	attack.Check(t, "one task more than a caller may have takes the place of one that has ended", "task",
		over.Result.ResultType)
	full := alice.call(t, "slow_compute", map[string]any{"seconds": 0.1})
	attack.Check(t, "one more, when none has ended, waits", "complete", full.Result.ResultType)
	attack.Check(t, "another caller's meanwhile", "task", bob.call(t, "failing_job", nil).Result.ResultType)

	attack.Check(t, "a task's end by its caller", "0 ", said(alice.about(t, "tasks/cancel", first)))
	attack.Check(t, "its state", "cancelled", alice.ends(t, first).Result.Status)
	asks := alice.call(t, "confirm_delete", nil).Result.TaskID
	var open taskAnswer
	testwait.Until(t, "a question", func() bool {
		open = alice.about(t, "tasks/get", asks)
		return len(open.Result.InputRequests) == 1
	})
	for key := range open.Result.InputRequests {
		for _, answer := range []any{"x", 7, nil, []int{1}, map[string]any{"action": 7}} {
			alice.send(t, "tasks/update", asks, map[string]any{"taskId": asks,
				"inputResponses": map[string]any{key + "x": map[string]any{"action": "accept"}, "": answer}})
		}
		alice.send(t, "tasks/update", asks, map[string]any{"taskId": asks, "inputResponses": map[string]any{key: 7}})
	}
	attack.Check(t, "an answer that is no form", "answered: deny", alice.ends(t, asks).Result.Result.Content[0].Text)
}

// A run that takes long ends its call with a task, or is left in the background for clients without tasks.
func TestTasks(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a real machine; not in -short")
	}
	s := newServer(t, open(t, unitask.PoolSize{}), mcp.Options{})
	mcp.SetTaskAfter(s, time.Second)
	url := serve(t, s, mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	alice := taskClient{url, "alice-token-0123456789", false}
	const slow = "echo begun; sleep 3; echo over; exit 3"
	made := alice.call(t, "run_code", map[string]any{"language": "shell", "code": slow}).Result
	if made.ResultType != "task" || made.TTLMs < 1 {
		t.Fatalf("%+v", made)
	}
	if got := alice.ends(t, made.TaskID).Result; got.Status != "completed" || !got.Result.IsError ||
		got.Result.StructuredContent["stdout"] != "begun\nover\n" || got.Result.StructuredContent["exitCode"] != 3.0 {
		t.Errorf("%+v", got)
	}

	plain := taskClient{url, alice.token, true}.call(t, "run_code", map[string]any{"language": "shell",
		"code": "sleep 2; echo waited"}).Result
	if plain.ResultType != "complete" || len(plain.Content) == 0 {
		t.Errorf("%+v", plain)
	}
	behind(t, connect(t, url, alice.token), slow)
}

// behind leaves a run in the background, and waits for its output and its end.
func behind(t *testing.T, cs *sdk.ClientSession, slow string) {
	t.Helper()
	call := func(tool string, args object) (*sdk.CallToolResult, map[string]any) {
		t.Helper()
		res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		out, _ := res.StructuredContent.(map[string]any)
		return res, out
	}
	_, out := call("run_code", object{"language": "shell", "code": slow, "background": true})
	id, _ := out["runId"].(string)
	if out["outcome"] != "running" || id == "" {
		t.Fatal(out)
	}
	_, out = call("wait_command", object{"run": id, "maxOutput": 16})
	if out["outcome"] != "running" {
		testwait.Until(t, "its first output", func() bool {
			_, out = call("wait_command", object{"run": id, "waitSeconds": 1})
			return out["output"] != ""
		})
	}
	res, out := call("wait_command", object{"run": id, "afterSeq": 6, "waitSeconds": 30})
	if out["outcome"] != "exited" || out["exitCode"] != 3.0 || out["output"] != "over\n" || !res.IsError {
		t.Errorf("%v %v", out, res)
	}
	if text, _ := res.Content[0].(*sdk.TextContent); !strings.Contains(text.Text, "begun\nover\n") {
		t.Errorf("%q", text.Text)
	}
	_, out = call("run_code", object{"language": "shell", "code": "sleep 600", "background": true})
	id, _ = out["runId"].(string)
	if res, _ := call("manage_session", object{"op": "stop", "run": id}); res.IsError {
		t.Error(res)
	}
	if _, out = call("wait_command", object{"run": id, "waitSeconds": 30}); out["outcome"] != "cancelled" {
		t.Error(out)
	}
	if res, _ = call("wait_command", object{"run": "20260101-000000000-aaaaaa"}); !res.IsError {
		t.Error(errors.New("a run that is none is waited for"))
	}
}
