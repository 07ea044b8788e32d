package mcp

import (
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

func float[N int | float64](n N) *float64 { f := float64(n); return &f }

func anys(list []string) []any {
	out := []any{} // not nil, which would allow any
	for _, s := range list {
		out = append(out, s)
	}
	return out
}

// inputSchema returns a type's schema, with the facts that its tags can't express.
func inputSchema[T any](more func(map[string]*jsonschema.Schema)) *jsonschema.Schema {
	schema, err := jsonschema.For[T](
		&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{reflect.TypeFor[fileArg](): fileSchema()}})
	if err != nil {
		panic(err) // only for our own types
	}
	for _, p := range schema.Properties { // an absent list is not null
		if len(p.Types) == 2 {
			p.Type, p.Types = p.Types[1], nil
		}
	}
	if more != nil {
		more(schema.Properties)
	}
	return schema
}

// outputSchema returns a type's schema with descriptions of its fields.
func outputSchema[T any](describe map[string]string) *jsonschema.Schema {
	text := &jsonschema.Schema{Type: "string"} // the library treats types that marshal to text as objects
	schema, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[policy.NetRule](): text, reflect.TypeFor[policy.TCPRule](): text,
		reflect.TypeFor[policy.SecretRule](): text, reflect.TypeFor[run.Hint](): {Type: "object"}}})
	if err != nil {
		panic(err)
	}
	schema.AdditionalProperties = nil // later versions may add fields
	for name, text := range describe {
		schema.Properties[name].Description = text
	}
	return schema
}

// fileSchema returns the schema of a fileArg.
func fileSchema() *jsonschema.Schema {
	text := func(description string) *jsonschema.Schema {
		return &jsonschema.Schema{Type: "string", Description: description}
	}
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		{Type: "object",
			Properties: map[string]*jsonschema.Schema{"name": text(
				"its path below the folder of the code, such as helper.py or lib/helper.js"), "content": text("its text")},
			Required: []string{"name", "content"}, AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}}},
		text("PATH, or PATH:/GUESTPATH"),
	}}
}
