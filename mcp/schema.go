package mcp

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/unitask/unitask/internal/clienttools"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/record"
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

// inputSchema returns a type's schema, with descriptions of its fields and the facts that its tags can't express.
func inputSchema[T any](describe map[string]string, more func(map[string]*jsonschema.Schema)) *jsonschema.Schema {
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
	for name, text := range describe {
		schema.Properties[name].Description = text
	}
	if more != nil {
		more(schema.Properties)
	}
	return schema
}

// aboutMaxOutput describes the argument maxOutput.
var aboutMaxOutput = fmt.Sprintf("bytes of output in the result, of its beginning and its end; %d if not given",
	usualShown)

// boundMaxOutput bounds it.
func boundMaxOutput(p map[string]*jsonschema.Schema) {
	p["maxOutput"].Minimum, p["maxOutput"].Maximum = float(0), float(mostShown)
}

// outputSchema returns a type's schema with descriptions of its fields.
func outputSchema[T any](describe map[string]string) *jsonschema.Schema {
	short := &jsonschema.Schema{Type: "object"} // every client pays for the length of a schema
	schema, err := jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[ranPolicy](): short, reflect.TypeFor[run.Hint](): short,
		reflect.TypeFor[run.Approval](): short, reflect.TypeFor[record.Artifact](): short,
		reflect.TypeFor[record.Refusal](): short, reflect.TypeFor[cut](): short,
		reflect.TypeFor[run.DurationsJSON](): short, reflect.TypeFor[doctor.Check](): short,
		reflect.TypeFor[history.Summary](): short, reflect.TypeFor[SessionView](): short,
		reflect.TypeFor[clienttools.Call](): short}})
	if err != nil {
		panic(err)
	}
	schema.AdditionalProperties = nil // later versions may add fields
	for name, p := range schema.Properties {
		if len(p.Types) == 2 && !slices.Contains(schema.Required, name) { // it is left out in place of null
			p.Type, p.Types = p.Types[1], nil
		}
	}
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
