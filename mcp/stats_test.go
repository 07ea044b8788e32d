package mcp_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/policy"
)

// The resource of a server's load has its limits, as the ceiling narrows them, and the host's use.
func TestStats(t *testing.T) {
	ceiling, err := policy.ParseCeiling("/x", []byte("callerSessions = 1\nsessionIdleSeconds = 30\nmemoryMb = 300"))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(t, bare(t), mcp.Options{Ceiling: ceiling, MaxConcurrent: 3, MaxQueue: 9, CallerPerMinute: 7})
	res, err := inMemory(t, s, nil).ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "unitask://stats"})
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Queue, Defaults map[string]float64
		Sessions        struct {
			Running, Paused float64
			Limits          map[string]float64
		}
		Host map[string]any
	}
	if err := json.Unmarshal([]byte(res.Contents[0].Text), &got); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what      string
		got, want float64
	}{
		{"mostRunning", got.Queue["mostRunning"], 3}, {"mostWaiting", got.Queue["mostWaiting"], 9},
		{"callerPerMinute", got.Queue["callerPerMinute"], 7}, {"running", got.Queue["running"], 0},
		{"callerSessions", got.Sessions.Limits["callerSessions"], 1}, {"memoryMb", got.Defaults["memoryMb"], 300},
		{"sessionIdleSeconds", got.Sessions.Limits["sessionIdleSeconds"], 30}, {"sessions", got.Sessions.Running, 0},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v in %s", c.what, c.got, c.want, res.Contents[0].Text)
		}
	}
	for _, name := range []string{"processors", "memoryBytes", "memoryFreeBytes", "diskBytes", "diskFreeBytes"} {
		if n, _ := got.Host[name].(float64); n <= 0 {
			t.Errorf("%s of the host: %v", name, got.Host[name])
		}
	}
}

// A caller over HTTP sees its own load, and nothing of the host.
func TestAttackStatsOverHTTP(t *testing.T) {
	shared := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}),
		mcp.HTTPOptions{Auth: tokens(t, "alice", "bob")})
	cs := connect(t, shared, "alice-token-0123456789")
	res, err := cs.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: "unitask://stats"})
	if err != nil {
		t.Fatal(err)
	}
	text := res.Contents[0].Text
	for _, word := range []string{"host", "Bytes", `"sessions": `, "load"} {
		has := strings.Contains(strings.Replace(text, `"sessions": {`, "", 1), word)
		attack.Check(t, "the stats of a caller over HTTP have "+word, "false", fmt.Sprint(has))
	}
	attack.Check(t, "the stats of a caller over HTTP have its limits", "true",
		fmt.Sprint(strings.Contains(text, "callerSessions")))
}
