package toolhost

import (
	"errors"
	"fmt"
	"net/url"
	"regexp/syntax"
	"strconv"
	"strings"
)

// Limits of the check of arguments. The library that checks has none. There a schema that refers to itself overflows
// the stack, which ends the process. Another small schema can take years.
const (
	maxEffort   = 50_000_000 // steps of one check: subschemas, times the bytes that each may look at
	perVisit    = 50         // steps of a subschema itself
	maxRefer    = 300        // subschemas in one another, through references too
	maxPattern  = 2000       // bytes of a regular expression
	maxPatterns = 100_000    // instructions of all regular expressions of a list
)

// folded returns a schema's keyword as the library reads it: in any case.
func folded(key string) string { return strings.ToLower(strings.ToUpper(key)) }

// plainSchema returns an error for what effort can't follow, or for regular expressions that need more than left.
func plainSchema(schema any, left *int) error {
	switch s := schema.(type) {
	case []any:
		for _, one := range s {
			if err := plainSchema(one, left); err != nil {
				return err
			}
		}
	case map[string]any:
		for key, value := range s {
			word := folded(key)
			text, isText := value.(string)
			switch {
			case strings.ContainsAny(key, "\u017f\u212a"): // other cases of s and k, which the library may read as these
				return fmt.Errorf("its schema has the keyword %.100q", key)
			case isText && (word == "$id" || word == "$dynamicref" ||
				word == "$ref" && text != "#" && !strings.HasPrefix(text, "#/")):
				return fmt.Errorf("its schema has %.100q: only references within it, #/…, are followed", key)
			case isText && word == "pattern":
				if err := countPattern(text, left); err != nil {
					return err
				}
			case word == "patternproperties":
				patterns, _ := value.(map[string]any)
				for pattern := range patterns {
					if err := countPattern(pattern, left); err != nil {
						return err
					}
				}
			}
			if err := plainSchema(value, left); err != nil {
				return err
			}
		}
	}
	return nil
}

func countPattern(pattern string, left *int) error {
	if *left -= instructions(pattern); *left < 0 {
		return errors.New("the list's regular expressions are too large")
	}
	return nil
}

// instructions returns the size of a compiled regular expression. One that is too long has more than maxPatterns.
func instructions(pattern string) int {
	if len(pattern) > maxPattern {
		return maxPatterns + 1
	}
	if expr, err := syntax.Parse(pattern, syntax.Perl); err == nil {
		if prog, err := syntax.Compile(expr.Simplify()); err == nil {
			return len(prog.Inst)
		}
	}
	return 1 // the library refuses it
}

// effort counts what the check of a value against a schema costs at most.
type effort struct {
	root     any
	left     int
	patterns map[string]int // their instructions
}

// bounded reports whether the check of arguments against a tool's schema ends soon.
func (t *Tool) bounded(arguments map[string]any) bool {
	e := &effort{root: t.Input, left: maxEffort, patterns: map[string]int{}}
	e.visit(t.Input, arguments, maxRefer)
	return e.left >= 0
}

// visit counts a subschema, and those that the library may follow from there. It returns the bytes of the longest
// error, which each subschema above copies.
func (e *effort) visit(schema, value any, depth int) (text int) {
	if e.left < 0 {
		return 0
	}
	size := sizeOf(value)
	if e.left -= perVisit + size; depth == 0 {
		e.left = -1
	}
	text = size
	s, _ := schema.(map[string]any)
	for key, sub := range s {
		if e.left < 0 {
			return 0
		}
		switch word := folded(key); word {
		case "$ref":
			ref, _ := sub.(string)
			text = max(text, e.visit(e.find(ref), value, depth-1))
		case "allof", "anyof", "oneof", "dependentschemas", "dependencies":
			all, longest := e.several(sub, value, depth-1)
			if text = max(text, longest); word == "anyof" {
				text = max(text, all) // its error has those of all
			}
		case "not", "if", "then", "else":
			text = max(text, e.visit(sub, value, depth-1))
		case "pattern":
			if _, is := value.(string); is {
				expr, _ := sub.(string)
				e.left -= e.pattern(expr) * size / 2
			}
		case "enum", "required", "dependentrequired":
			e.left -= sizeOf(sub)
		default:
			text = max(text, e.children(word, sub, value, depth-1))
		}
	}
	e.left -= text
	return text
}

// several visits the schemas of a list or a map.
func (e *effort) several(sub, value any, depth int) (all, longest int) {
	e.left -= sizeOf(sub)
	one := func(schema any) {
		text := e.visit(schema, value, depth)
		all, longest = all+text, max(longest, text)
	}
	switch s := sub.(type) {
	case []any:
		for _, schema := range s {
			one(schema)
		}
	case map[string]any:
		for _, schema := range s {
			one(schema)
		}
	}
	return all, longest
}

// children counts a keyword about members or items of a value. It returns the longest error.
func (e *effort) children(word string, sub, value any, depth int) (text int) {
	object, _ := value.(map[string]any)
	list, _ := value.([]any)
	group, _ := sub.(map[string]any)
	visit := func(schema, value any) { text = max(text, e.visit(schema, value, depth)) }
	switch word {
	case "properties":
		e.left -= len(group)
		for name, schema := range group {
			if member, ok := object[name]; ok {
				visit(schema, member)
			}
		}
	case "patternproperties":
		for pattern, schema := range group {
			for name, member := range object {
				e.left -= e.pattern(pattern) * (1 + len(name)) / 2
				visit(schema, member)
			}
		}
	case "additionalproperties", "unevaluatedproperties":
		for _, member := range object {
			visit(sub, member)
		}
	case "propertynames":
		for name := range object {
			visit(sub, name)
		}
	case "items", "prefixitems", "additionalitems", "unevaluateditems", "contains":
		schemas, several := sub.([]any)
		for i, item := range list {
			if several && i < len(schemas) {
				visit(schemas[i], item)
			} else if !several {
				visit(sub, item)
			}
		}
	}
	return text
}

func (e *effort) pattern(text string) int {
	n, known := e.patterns[text]
	if !known {
		n = instructions(text)
		e.patterns[text] = n
	}
	return n
}

var unescaped = strings.NewReplacer("~1", "/", "~0", "~") // in a JSON pointer

// find returns what a reference names. Nothing is left for one that can't be followed.
func (e *effort) find(ref string) any {
	path, err := url.PathUnescape(strings.TrimPrefix(ref, "#"))
	parts := strings.Split(path, "/")
	at := e.root
	for _, part := range parts[1:] {
		part = unescaped.Replace(part)
		switch s := at.(type) {
		case map[string]any:
			at = s[part]
		case []any:
			i, err := strconv.Atoi(part)
			if at = nil; err == nil && i >= 0 && i < len(s) {
				at = s[i]
			}
		default:
			at = nil
		}
	}
	if at == nil || err != nil || parts[0] != "" {
		e.left = -1
	}
	return at
}

// sizeOf returns about the bytes of a value.
func sizeOf(value any) int {
	n := 8
	switch v := value.(type) {
	case string:
		n += len(v)
	case []any:
		for _, one := range v {
			n += sizeOf(one)
		}
	case map[string]any:
		for name, one := range v {
			n += len(name) + sizeOf(one)
		}
	}
	return n
}
