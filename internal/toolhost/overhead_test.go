package toolhost

import (
	"slices"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// A call through the service takes at most 3 ms more than a call of the server itself (median of a loop, loopback).
func TestCallOverhead(t *testing.T) {
	const calls, most = 200, 3 * time.Millisecond
	p, _ := newServer(t)
	r := newRig(t, p, nil)
	direct, err := sdk.NewClient(&sdk.Implementation{Name: "test"}, nil).Connect(t.Context(),
		&sdk.StreamableClientTransport{Endpoint: p.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer direct.Close()
	median := func(do func()) time.Duration {
		var took []time.Duration
		for range calls {
			began := time.Now()
			do()
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took[calls/2]
	}
	ask := func() {
		if _, err := direct.CallTool(t.Context(), &sdk.CallToolParams{Name: "echo",
			Arguments: map[string]any{"text": "hi"}}); err != nil {
			t.Fatal(err)
		}
	}
	through := func() {
		if got := r.send(t, "POST", "/call/test/echo", `{"text":"hi"}`); got != `{"value":"hi"}` {
			t.Fatal(got)
		}
	}
	ask()
	through()
	own, ours := median(ask), median(through)
	t.Logf("the server %v, through the service %v", own, ours)
	if ours-own > most {
		t.Errorf("a call takes %v, and %v without the service: more than %v longer", ours, own, most)
	}
}
