package unitask_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
)

// Code of a session calls functions of the embedding program, also after a pause and in a fork. A call that is in
// progress at a pause fails, and one at a fork fails in the fork.
func TestOwnToolsSession(t *testing.T) {
	needVM(t)
	type number struct {
		N int `json:"n"`
	}
	app := mcp.NewServer(&mcp.Implementation{Name: "app"}, nil)
	began := make(chan struct{}, 8)
	mcp.AddTool(app, &mcp.Tool{Name: "twice"}, func(_ context.Context, _ *mcp.CallToolRequest, in number) (
		*mcp.CallToolResult, number, error) {
		return nil, number{2 * in.N}, nil
	})
	mcp.AddTool(app, &mcp.Tool{Name: "slow"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ number) (
		*mcp.CallToolResult, number, error) {
		began <- struct{}{}
		<-ctx.Done()
		return nil, number{}, errors.New("too late")
	})
	rt := sessionRuntime(t)
	s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: "python"},
		OwnTools: map[string]*mcp.Server{"app": app}})
	twice := func(s *unitask.Session, when string) {
		t.Helper()
		res, err := s.Run(t.Context(), unitask.Step{Code: "from unitask_tools import app\napp.twice(n=21)['n']"})
		if err != nil || res.Value != "42" {
			t.Fatalf("%s: %v %+v", when, err, res)
		}
	}
	// begin begins a call that does not end by itself. The code writes what came of it into a file.
	begin := func(file string) {
		t.Helper()
		run, err := s.Start(t.Context(), unitask.Command{Args: []string{"python3", "-c", `import sys
from unitask_tools import app, ToolError
try: app.slow(n=1)
except ToolError as e: open(sys.argv[1] + "+", "w").write(e.code)
import os; os.rename(sys.argv[1] + "+", sys.argv[1])`, file}})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-began:
		case <-time.After(20 * time.Second):
			is, err := s.Wait(t.Context(), run, 0, 0)
			t.Fatalf("no call: %s %v", is.Text(), err)
		}
	}
	said := func(s *unitask.Session, file string) string {
		t.Helper()
		res, err := s.Run(t.Context(), unitask.Step{Timeout: 20 * time.Second, Code: `import os, time
while not os.path.exists("` + file + `"): time.sleep(0.05)
open("` + file + `").read()`})
		if err != nil {
			t.Fatal(err)
		}
		return res.Value
	}
	twice(s, "at first")
	begin("paused")
	if err := errors.Join(s.Pause(t.Context()), s.Resume(t.Context())); err != nil {
		t.Fatal(err)
	}
	if code := said(s, "paused"); code != "'cut'" {
		t.Errorf("a call at a pause: %s", code)
	}
	twice(s, "after a pause")
	begin("forked")
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if code := said(forks[0], "forked"); code != "'cut'" {
		t.Errorf("a call in a fork: %s", code)
	}
	twice(s, "after a fork")
	twice(forks[0], "in a fork")
	if err := forks[0].Close(); err != nil && !errors.As(err, new(*unitask.SessionError)) {
		t.Error(err)
	}
}

// The command unitask-tool works in each image, also those without bash, and in the background.
func TestToolCommandImages(t *testing.T) {
	needVM(t)
	app := mcp.NewServer(&mcp.Implementation{Name: "app"}, nil)
	mcp.AddTool(app, &mcp.Tool{Name: "say", Description: "says what it is told"}, func(ctx context.Context,
		_ *mcp.CallToolRequest, in struct {
			Text string `json:"text"`
			Slow bool   `json:"slow,omitempty"`
		}) (*mcp.CallToolResult, any, error) {
		if in.Slow { // signs of life come before the answer
			timed, cancel := context.WithTimeout(ctx, 3*time.Second)
			defer cancel()
			<-timed.Done()
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: in.Text}}}, nil, nil
	})
	const script = `unitask-tool app.say '{"text":"é 1","slow":true}' >/tmp/said 2>&1 &
wait
cat /tmp/said
unitask-tool search says | grep -c app.say
unitask-tool app.say '{"text":1}' 2>&1 | cut -c1-24
unitask-tool app.none 2>&1 | cut -c1-22
unitask-tool say 2>/dev/null || echo $?`
	const want = "é 1\n1\nunitask-tool: arguments:\nunitask-tool: unknown:\n2\n"
	rt := sessionRuntime(t)
	for _, language := range []string{"python", "js", "shell"} {
		s := openSession(t, rt, unitask.SessionRequest{Request: unitask.Request{Language: language},
			OwnTools: map[string]*mcp.Server{"app": app}})
		res, err := s.Exec(t.Context(), unitask.Command{Args: []string{"sh", "-c", script}})
		if err != nil || string(res.Stdout) != want {
			t.Errorf("%s: %v %s %s", language, err, res.Stdout, res.Stderr)
		}
	}
}
