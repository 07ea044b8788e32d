package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/internal/edit"
)

// formerNames maps names of tools in earlier releases to the current ones. This release accepts both.
var formerNames = map[string]string{"run_command": "session_command", "wait": "wait_command", "files": "session_files",
	"session": "manage_session", "doctor": "unitask_doctor"}

// maxFitted bounds the arguments that fitArguments reads, in bytes. Larger ones must have the right types.
const maxFitted = 256 << 10

// addTool adds a tool, and stores the schema of its arguments.
func addTool[In, Out any](s *Server, t *sdk.Tool, handler sdk.ToolHandlerFor[In, Out]) {
	if s.takes == nil {
		s.takes = map[string]*jsonschema.Schema{}
	}
	s.takes[t.Name], _ = t.InputSchema.(*jsonschema.Schema)
	sdk.AddTool(s.sdk, t, handler)
}

// fitArguments converts common mistakes of models in a tool's arguments. These are numbers or booleans as text, a value
// instead of a list, objects or lists as JSON text, and null for a missing value.
func (s *Server) fitArguments(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		p, ok := req.GetParams().(*sdk.CallToolParamsRaw)
		if ok && s.takes[formerNames[p.Name]] != nil {
			p.Name = formerNames[p.Name]
		}
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

// fit converts arguments to the schema's types if their meaning is clear. Otherwise it returns them unchanged.
func fit(arguments json.RawMessage, schema *jsonschema.Schema) json.RawMessage {
	var args map[string]json.RawMessage
	if json.Unmarshal(arguments, &args) != nil || len(args) > len(schema.Properties) { // some are unknown
		return arguments
	}
	changed := false
	for name, value := range args {
		p := schema.Properties[name]
		switch {
		case p == nil, p.Type == "": // of any type
		case string(value) == "null", string(value) == `""` && (p.Type != "string" || p.Enum != nil):
			delete(args, name)
			changed = true
		case p.Type != "string" || p.Enum != nil: // any text is a string already
			if fitted := fitOne(value, p, slices.Contains(wholeTexts, name)); fitted != nil {
				args[name] = fitted
				changed = true
			}
		}
	}
	if !changed {
		return arguments
	}
	var fitted bytes.Buffer
	encoder := json.NewEncoder(&fitted)
	encoder.SetEscapeHTML(false) // escaping would turn one byte into six
	if encoder.Encode(args) != nil {
		return arguments
	}
	return fitted.Bytes()
}

// maxUnwrapped bounds JSON inside a text, in bytes: decoding it uses memory that was not reserved.
const maxUnwrapped = 4 << 10

// wholeTexts are arguments whose texts may be JSON for the code: they are not decoded.
var wholeTexts = []string{"args"}

// fitOne returns a value converted to the schema's type, nil if it has that type or can't be converted. If whole is
// set, a text is not decoded.
func fitOne(value json.RawMessage, schema *jsonschema.Schema, whole bool) json.RawMessage {
	var text string
	isText := json.Unmarshal(value, &text) == nil
	inside := kindOf(text)
	switch want := schema.Type; {
	case want == "array" && inside == want && !whole:
		return json.RawMessage(text)
	case want == "array" && isText:
		return slices.Concat(json.RawMessage("["), fitElement(value, text, schema.Items), json.RawMessage("]"))
	case want == "array" && value[0] == '{' && takesObjects(schema.Items):
		return slices.Concat(json.RawMessage("["), value, json.RawMessage("]"))
	case !isText:
		return nil
	case want == "string": // one of a list of words, in any case
		lower := strings.ToLower(text)
		if lower != text && slices.Contains(schema.Enum, any(lower)) {
			return json.RawMessage(strconv.Quote(lower))
		}
	case want == inside, want == "integer" && inside == "number":
		return json.RawMessage(text)
	}
	return nil
}

// fitElement returns the only element of a list: the object inside a text if objects are wanted, else the text. Numbers
// and booleans are not converted: false must not turn into the name of a host.
func fitElement(value json.RawMessage, text string, items *jsonschema.Schema) json.RawMessage {
	if takesObjects(items) && kindOf(text) == "object" {
		return json.RawMessage(text)
	}
	return value
}

// takesObjects reports whether the elements of a list may be objects.
func takesObjects(items *jsonschema.Schema) bool { return items != nil && items.AnyOf != nil }

// kindOf returns the type of a JSON value in a schema's terms: array, object, number or boolean. It returns "" for
// texts, null, invalid JSON, and values longer than maxUnwrapped.
func kindOf(text string) string {
	if text = strings.TrimSpace(text); text == "" || len(text) > maxUnwrapped || !json.Valid([]byte(text)) {
		return ""
	}
	switch text[0] {
	case '[':
		return "array"
	case '{':
		return "object"
	case 't', 'f':
		return "boolean"
	case '"', 'n':
		return ""
	}
	return "number"
}

// explain appends the tool's arguments to an error about a call's arguments.
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
	if code := ""; schema.Properties["language"] != nil && args["language"] == nil && args["code"] != nil &&
		json.Unmarshal(args["code"], &code) == nil {
		text.Text = noLanguage(code)
	}
	for name := range args {
		if schema.Properties[name] == nil {
			text.Text = fmt.Sprintf("%s has no argument %.80q%s", call.Name, name, meant(name, schema))
			break
		}
	}
	text.Text += "\n" + call.Name + " takes: " + cmp.Or(strings.Join(argumentsOf(schema), ", "), "no arguments")
}

// argumentsOf returns the names of a tool's arguments in the schema's order.
func argumentsOf(schema *jsonschema.Schema) []string {
	return slices.DeleteFunc(slices.Clone(schema.PropertyOrder), func(name string) bool {
		return schema.Properties[name] == nil // this server lacks it
	})
}

// meant returns a question that suggests the argument with the most similar name; "" if no name is similar.
func meant(name string, schema *jsonschema.Schema) string {
	if len(name) > 64 {
		return ""
	}
	lower := strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
	best, least := "", 3
	for _, known := range argumentsOf(schema) {
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
