package mcp_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/mcp"
)

// drawing adds a tool whose result has pictures, and counts those that are still in memory.
func drawing(s *mcp.Server, kib int) *atomic.Int64 {
	var alive atomic.Int64
	mcp.AddTaskTool(s, "draws", func(ctx context.Context, req *sdk.CallToolRequest, ask mcp.Ask) (*sdk.CallToolResult,
		error) {
		if _, err := sleeps(ctx, req, ask); err != nil {
			return nil, err
		}
		picture := &sdk.ImageContent{Data: make([]byte, kib<<10), MIMEType: "image/png"}
		alive.Add(1)
		runtime.AddCleanup(picture, func(n *atomic.Int64) { n.Add(-1) }, &alive)
		return &sdk.CallToolResult{Content: []sdk.Content{picture}}, nil
	})
	return &alive
}

// falls waits until at most so many pictures are in memory.
func falls(t *testing.T, alive *atomic.Int64, most int64) string {
	t.Helper()
	for late := time.Now().Add(20 * time.Second); time.Now().Before(late); {
		if runtime.GC(); alive.Load() <= most { // cleanups run soon afterwards
			return "freed"
		}
	}
	return fmt.Sprintf("%d are kept", alive.Load())
}

// Memory that tasks keep: results that made room for others, large pictures, and requests of those that run.
func TestAttackTaskMemory(t *testing.T) {
	for _, c := range []struct {
		kib  int
		most int64
	}{{8, mcp.CallersTasks + 2}, {1 << 10, 2}} {
		s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
		alive := drawing(s, c.kib)
		alice := taskClient{serve(t, s, mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")}), "alice-token-0123456789", false}
		for range mcp.CallersTasks + 10 {
			alice.ends(t, alice.call(t, "draws", map[string]any{"seconds": 0.02}).Result.TaskID)
		}
		attack.Check(t, fmt.Sprintf("pictures of %d KiB of 26 ended tasks, beyond %d", c.kib, c.most), "freed",
			falls(t, alive, c.most))
	}

	s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
	taskFixtures(s)
	alice := taskClient{serve(t, s, mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")}), "alice-token-0123456789", false}
	id := alice.call(t, "slow_compute", map[string]any{"seconds": 600, "x": strings.Repeat("x", 1<<20)}).Result.TaskID
	testwait.Until(t, "the end of its call", func() bool { return mcp.Held(s) < 8<<20 })
	attack.Check(t, "a task's request of 1 MiB counts as memory", "true", fmt.Sprint(mcp.Held(s) > 1<<20))
	alice.about(t, "tasks/cancel", id)
	alice.ends(t, id)
	testwait.Until(t, "its memory's return", func() bool { return mcp.Held(s) == 0 })
}

// Callers who together keep as many tasks as all may have lock nobody out, whether theirs have ended or not.
func TestAttackTasksOfAll(t *testing.T) {
	for _, seconds := range []float64{0.02, 600} {
		s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
		taskFixtures(s)
		url := serve(t, s, mcp.HTTPOptions{Auth: tokens(t, "a", "b", "c", "d", "alice")})
		for _, evil := range []string{"a", "b", "c", "d"} {
			for range mcp.CallersTasks {
				taskClient{url, evil + "-token-0123456789", false}.call(t, "slow_compute", map[string]any{"seconds": seconds})
			}
		}
		alice := taskClient{url, "alice-token-0123456789", false}
		made := alice.call(t, "slow_compute", map[string]any{"seconds": 0.2}).Result
		attack.Check(t, fmt.Sprintf("a task beside 64 of %v s of four others", seconds), "task", made.ResultType)
		attack.Check(t, "its end", "completed", alice.ends(t, made.TaskID).Result.Status)
	}
}

// A refused call with background has begun nothing, and so costs nothing of its caller's rate.
func TestAttackRefusedBackground(t *testing.T) {
	s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine(), CallerPerMinute: 1})
	taskFixtures(s)
	alice := taskClient{serve(t, s, mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")}), "alice-token-0123456789", false}
	for range mcp.CallersTasks {
		alice.call(t, "slow_compute", map[string]any{"seconds": 600})
	}
	for range 20 {
		said := alice.call(t, "run_code", map[string]any{"language": "shell", "code": "true", "background": true}).Result
		if len(said.Content) == 0 || !strings.Contains(said.Content[0].Text, "16 runs are in the background") {
			t.Fatalf("%+v", said)
		}
	}
	said := taskClient{alice.url, alice.token, true}.call(t, "run_code", map[string]any{"language": "shell",
		"code": "true"}).Result
	attack.Check(t, "the rate, which is 1 a minute, after 20 refused calls with background", "false",
		fmt.Sprint(strings.Contains(fmt.Sprint(said), "a minute is your bound")))
}

// Two clients that wait for the same failed run: the SDK writes to the results of both.
func TestAttackSharedResult(t *testing.T) {
	s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine()})
	both, err := mcp.WaitedFor(s, &sdk.CallToolResult{Meta: sdk.Meta{"failed": 1}}, mcp.RanResult())
	if err != nil {
		t.Fatal(err)
	}
	both[0].Meta["first"] = 1
	attack.Check(t, "what is written to one's result, in the other's", "map[failed:1]", fmt.Sprint(both[1].Meta))
	_, err = mcp.WaitedFor(s, &sdk.CallToolResult{}, nil)
	attack.Check(t, "a wait for a task of another tool", "true", fmt.Sprint(err != nil))
}
