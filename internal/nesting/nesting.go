// Package nesting checks foreign JSON before unitask decodes it, or writes it again indented.
package nesting

import "fmt"

// Check returns an error if a JSON text has too deeply nested brackets, or too many values. An indenter writes spaces
// for each value, as many as there are brackets around it: it can turn a few MiB into many GiB.
func Check(text []byte, brackets, values int) error {
	depth, count, inString := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == ',':
			count++
		case c == '{' || c == '[':
			depth++
			count++
		case c == '}' || c == ']':
			depth--
		}
		if depth > brackets || count > values {
			return fmt.Errorf("has more than %d values, or more than %d brackets in one another", values, brackets)
		}
	}
	return nil
}
