package mcp_test

import (
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
)

// Another API's requests and starts have the callers and rates of MCP's.
func TestAttackOtherAPIs(t *testing.T) {
	s := newServer(t, bare(t), mcp.Options{Ceiling: noMachine(), CallerPerMinute: 2})
	caller := s.Caller(httptest.NewRequest("GET", "/sandboxes", nil))
	attack.Check(t, "the caller of a request to another API that passed no check", "nobody", caller.Name)
	alice, got := unitask.Caller{Name: "alice", Via: unitask.ViaHTTP}, 0
	for range 5 {
		err := s.Admit(alice)
		if err == nil {
			got++
		} else if !errors.As(err, new(*unitask.BusyError)) {
			t.Errorf("%v", err)
		}
	}
	attack.Check(t, "starts of a caller through another API, beyond two a minute", "2", string(rune('0'+got)))
}
