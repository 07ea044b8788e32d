package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// fleetFunc is a fleet that consists of one function.
type fleetFunc func(context.Context, *unitask.FleetRun) (*unitask.Result, error)

func (f fleetFunc) Run(ctx context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
	return f(ctx, run)
}

// onFleet returns a client of a server on which run executes all runs.
func onFleet(t *testing.T, opts mcp.Options, run fleetFunc) *sdk.ClientSession {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t), Fleet: run})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	return inMemory(t, newServer(t, rt, opts), nil)
}

// cutOf returns the fields of a result about a truncated stream.
func cutOf(out object, stream string) (shown, total int, resource string) {
	list, _ := out["cut"].([]any)
	for _, c := range list {
		if c, _ := c.(object); c["stream"] == stream {
			return int(c["shown"].(float64)), int(c["total"].(float64)), c["resource"].(string)
		}
	}
	return 0, 0, ""
}

// Of a long output the beginning and the end are shown. A resource has all that is kept.
func TestCutOutput(t *testing.T) {
	const line, shown, kept = "xüber uns\n", 24 << 10, 16 << 20
	all := strings.Repeat(line, (1<<20)/len(line)+1)
	print := func(_ context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
		text := all
		if strings.Contains(run.Request.Code, "endless") {
			text = strings.Repeat(all, 20)
		}
		if strings.Contains(run.Request.Code, "escapes") {
			text = strings.Repeat("\x01", kept)
		}
		_, err := run.Stdout.Write([]byte(text))
		_, e := run.Stderr.Write([]byte("ends\n"))
		return &unitask.Result{Outcome: unitask.OutcomeExited}, errors.Join(err, e)
	}
	cs := onFleet(t, mcp.Options{MaxConcurrent: 8}, print)
	res, out, text := call(t, cs, "run_code", js("1"))
	n, total, uri := cutOf(out, "stdout")
	got, _ := out["stdout"].(string)
	first, last, isCut := strings.Cut(got, fmt.Sprintf("\n[%d bytes are left out here: %s]\n", total-n, uri))
	if res.IsError || n != len(first)+len(last) || n > shown || n < shown-4*utf8.UTFMax || total != len(all) || !isCut ||
		!strings.HasPrefix(all, first) || !strings.HasSuffix(all, last) {
		t.Fatalf("%d bytes, shown %d of %d (%d)", len(got), n, total, len(all))
	}
	for most, want := range map[int]int{0: 0, 1000: 1000, 256 << 10: 256 << 10} {
		res, out, text := call(t, cs, "run_code", object{"language": "js", "code": "1", "maxOutput": most})
		if n, _, uri := cutOf(out, "stdout"); res.IsError || uri == "" || n > want || n < want-40 {
			t.Errorf("maxOutput %d: %d bytes, %.300s", most, n, text)
		}
	}
	if res, _, text := call(t, cs, "run_code", object{"language": "js", "code": "1", "maxOutput": 1 << 20}); !res.IsError {
		t.Errorf("maxOutput of 1 MiB: %.300s", text)
	}
	if out["truncated"] != true || uri != fmt.Sprintf("unitask://runs/%s/stdout", out["runId"]) ||
		!strings.Contains(text, fmt.Sprintf("(stdout: %d of %d bytes are shown; the resource %s has them all)", n, total,
			uri)) || strings.Contains(text, "that are kept") {
		t.Errorf("%v %s %s", out["truncated"], uri, text[max(0, len(text)-300):])
	}
	if _, _, uri := cutOf(out, "stderr"); uri != "" || out["stderr"] != "ends\n" {
		t.Errorf("%s %v", uri, out["stderr"])
	}
	if r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err != nil || r.Contents[0].Text != all {
		t.Errorf("%v", err)
	}

	// More output than is kept: the kept part says so.
	readPages(t, cs, kept, shown, all)

	// No output makes a message larger than a client accepts.
	_, out, _ = call(t, cs, "run_code", js("escapes"))
	_, _, uri = cutOf(out, "stdout")
	if r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err != nil ||
		r.Contents[0].Text != strings.Repeat("\x01", 2<<20) {
		t.Errorf("%v", err)
	}

	// If the ceiling keeps less than is shown, the rest is nowhere.
	cutByCeiling(t, print)

	// Concurrent outputs do not mix.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: "run_code", Arguments: js("1")})
			if err != nil {
				t.Error(err)
				return
			}
			if _, total, _ := cutOf(res.StructuredContent.(object), "stdout"); total != len(all) {
				t.Error(total)
			}
		})
	}
	group.Wait()
}

// readPages reads all kept output, page by page.
func readPages(t *testing.T, cs *sdk.ClientSession, kept, shown int, all string) {
	t.Helper()
	var out object
	var text string
	var n int
	var total int
	var uri string
	_, out, text = call(t, cs, "run_code", js("endless"))
	if n, total, uri = cutOf(out, "stdout"); total != kept || n > shown || out["truncated"] != true ||
		!strings.Contains(text, fmt.Sprintf("more was printed than the %d bytes a stream that are kept", kept)) {
		t.Errorf("%d of %d: %s", n, total, text[max(0, len(text)-300):])
	}
	whole, pages := "", 0
	for next := uri; next != ""; pages++ {
		r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: next})
		if err != nil {
			t.Fatalf("%s: %v", next, err)
		}
		whole += r.Contents[0].Text
		next, _ = r.Contents[0].Meta["unitask/next"].(string)
	}
	if len(whole) != kept || pages != 9 || whole != strings.Repeat(all, 20)[:kept] {
		t.Errorf("%d bytes on %d pages", len(whole), pages)
	}
	if !strings.Contains(text, "2097152 at a time: ?offset=2097152 goes on)") {
		t.Error(text[max(0, len(text)-300):])
	}
	for query, want := range map[string]string{"?offset=16777210": whole[kept-6:], "?offset=16777216": "",
		"?offset=1099511627775": ""} {
		if r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri + query}); err != nil ||
			r.Contents[0].Text != want || r.Contents[0].Meta != nil {
			t.Errorf("%s: %v %v", query, r, err)
		}
	}
	for _, query := range []string{"?", "?offset=", "?offset=-1", "?offset=1x", "?offset=1099511627776", "?length=1",
		"?offset=0&offset=1"} {
		if r, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri + query}); err == nil {
			t.Errorf("%s: %v", query, r)
		}
	}
}

// cutByCeiling checks an output that the ceiling truncates.
func cutByCeiling(t *testing.T, print func(_ context.Context, run *unitask.FleetRun) (*unitask.Result, error)) {
	t.Helper()
	var out object
	var text string
	var uri string
	ceiling, err := policy.ParseCeiling("test", []byte("outputBytes = 1000"))
	if err != nil {
		t.Fatal(err)
	}
	_, out, text = call(t, onFleet(t, mcp.Options{Ceiling: ceiling}, print), "run_code", js("1"))
	if _, _, uri = cutOf(out, "stdout"); uri != "" || out["truncated"] != true || len(out["stdout"].(string)) != 1000 ||
		!strings.Contains(text, "than the 1000 bytes") {
		t.Errorf("%s %v", uri, text[max(0, len(text)-300):])
	}
}

// If a run with a record fails, the result contains the error's code.
func TestRunErrorsAreTyped(t *testing.T) {
	for _, row := range []struct {
		name    string
		outcome unitask.Outcome
		err     error
		code    string
		retry   float64
	}{
		{"lost", unitask.OutcomeLost, &unitask.LostError{Reason: "its worker is gone"}, "lost", 0},
		{"busy", unitask.OutcomeBusy, &unitask.BusyError{What: "the queue", After: 3 * time.Second}, "busy", 3000},
		{"guest", unitask.OutcomeCrashed, &unitask.GuestError{Reason: "panic"}, "guest", 0},
		{"full disk", unitask.OutcomeFailed, &unitask.HostError{Op: "record", Err: syscall.ENOSPC}, "host", 0},
		{"exited", unitask.OutcomeExited, nil, "", 0},
	} {
		cs := onFleet(t, mcp.Options{}, func(context.Context, *unitask.FleetRun) (*unitask.Result, error) {
			return &unitask.Result{Outcome: row.outcome}, row.err
		})
		res, out, _ := call(t, cs, "run_code", js("1"))
		typed, _ := res.Meta["unitask/error"].(object)
		if row.err == nil {
			if typed != nil || res.IsError || out["outcome"] != "exited" {
				t.Errorf("%v %v", typed, out)
			}
			continue
		}
		after, _ := typed["retryAfterMs"].(float64)
		if typed["code"] != row.code || after != row.retry || typed["retryable"] != (row.retry > 0) ||
			typed["message"] != out["error"] || typed["message"] == "" || !res.IsError ||
			out["outcome"] != string(row.outcome) || out["runId"] == "" {
			t.Errorf("%s: %v %v", row.name, typed, out)
		}
	}
}

// On a fleet, tools that need sessions are not offered.
func TestFleetOffersNoSessions(t *testing.T) {
	cs := onFleet(t, mcp.Options{}, func(context.Context, *unitask.FleetRun) (*unitask.Result, error) {
		return &unitask.Result{Outcome: unitask.OutcomeExited}, nil
	})
	tools, err := cs.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
		if tool.Name == "run_code" {
			schema, err := json.Marshal(tool.InputSchema)
			if err != nil || strings.Contains(string(schema), `"session"`) || !strings.Contains(string(schema), `"memoryMb"`) {
				t.Errorf("%s %v", schema, err)
			}
		}
	}
	if got := strings.Join(names, " "); got != "inspect_run list_runs run_code unitask_doctor" {
		t.Error(got)
	}
	if text := cs.InitializeResult().Instructions; strings.Contains(text, "session") ||
		!strings.Contains(text, "Nothing persists between calls. ") {
		t.Error(text)
	}
	res, _, text := call(t, cs, "run_code", object{"language": "js", "code": "1", "session": "new"})
	if _, takes, ok := strings.Cut(text, "run_code takes"); !res.IsError || !ok || strings.Contains(takes, "session") {
		t.Errorf("%v %s", res.IsError, text)
	}
}

// A session that ends during a call has ended: the answer contains its output, and no expiry.
func TestSessionEndsUnderACall(t *testing.T) {
	rt := open(t, unitask.PoolSize{})
	cs := inMemory(t, newServer(t, rt, mcp.Options{}), nil)
	for tool, args := range map[string]object{"run_code": {"language": "python",
		"code": "print('up', flush=True); import time; time.sleep(100)"},
		"session_command": {"command": "echo up; exec sleep 100"}} {
		_, out, text := call(t, cs, "run_code", object{"session": "new", "language": "python", "code": "1"})
		id, _ := out["session"].(string)
		if id == "" {
			t.Fatal(text)
		}
		args["session"] = id
		type answer struct {
			res  *sdk.CallToolResult
			out  object
			text string
		}
		ended := make(chan answer, 1)
		go func() {
			res, err := cs.CallTool(t.Context(), &sdk.CallToolParams{Name: tool, Arguments: args})
			if err != nil {
				t.Error(err)
				res = &sdk.CallToolResult{}
			}
			a := answer{res: res}
			if len(res.Content) > 0 {
				a.text = res.Content[0].(*sdk.TextContent).Text
			}
			a.out, _ = res.StructuredContent.(object)
			ended <- a
		}()
		var list object
		if !testwait.Holds(time.Minute, func() bool {
			_, list, _ = call(t, cs, "inspect_run", object{"runId": "last"})
			return list["stdout"] == "up\n"
		}) {
			t.Fatal(list)
		}
		if res, _, text := call(t, cs, "manage_session", object{"op": "end", "session": id}); res.IsError {
			t.Fatal(text)
		}
		a := <-ended
		typed, _ := a.res.Meta["unitask/error"].(object)
		if typed["code"] != "session.gone" || !a.res.IsError || a.out["outcome"] != "crashed" || a.out["expiresAt"] != nil ||
			strings.Contains(a.text, "expires at") || a.out["stdout"] != "up\n" {
			t.Errorf("%s: %v %v %s", tool, typed, a.out, a.text)
		}
	}
}

// A session whose first step can't start has ended when the answer comes: no list contains it.
func TestFirstStepFails(t *testing.T) {
	ceiling, err := policy.ParseCeiling("c.toml", []byte("callerSessions = 1"))
	if err != nil {
		t.Fatal(err)
	}
	cs := inMemory(t, newServer(t, open(t, unitask.PoolSize{}), mcp.Options{Ceiling: ceiling}), nil)
	for n := range 3 { // more than a caller may have
		res, _, text := call(t, cs, "run_code", object{"session": "new", "language": "shell",
			"code": strings.Repeat("#", 1<<20) + "#"})
		if !res.IsError || !strings.Contains(text, "in a session") {
			t.Fatalf("%d: %s", n, text)
		}
		_, list, text := call(t, cs, "manage_session", object{"op": "list"})
		if sessions, is := list["sessions"].([]any); !is || len(sessions) > 0 {
			t.Errorf("%d: %s", n, text)
		}
	}
}
