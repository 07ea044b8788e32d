package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/toolhost"
)

// clientTool describes a tool that the run's client has.
type clientTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Input       json.RawMessage `json:"inputSchema"`
	Output      json.RawMessage `json:"outputSchema"`
}

// clientCall is a call of the run's code that waits for its client's answer.
type clientCall struct {
	Call      string          `json:"call"`
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"` // they fit the tool's schema

	answered chan clientAnswer // takes one answer
}

// clientAnswer is a result, or the text of an error.
type clientAnswer struct {
	Result json.RawMessage `json:"result"`
	Error  *string         `json:"error"`
}

// clientCalls are the open calls of a run. Package toolhost bounds their number, size and time.
type clientCalls struct {
	mu   sync.Mutex
	made int
	open map[string]*clientCall
}

func (cc *clientCalls) begin(server, tool string, arguments json.RawMessage) *clientCall {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.made++
	one := &clientCall{strconv.Itoa(cc.made), server, tool, arguments, make(chan clientAnswer, 1)}
	if cc.open == nil {
		cc.open = map[string]*clientCall{}
	}
	cc.open[one.Call] = one
	return one
}

// end takes a call out, and returns it; nil if it is not open.
func (cc *clientCalls) end(id string) *clientCall {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	one := cc.open[id]
	delete(cc.open, id)
	return one
}

// list returns the open calls, the oldest first.
func (cc *clientCalls) list() []*clientCall {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	return slices.SortedFunc(maps.Values(cc.open), func(a, b *clientCall) int {
		return cmp.Or(len(a.Call)-len(b.Call), strings.Compare(a.Call, b.Call)) // numbers
	})
}

// toolServers returns servers whose tools ask the run's client: each call is an event of the run.
func (p *progress) toolServers(ctx context.Context, tools map[string][]clientTool) (map[string]*sdk.Server, error) {
	servers := map[string]*sdk.Server{}
	for name, list := range tools {
		server := sdk.NewServer(&sdk.Implementation{Name: name, Version: "1"}, nil)
		for i, tool := range list {
			err := addTool(server, tool, p.asks(name, tool.Name))
			if slices.ContainsFunc(list[:i], func(other clientTool) bool { return other.Name == tool.Name }) {
				err = errors.New("there are two")
			}
			if err != nil {
				return nil, wrong(http.StatusUnprocessableEntity, fmt.Sprintf("clientTools.%s: the tool %s: %v", quoted(name),
					quoted(tool.Name), err))
			}
		}
		if err := toolhost.CheckOwn(ctx, name, server); err != nil {
			return nil, err
		}
		servers[name] = server
	}
	return servers, nil
}

// addTool adds a tool to a server. The library panics if a schema is not one of an object.
func addTool(server *sdk.Server, tool clientTool, do sdk.ToolHandler) (err error) {
	defer func() {
		if what := recover(); what != nil {
			err = fmt.Errorf("%v", what)
		}
	}()
	t := &sdk.Tool{Name: tool.Name, Description: tool.Description, InputSchema: map[string]any{"type": "object"}}
	if tool.Input != nil {
		t.InputSchema = tool.Input
	}
	if tool.Output != nil {
		t.OutputSchema = tool.Output
	}
	server.AddTool(t, do)
	return nil
}

// asks returns a tool's handler, which waits for the client's answer.
func (p *progress) asks(server, tool string) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		one := p.calls.begin(server, tool, req.Params.Arguments)
		defer p.calls.end(one.Call)
		p.add("toolCall", one)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case answer := <-one.answered:
			text := string(answer.Result)
			if answer.Error != nil {
				text = *answer.Error
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}},
				IsError: answer.Error != nil}, nil
		}
	}
}

// callsOf returns the open calls of the run that a request names.
func (s *Server) callsOf(c *call) (*clientCalls, error) {
	rec, err := s.record(c)
	if err != nil {
		return nil, err
	}
	if p := s.progresses.find(rec.ID, c.caller.Name); p != nil {
		return &p.calls, nil
	}
	return &clientCalls{}, nil
}

func (s *Server) listToolCalls(c *call) (*answer, error) {
	calls, err := s.callsOf(c)
	if err != nil {
		return nil, err
	}
	return &answer{Body: map[string]any{"calls": append([]*clientCall{}, calls.list()...)}}, nil
}

// answerToolCall gives a waiting call its result or its error.
func (s *Server) answerToolCall(c *call) (*answer, error) {
	var in clientAnswer
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	calls, err := s.callsOf(c)
	if err != nil {
		return nil, err
	}
	one := calls.end(c.text("call"))
	if one == nil {
		return nil, &Problem{Status: http.StatusConflict, Code: "call.none",
			Detail: "no call " + quoted(c.text("call")) + " waits: it was answered, its time was over, or the run has ended",
			Remedy: "GET /v1/runs/{id}/calls lists what waits for an answer"}
	}
	one.answered <- in
	return &answer{Status: http.StatusNoContent}, nil
}
