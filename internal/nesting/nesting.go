// Package nesting looks at JSON that others have written before anything of ours writes it again, indented.
package nesting

import "fmt"

// Check says what is wrong with a JSON text: that it has too many brackets in one another, or too many values. What
// indents it writes spaces for each value, as many as there are brackets around it: of a few MiB it makes any number
// of GiB.
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
