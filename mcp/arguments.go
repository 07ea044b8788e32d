package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/edit"
)

// maxFitted bounds the arguments that fitArguments reads, in bytes. Larger ones must have the right types.
const maxFitted = 256 << 10

// addTool adds a tool, and remembers which arguments it takes.
func addTool[In, Out any](s *Server, t *sdk.Tool, handler sdk.ToolHandlerFor[In, Out]) {
	if s.takes == nil {
		s.takes = map[string]*jsonschema.Schema{}
	}
	s.takes[t.Name], _ = t.InputSchema.(*jsonschema.Schema)
	sdk.AddTool(s.sdk, t, handler)
}

// fitArguments accepts what models send in place of the types of a tool's arguments: a number or a boolean as text,
// one value for a list, an object or a list as JSON text, and null for what is not given.
func (s *Server) fitArguments(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		p, ok := req.GetParams().(*sdk.CallToolParamsRaw)
		if !ok || s.takes[p.Name] == nil {
			return next(ctx, method, req)
		}
		if len(p.Arguments) <= maxFitted {
			p.Arguments = fit(p.Arguments, s.takes[p.Name])
		}
		res, err := next(ctx, method, req)
		if called, ok := res.(*sdk.CallToolResult); ok && err == nil {
			explain(called, p, s.takes[p.Name])
		}
		return res, err
	}
}

// fit returns arguments of the types that a schema has, where it is clear what is meant; the same otherwise.
func fit(arguments json.RawMessage, schema *jsonschema.Schema) json.RawMessage {
	var args map[string]json.RawMessage
	if json.Unmarshal(arguments, &args) != nil {
		return arguments
	}
	changed := false
	for name, value := range args {
		p := schema.Properties[name]
		if p == nil {
			continue
		}
		if bytes.Equal(value, []byte("null")) {
			delete(args, name)
			changed = true
		} else if fitted := fitOne(value, p); fitted != nil {
			args[name] = fitted
			changed = true
		}
	}
	if !changed {
		return arguments
	}
	var fitted bytes.Buffer
	encoder := json.NewEncoder(&fitted)
	encoder.SetEscapeHTML(false) // which would make six bytes of one
	if encoder.Encode(args) != nil {
		return arguments
	}
	return fitted.Bytes()
}

// fitOne returns a value as the type that is wanted, nil if it is that already or nothing fits. A word of a list of
// words may be in any case.
func fitOne(value json.RawMessage, schema *jsonschema.Schema) json.RawMessage {
	var text string
	want := schema.Type
	isText := json.Unmarshal(value, &text) == nil
	inner := json.RawMessage(strings.TrimSpace(text))
	if len(inner) > maxUnwrapped {
		inner = nil
	}
	switch first := append(inner, 0)[0]; {
	case isText && want == "string" && len(text) < 80 && slices.Contains(schema.Enum, any(strings.ToLower(text))):
		lower, _ := json.Marshal(strings.ToLower(text))
		return lower
	case want == "array" && isText && first == '[' && json.Valid(inner):
		return inner
	case want == "array" && value[0] != '[':
		return slices.Concat(json.RawMessage("["), fitElement(value, inner, schema.Items), json.RawMessage("]"))
	case !isText || !json.Valid(inner):
	case want == "object" && first == '{', want == "boolean" && (first == 't' || first == 'f'),
		(want == "number" || want == "integer") && (first == '-' || first >= '0' && first <= '9'):
		return inner
	}
	return nil
}

// maxUnwrapped bounds JSON inside a text, in bytes: it costs more memory than the text that was paid for.
const maxUnwrapped = 4 << 10

// fitElement returns the only element of a list: a number as text where texts are wanted, and what a text has as JSON
// where an element may be an object.
func fitElement(value, inner json.RawMessage, items *jsonschema.Schema) json.RawMessage {
	switch {
	case items == nil:
	case items.Type == "string" && value[0] != '"' && value[0] != '{' && value[0] != 'n':
		return slices.Concat(json.RawMessage(`"`), value, json.RawMessage(`"`))
	case len(items.AnyOf) > 0 && len(inner) > 0 && inner[0] == '{' && json.Valid(inner):
		return inner
	}
	return value
}

// explain adds to an error about a call's arguments which ones the tool has.
func explain(res *sdk.CallToolResult, call *sdk.CallToolParamsRaw, schema *jsonschema.Schema) {
	if !res.IsError || len(res.Content) != 1 {
		return
	}
	text, ok := res.Content[0].(*sdk.TextContent)
	if !ok || !strings.HasPrefix(text.Text, `validating "arguments"`) {
		return
	}
	var args map[string]json.RawMessage
	if len(call.Arguments) <= maxFitted {
		_ = json.Unmarshal(call.Arguments, &args)
	}
	for name := range args {
		if schema.Properties[name] == nil {
			text.Text = fmt.Sprintf("%s has no argument %.80q%s", call.Name, name, meant(name, schema))
			break
		}
	}
	known := slices.DeleteFunc(slices.Clone(schema.PropertyOrder), func(name string) bool {
		return schema.Properties[name] == nil
	})
	text.Text += "\n" + call.Name + " takes: " + cmp.Or(strings.Join(known, ", "), "no arguments")
}

// meant returns a question about the argument that a wrong name is most like, "" if it is like none.
func meant(name string, schema *jsonschema.Schema) string {
	if len(name) > 64 {
		return ""
	}
	lower := strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
	best, least := "", 3
	for _, known := range schema.PropertyOrder {
		if schema.Properties[known] == nil {
			continue
		}
		k := strings.ToLower(known)
		d := edit.Distance(lower, k)
		if len(lower) > 2 && (strings.HasPrefix(k, lower) || strings.HasPrefix(lower, k)) {
			d = 1
		}
		if d < least {
			best, least = known, d
		}
	}
	if best == "" {
		return ""
	}
	return ": did you mean " + best + "?"
}
