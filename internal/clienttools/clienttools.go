// Package clienttools passes the code's calls of its client's functions to that client, which answers while the code
// waits. Package toolhost bounds the calls' number, size and time.
package clienttools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/exact"
	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/policy"
)

// Tool describes a function that the client has. Both schemas may be left out.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Input       json.RawMessage `json:"inputSchema"`
	Output      json.RawMessage `json:"outputSchema"`
}

// UnmarshalJSON refuses other members: a model must learn that it wrote input_schema.
func (t *Tool) UnmarshalJSON(data []byte) error {
	type plain Tool
	if err := exact.Members(data, t); err != nil {
		return fmt.Errorf("clientTools: %w: a tool has name, description, inputSchema and outputSchema", err)
	}
	return json.Unmarshal(data, (*plain)(t))
}

// Call is a call of the code that waits for the client's answer.
type Call struct {
	Call      string          `json:"call"` // its number
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"` // they fit the tool's schema

	answered chan Answer // takes one answer
}

// Answer is a result, or the text of an error.
type Answer struct {
	Result json.RawMessage `json:"result"`
	Error  *string         `json:"error"`
}

// Calls are the open calls of a run. Any goroutine may use them.
type Calls struct {
	Began func(*Call) // is called with each call; it must not wait

	mu   sync.Mutex
	made int
	open map[string]*Call
}

func (cc *Calls) begin(server, tool string, arguments json.RawMessage) *Call {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	cc.made++
	one := &Call{strconv.Itoa(cc.made), server, tool, arguments, make(chan Answer, 1)}
	if cc.open == nil {
		cc.open = map[string]*Call{}
	}
	cc.open[one.Call] = one
	return one
}

// end takes a call out, and returns it; nil if it is not open.
func (cc *Calls) end(id string) *Call {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	one := cc.open[id]
	delete(cc.open, id)
	return one
}

// Answer answers a call. It reports whether the call was open.
func (cc *Calls) Answer(id string, a Answer) bool {
	one := cc.end(id)
	if one != nil {
		one.answered <- a
	}
	return one != nil
}

// List returns the open calls, the oldest first.
func (cc *Calls) List() []*Call {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	return slices.SortedFunc(maps.Values(cc.open), func(a, b *Call) int {
		return cmp.Or(len(a.Call)-len(b.Call), strings.Compare(a.Call, b.Call)) // numbers
	})
}

// maxGroups bounds the groups of functions of a run. Each is a server.
const maxGroups = 32

// Servers returns servers whose tools ask the client, or what is wrong with their descriptions. Hostile schemas take
// processor time.
func (cc *Calls) Servers(ctx context.Context, tools map[string][]Tool) (map[string]*sdk.Server, error) {
	if len(tools) > maxGroups {
		return nil, policy.Bad("clientTools", fmt.Sprintf("of %d groups", len(tools)), "are too many: at most %d", maxGroups)
	}
	servers := map[string]*sdk.Server{}
	for name, list := range tools {
		if len(list) > toolhost.MaxTools { // before work whose time grows with the square
			return nil, policy.Bad("clientTools", fmt.Sprintf("%.100q", name), "has %d tools: at most %d", len(list),
				toolhost.MaxTools)
		}
		server := sdk.NewServer(&sdk.Implementation{Name: name, Version: "1"}, nil)
		for i, tool := range list {
			err := addTool(server, tool, cc.asks(name, tool.Name))
			if slices.ContainsFunc(list[:i], func(other Tool) bool { return other.Name == tool.Name }) {
				err = errors.New("there are two")
			}
			if err != nil {
				return nil, policy.Bad("clientTools", fmt.Sprintf("%.100q", name), "has a tool %.100q: %v", tool.Name, err)
			}
		}
		if err := toolhost.CheckOwn(ctx, name, server); err != nil {
			if wrong := new(policy.FieldError); errors.As(err, &wrong) {
				wrong.Field = "clientTools"
			}
			return nil, err
		}
		servers[name] = server
	}
	return servers, nil
}

// addTool adds a tool to a server. The library panics if a schema is not one of an object.
func addTool(server *sdk.Server, tool Tool, do sdk.ToolHandler) (err error) {
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
func (cc *Calls) asks(server, tool string) sdk.ToolHandler {
	return func(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		one := cc.begin(server, tool, req.Params.Arguments)
		defer cc.end(one.Call)
		cc.Began(one)
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
