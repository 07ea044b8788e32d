package mcp

import sdk "github.com/modelcontextprotocol/go-sdk/mcp"

// SDK is the server as the SDK knows it: tests add tools to it, and connect to it
// without a wire.
func SDK(s *Server) *sdk.Server { return s.sdk }

// QueueOf returns the calls that wait and the runs under way.
func QueueOf(s *Server) (waiting, running int) {
	s.queue.change(func() { waiting, running = s.queue.waiting, s.queue.running })
	return waiting, running
}
