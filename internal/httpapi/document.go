package httpapi

import (
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"go.yaml.in/yaml/v3"
)

//go:embed openapi
var parts embed.FS

// document is the description of the API. Each file of the folder openapi has a part of the paths and components.
type document struct {
	version    string
	text       []byte // JSON
	operations map[string]*described
}

// described is an operation of the document.
type described struct {
	ID          string      `json:"operationId"`
	Parameters  []parameter `json:"parameters"`
	RequestBody struct {
		Required bool `json:"required"`
		Content  map[string]struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"content"`
	} `json:"requestBody"`
	// Proxy tells that the path's last parameter is the rest of the path, and that the query is not this API's.
	Proxy bool `json:"x-proxy"`

	method, path string
	body         *jsonschema.Resolved // of a body in JSON, or nil
}

// parameter is a query's or a path's member, or a header.
type parameter struct {
	Name     string          `json:"name"`
	In       string          `json:"in"`
	Required bool            `json:"required"`
	Schema   json.RawMessage `json:"schema"`

	kind   string // the schema's type
	schema *jsonschema.Resolved
}

// methods are those that a path of the document may have.
var methods = []string{"get", "put", "post", "delete", "patch"}

// jsonType is the type of most bodies.
const jsonType = "application/json"

// readDocument returns the document of a version of the server. It panics if the document is invalid, which is a
// mistake of this package.
func readDocument(version string) *document {
	d, err := parseDocument(version)
	if err != nil {
		panic("httpapi: " + err.Error())
	}
	return d
}

func parseDocument(version string) (*document, error) {
	whole := map[string]any{}
	files, err := parts.ReadDir("openapi")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := parts.ReadFile(path.Join("openapi", file.Name()))
		if err != nil {
			return nil, err
		}
		var part map[string]any
		if err := yaml.Unmarshal(text, &part); err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name(), err)
		}
		merge(whole, part)
	}
	info, _ := whole["info"].(map[string]any)
	info["version"] = version
	d := &document{version: version, operations: map[string]*described{}}
	if d.text, err = json.Marshal(whole); err != nil {
		return nil, err
	}
	return d, d.describe()
}

// merge adds the members of a map to another one, and of the maps and lists in it.
func merge(to, from map[string]any) {
	for name, value := range from {
		inner, _ := value.(map[string]any)
		list, isList := value.([]any)
		into, _ := to[name].(map[string]any)
		before, _ := to[name].([]any)
		switch {
		case into != nil && inner != nil:
			merge(into, inner)
		case isList:
			to[name] = append(before, list...)
		default:
			to[name] = value
		}
	}
}

// describe reads the operations of the document's text.
func (d *document) describe() error {
	var doc struct {
		Paths      map[string]map[string]json.RawMessage `json:"paths"`
		Components struct {
			Schemas    map[string]json.RawMessage `json:"schemas"`
			Parameters map[string]json.RawMessage `json:"parameters"`
		} `json:"components"`
	}
	if err := json.Unmarshal(d.text, &doc); err != nil {
		return err
	}
	for at, item := range doc.Paths {
		var common described
		shared, err := json.Marshal(map[string]json.RawMessage{"parameters": item["parameters"]})
		if err != nil {
			return err
		}
		if err := json.Unmarshal(resolveParameters(shared, doc.Components.Parameters), &common); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		for method, text := range item {
			if !slices.Contains(methods, method) {
				continue
			}
			op := &described{method: strings.ToUpper(method), path: at}
			if err := json.Unmarshal(resolveParameters(text, doc.Components.Parameters), op); err != nil {
				return fmt.Errorf("%s %s: %w", method, at, err)
			}
			op.Parameters = append(slices.Clone(common.Parameters), op.Parameters...)
			if d.operations[op.ID] != nil || op.ID == "" {
				return fmt.Errorf("%s %s: its operationId %q is missing or taken", method, at, op.ID)
			}
			if err := op.compile(doc.Components.Schemas); err != nil {
				return fmt.Errorf("%s: %w", op.ID, err)
			}
			d.operations[op.ID] = op
		}
	}
	return nil
}

// resolveParameters puts the parameters of the components in the place of references to them.
func resolveParameters(operation json.RawMessage, known map[string]json.RawMessage) json.RawMessage {
	text := string(operation)
	for name, schema := range known {
		text = strings.ReplaceAll(text, `{"$ref":"#/components/parameters/`+name+`"}`, string(schema))
	}
	return json.RawMessage(text)
}

// compile prepares the operation's schemas.
func (op *described) compile(schemas map[string]json.RawMessage) (err error) {
	if content, ok := op.RequestBody.Content[jsonType]; ok {
		if op.body, err = compile(content.Schema, schemas); err != nil {
			return err
		}
	}
	for i := range op.Parameters {
		p := &op.Parameters[i]
		var has struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(p.Schema, &has); err != nil {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		p.kind = has.Type
		if p.schema, err = compile(p.Schema, schemas); err != nil {
			return fmt.Errorf("parameter %s: %w", p.Name, err)
		}
	}
	return nil
}

// compile returns a schema that may refer to the components' schemas.
func compile(text json.RawMessage, schemas map[string]json.RawMessage) (*jsonschema.Resolved, error) {
	all := map[string]any{"$defs": schemas, "allOf": []json.RawMessage{text}}
	whole, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	var schema jsonschema.Schema
	local := strings.ReplaceAll(string(whole), "#/components/schemas/", "#/$defs/")
	if err := json.Unmarshal([]byte(local), &schema); err != nil {
		return nil, err
	}
	return schema.Resolve(nil)
}

// pattern returns the path for a ServeMux.
func (op *described) pattern() string {
	if before, ok := strings.CutSuffix(op.path, "/{path}"); ok {
		return before + "/{path...}"
	}
	return op.path
}

// routes returns the handler of the document's operations. Each has a function, and each function an operation.
func (d *document) routes(s *Server, functions map[string]operation) *http.ServeMux {
	mux := http.NewServeMux()
	for id := range functions {
		if d.operations[id] == nil {
			panic("httpapi: the document has no operation " + id)
		}
	}
	allowed := map[string][]string{}
	for id, op := range d.operations {
		if functions[id] == nil {
			panic("httpapi: operation " + id + " has no function")
		}
		at := op.pattern()
		mux.Handle(op.method+" "+at, s.handle(op, functions[id]))
		allowed[at] = append(allowed[at], op.method)
	}
	for at, methods := range allowed {
		slices.Sort(methods)
		mux.HandleFunc(at, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			writeProblem(w, &Problem{Status: http.StatusMethodNotAllowed, Code: "method",
				Detail: r.Method + " does not go with " + at, Remedy: "use " + strings.Join(methods, " or ")})
		})
	}
	mux.HandleFunc("GET "+documentPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write(d.text)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, noPath(r))
	})
	return mux
}

func noPath(r *http.Request) *Problem {
	return &Problem{Status: http.StatusNotFound, Code: "path", Detail: fmt.Sprintf("there is no %.80q", r.URL.Path),
		Remedy: "GET " + documentPath + " lists what there is"}
}

// parse returns a parameter's value in JSON from its text.
func (p *parameter) parse(text string) (any, error) {
	var value any = text
	switch p.kind {
	case "integer", "number":
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
			return nil, fmt.Errorf("%.40q is not a number", text)
		}
		value = n
	case "boolean":
		is, err := strconv.ParseBool(text)
		if err != nil || text != "true" && text != "false" {
			return nil, fmt.Errorf("%.40q is neither true nor false", text)
		}
		value = is
	}
	if err := p.schema.Validate(value); err != nil {
		return nil, fmt.Errorf("%.40q: %s", text, plain(err))
	}
	return value, nil
}

// names returns the names of the parameters of one kind.
func (op *described) names(in string) []string {
	names := map[string]bool{}
	for _, p := range op.Parameters {
		if p.In == in {
			names[p.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
