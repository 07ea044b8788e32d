// Package tools is the guest's part of tool calls: the clients for JavaScript, Python and shell, and the types of the
// tools for each. The clients send HTTP requests to the host, at contract.ToolsIP. The package calls nothing.
package tools

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// Paths of the clients in the guest.
const (
	Dir      = "/tools"               // the types, a folder for each server
	Lib      = "/unitask/tools"       // the clients
	Node     = Lib + "/index.mjs"     // unitask:tools
	NodeHook = Lib + "/hook.mjs"      // makes unitask:tools known to a process of Node
	Python   = Lib + "/unitask_tools" // the package of Python
	Command  = Lib + "/unitask-tool"  // of the shell
	Index    = Lib + "/index.json"    // names of the servers' tools
	Env      = "UNITASK_TOOLS"        // the variable with the URL
	URL      = "http://" + contract.ToolsIP
)

// Tool is one tool of a server.
type Tool struct {
	Name, Description string
	Input, Output     any // JSON schemas; nil if there is none
}

// File is a text file of the guest.
type File struct {
	Path, Text string
	Program    bool // it may be executed
}

var (
	//go:embed client.mjs
	nodeText string
	//go:embed hook.mjs
	hookText string
	//go:embed unitask_tools.py
	pythonText string
	//go:embed aio.py
	asyncText string
	//go:embed unitask-tool.sh
	shellText string
	//go:embed command.py
	shellPython string
	//go:embed command.mjs
	shellNode string
)

// Files returns the clients, and the types of the servers' tools.
func Files(servers map[string][]Tool, names []string) ([]File, error) {
	index := map[string][]string{}
	exports := ""
	var types []File
	for _, name := range names {
		index[name] = []string{}
		exports += fmt.Sprintf("export const %s = server(%q);\n", name, name)
		for _, t := range servers[name] {
			index[name] = append(index[name], t.Name)
			at := Dir + "/" + name + "/" + t.Name
			types = append(types, File{Path: at + ".d.ts", Text: typeScript(name, t)}, File{Path: at + ".pyi",
				Text: pythonStub(t)})
		}
	}
	text, err := json.Marshal(index)
	if err != nil {
		return nil, err
	}
	list := []File{
		{Path: Node, Text: nodeText + "\nconst INDEX = new Map(Object.entries(JSON.parse(" + quoted(string(text)) + ")));\n" +
			exports},
		{Path: NodeHook, Text: hookText},
		{Path: Python + "/__init__.py", Text: pythonText},
		{Path: Python + "/aio.py", Text: asyncText},
		{Path: Index, Text: string(text)},
		{Path: Command, Text: shellText, Program: true},
		{Path: Lib + "/command.py", Text: shellPython},
		{Path: Lib + "/command.mjs", Text: shellNode},
	}
	return append(list, types...), nil
}

// quoted returns a text as a literal of JavaScript.
func quoted(text string) string {
	literal, _ := json.Marshal(text) // escapes U+2028 and U+2029, too
	return string(literal)
}

// maxTypeDepth bounds nested types.
const maxTypeDepth = 8

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// comment makes a text harmless in a comment.
func comment(text string) string {
	text = strings.Map(func(r rune) rune {
		if r != '\n' && r < ' ' || r == '\u2028' || r == '\u2029' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
	return strings.ReplaceAll(strings.ReplaceAll(text, "*/", "* /"), `"""`, `'''`)
}

func typeScript(server string, t Tool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "/**\n * %s\n */\n", strings.ReplaceAll(comment(t.Description), "\n", "\n * "))
	fmt.Fprintf(&b, "export type Arguments = %s;\n", typeOf(t.Input, 0, typesOfTS))
	result := "unknown"
	if t.Output != nil {
		result = typeOf(t.Output, 0, typesOfTS)
	}
	fmt.Fprintf(&b, "export type Result = %s;\n", result)
	fmt.Fprintf(&b, "// import { %s } from \"unitask:tools\";\n// await %s.call(%s, arguments)", server, server,
		quoted(t.Name))
	if identifier.MatchString(t.Name) {
		fmt.Fprintf(&b, " or %s.%s(arguments)", server, t.Name)
	}
	b.WriteString("\n")
	return b.String()
}

func pythonStub(t Tool) string {
	var b strings.Builder
	b.WriteString("from typing import Any, Literal, NotRequired, TypedDict\n\n")
	input, _ := t.Input.(map[string]any)
	properties, _ := input["properties"].(map[string]any)
	required := texts(input["required"])
	b.WriteString("Arguments = TypedDict(\"Arguments\", {")
	for _, name := range sorted(properties) {
		kind := typeOf(properties[name], 1, typesOfPython)
		if !required[name] {
			kind = "NotRequired[" + kind + "]"
		}
		fmt.Fprintf(&b, "\n    %s: %s,", quoted(name), kind)
	}
	b.WriteString("\n})\n")
	result := "Any"
	if t.Output != nil {
		result = typeOf(t.Output, 0, typesOfPython)
	}
	name := strings.NewReplacer("-", "_", ".", "_").Replace(t.Name)
	if !identifier.MatchString(name) {
		name = "tool_" + name
	}
	fmt.Fprintf(&b, "\ndef %s(arguments: Arguments) -> %s:\n    \"\"\"%s\"\"\"\n", name, result,
		strings.ReplaceAll(comment(strings.ReplaceAll(t.Description, `\`, `\\`)), "\n", "\n    "))
	return b.String()
}

// language writes the types of a language.
type language struct {
	any, null, text, number, integer, boolean, object, or string
	list, literal                                         func(string) string
	members                                               func(names, types []string, required []bool) string
}

var typesOfTS = language{any: "unknown", null: "null", text: "string", number: "number", integer: "number",
	boolean: "boolean", object: "Record<string, unknown>", or: " | ",
	list: func(of string) string { return "Array<" + of + ">" }, literal: func(text string) string { return text },
	members: func(names, types []string, required []bool) string {
		var text strings.Builder
		text.WriteString("{")
		for i := range names {
			optional := "?"
			if required[i] {
				optional = ""
			}
			text.WriteString(" " + quoted(names[i]) + optional + ": " + types[i] + ";")
		}
		return text.String() + " }"
	}}

var typesOfPython = language{any: "Any", null: "None", text: "str", number: "float", integer: "int", boolean: "bool",
	object: "dict[str, Any]", or: " | ",
	list:    func(of string) string { return "list[" + of + "]" },
	literal: func(text string) string { return "Literal[" + text + "]" },
	members: func([]string, []string, []bool) string { return "dict[str, Any]" }}

// typeOf returns a schema's type, as far as it is simple.
func typeOf(schema any, depth int, l language) string {
	s, ok := schema.(map[string]any)
	if !ok || depth > maxTypeDepth {
		return l.any
	}
	if values, ok := s["enum"].([]any); ok && len(values) > 0 && len(values) <= 32 {
		var list []string
		for _, v := range values {
			text, is := v.(string)
			if !is {
				return l.any
			}
			list = append(list, l.literal(quoted(text)))
		}
		return strings.Join(list, l.or)
	}
	switch s["type"] {
	case "string":
		return l.text
	case "number":
		return l.number
	case "integer":
		return l.integer
	case "boolean":
		return l.boolean
	case "null":
		return l.null
	case "array":
		return l.list(typeOf(s["items"], depth+1, l))
	case "object":
		properties, _ := s["properties"].(map[string]any)
		if len(properties) == 0 {
			return l.object
		}
		required := texts(s["required"])
		names := sorted(properties)
		var types []string
		var must []bool
		for _, name := range names {
			types = append(types, typeOf(properties[name], depth+1, l))
			must = append(must, required[name])
		}
		return l.members(names, types, must)
	}
	return l.any
}

// texts returns the texts of a list.
func texts(list any) map[string]bool {
	all, _ := list.([]any)
	is := map[string]bool{}
	for _, one := range all {
		if text, ok := one.(string); ok {
			is[text] = true
		}
	}
	return is
}

func sorted(m map[string]any) []string {
	names := []string{}
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
