package debug

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/unitask/unitask/internal/edit"
	"github.com/unitask/unitask/vmm"
)

// Schema contains the arguments of a QEMU's commands, from its own query-qmp-schema.
type Schema struct {
	commands map[string][]Argument
}

// Argument is an argument of a command.
type Argument struct {
	Name     string
	Type     string // "str", "int", "bool", "a|b|c" of an enumeration, "[str]", "object", …
	Optional bool
}

// schemaInfo is an element of query-qmp-schema's answer (qapi/introspect.json). Types have numbers as names.
type schemaInfo struct {
	Name     string   `json:"name"`
	MetaType string   `json:"meta-type"`
	ArgType  string   `json:"arg-type"`
	JSONType string   `json:"json-type"`
	Element  string   `json:"element-type"`
	Values   []string `json:"values"`
	Members  []struct {
		Name    string          `json:"name"`
		Type    string          `json:"type"`
		Default json.RawMessage `json:"default"`
	} `json:"members"`
}

// LoadSchema asks a QEMU for its schema.
func LoadSchema(ctx context.Context, m *vmm.Monitor) (*Schema, error) {
	var list []schemaInfo
	if err := m.Do(ctx, "query-qmp-schema", nil, &list); err != nil {
		return nil, err
	}
	types := map[string]schemaInfo{}
	for _, t := range list {
		types[t.Name] = t
	}
	s := &Schema{commands: map[string][]Argument{}}
	for _, c := range list {
		if c.MetaType != "command" {
			continue
		}
		args := []Argument{}
		for _, m := range types[c.ArgType].Members {
			args = append(args, Argument{m.Name, typeName(types, m.Type, 0), m.Default != nil})
		}
		s.commands[c.Name] = args
	}
	return s, nil
}

// typeName names a type for people.
func typeName(types map[string]schemaInfo, name string, depth int) string {
	t := types[name]
	switch t.MetaType {
	case "builtin":
		return t.Name
	case "enum":
		return strings.Join(t.Values, "|")
	case "array":
		if depth > 2 {
			return "[…]"
		}
		return "[" + typeName(types, t.Element, depth+1) + "]"
	case "object", "alternate":
		return t.MetaType
	}
	return "any"
}

// Commands returns the names of all commands, sorted.
func (s *Schema) Commands() []string {
	list := make([]string, 0, len(s.commands))
	for name := range s.commands {
		list = append(list, name)
	}
	sort.Strings(list)
	return list
}

// Has reports whether there is a command of that name.
func (s *Schema) Has(command string) bool { return s.commands[command] != nil }

// Usage returns one line: the command with its arguments.
func (s *Schema) Usage(command string) string {
	line := command
	for _, a := range s.commands[command] {
		arg := a.Name + "=" + a.Type
		if a.Optional {
			arg = "[" + arg + "]"
		}
		line += " " + arg
	}
	return line
}

// Arguments parses key=value words for a command, according to the types of its arguments. A dotted key is a
// member of an object. A value that begins with { or [ is JSON.
func (s *Schema) Arguments(command string, words []string) (map[string]any, error) {
	args := map[string]any{}
	for _, w := range words {
		key, text, ok := strings.Cut(w, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("%q is not KEY=VALUE; the command is: %s", w, s.Usage(command))
		}
		path := strings.Split(key, ".")
		i := slices.IndexFunc(s.commands[command], func(a Argument) bool { return a.Name == path[0] })
		if i < 0 {
			return nil, fmt.Errorf("%s has no argument %q; the command is: %s", command, path[0], s.Usage(command))
		}
		kind := s.commands[command][i].Type
		if len(path) > 1 {
			kind = "any"
		}
		value, err := argument(kind, text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; the command is: %s", key, err, s.Usage(command))
		}
		into := args
		for _, part := range path[:len(path)-1] {
			below, ok := into[part].(map[string]any)
			if !ok {
				below = map[string]any{}
				into[part] = below
			}
			into = below
		}
		into[path[len(path)-1]] = value
	}
	for _, a := range s.commands[command] {
		if _, ok := args[a.Name]; !ok && !a.Optional {
			return nil, fmt.Errorf("%s needs %s; the command is: %s", command, a.Name, s.Usage(command))
		}
	}
	return args, nil
}

// argument parses a value of a type.
func argument(kind, text string) (any, error) {
	var value any
	asJSON := json.Unmarshal([]byte(text), &value) == nil
	switch {
	case kind == "str":
		return text, nil
	case kind == "int" || strings.HasPrefix(kind, "int") || strings.HasPrefix(kind, "uint"):
		n, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number", text)
		}
		return n, nil
	case kind == "bool":
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("%q is not true or false", text)
		}
		return b, nil
	case strings.Contains(kind, "|") && !strings.HasPrefix(kind, "["):
		if !slices.Contains(strings.Split(kind, "|"), text) {
			return nil, fmt.Errorf("%q is not one of %s", text, kind)
		}
		return text, nil
	case asJSON:
		return value, nil
	case strings.HasPrefix(text, "{") || strings.HasPrefix(text, "["):
		return nil, fmt.Errorf("%q is not JSON", text)
	}
	return text, nil
}

// Complete returns completions for the last word of a line: a command, one of the console's verbs, or an argument
// of the line's command.
func (s *Schema) Complete(line string) (candidates []string) {
	words := strings.Fields(line)
	if len(words) == 0 || len(words) == 1 && !strings.HasSuffix(line, " ") {
		begin := strings.ReplaceAll(line, "_", "-")
		for _, name := range slices.Concat(verbNames(), s.Commands()) {
			if strings.HasPrefix(name, begin) {
				candidates = append(candidates, name)
			}
		}
		return candidates
	}
	begin := ""
	if !strings.HasSuffix(line, " ") {
		begin = words[len(words)-1]
		words = words[:len(words)-1]
	}
	for _, a := range s.commands[strings.ReplaceAll(words[0], "_", "-")] {
		given := slices.ContainsFunc(words[1:], func(w string) bool { return strings.HasPrefix(w, a.Name+"=") })
		key, text, valued := strings.Cut(begin, "=")
		switch {
		case valued && key == a.Name && strings.Contains(a.Type, "|"):
			for _, v := range strings.Split(a.Type, "|") {
				if strings.HasPrefix(v, text) {
					candidates = append(candidates, key+"="+v)
				}
			}
		case !valued && !given && strings.HasPrefix(a.Name, begin):
			candidates = append(candidates, a.Name+"=")
		}
	}
	return candidates
}

// Nearest returns the names most similar to an unknown one, three at most.
func (s *Schema) Nearest(name string) []string {
	type near struct {
		name     string
		distance int
	}
	var list []near
	for _, other := range slices.Concat(verbNames(), s.Commands()) {
		d := edit.Distance(name, other)
		if strings.HasPrefix(other, name) || strings.Contains(other, name) && len(name) > 3 {
			d = 1
		}
		if d <= 2+len(name)/4 {
			list = append(list, near{other, d})
		}
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].distance < list[j].distance })
	var names []string
	for _, n := range list[:min(3, len(list))] {
		names = append(names, n.name)
	}
	return names
}
