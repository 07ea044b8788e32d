package mcp

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// This file finds the size of values as JSON without encoding them, and the contents of a JSON text without
// decoding it.

// Limits of a request's JSON.
const (
	maxTokens    = 200_000 // names, texts, lists, objects and their members: a value of 1 MiB of numbers has that many
	maxJSONDepth = 1000    // the SDK's limit
	maxIDBytes   = 256     // of a request's id and of a progress token, which are repeated in each notification
)

// tokenCounter counts the tokens of a JSON text as it arrives, without decoding it. It does not check whether the
// text is JSON.
type tokenCounter struct {
	tokens, depth   int
	inText, escaped bool
}

// errTooMuch means that a JSON text exceeds a limit.
var errTooMuch = fmt.Errorf("the body has more than %d names and values, or %d levels", maxTokens, maxJSONDepth)

// count counts the next piece.
func (t *tokenCounter) count(text []byte) error {
	for _, c := range text {
		if t.inText {
			switch {
			case t.escaped:
				t.escaped = false
			case c == '\\':
				t.escaped = true
			case c == '"':
				t.inText = false
			}
			continue
		}
		switch c {
		case '"':
			t.inText = true
			t.tokens++
		case '{', '[':
			t.depth++
			t.tokens++
		case '}', ']':
			t.depth--
		case ',':
			t.tokens++
		}
		if t.depth > maxJSONDepth || t.tokens > maxTokens {
			return errTooMuch
		}
	}
	return nil
}

// members calls each with an object's names and values; text is valid JSON. Only the names are decoded.
func members(text []byte, each func(name string, value []byte)) {
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '{' {
		return
	}
	for i = skipSpace(text, i+1); i < len(text) && text[i] == '"'; i = skipSpace(text, i+1) {
		end := skipValue(text, i)
		var name string
		_ = json.Unmarshal(text[i:end], &name)
		from := skipSpace(text, skipSpace(text, end)+1) // after the colon
		end = skipValue(text, from)
		each(name, text[from:end])
		if i = skipSpace(text, end); i >= len(text) || text[i] != ',' {
			return
		}
	}
}

// elements calls each with a list's elements; text is valid JSON.
func elements(text []byte, each func(value []byte)) {
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '[' {
		return
	}
	for i = skipSpace(text, i+1); i < len(text) && text[i] != ']'; i = skipSpace(text, i+1) {
		end := skipValue(text, i)
		each(text[i:end])
		if i = skipSpace(text, end); i >= len(text) || text[i] != ',' {
			return
		}
	}
}

func skipSpace(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the end of the value that begins at i.
func skipValue(text []byte, i int) int {
	depth := 0
	for ; i < len(text); i++ {
		switch text[i] {
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			depth++
			continue
		case '}', ']':
			if depth == 0 { // the end of the enclosing value
				return i
			}
			depth--
		case ',', ':', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
			continue
		default:
			continue
		}
		if depth == 0 {
			return min(i+1, len(text))
		}
	}
	return len(text)
}

// jsonSize returns about how many bytes a value needs as JSON, and never less.
func jsonSize(v any) int64 { return valueSize(reflect.ValueOf(v), 0) }

var (
	timeType = reflect.TypeFor[time.Time]()
	rawType  = reflect.TypeFor[json.RawMessage]()
)

// scalarSize bounds the size of a number, a time or a part of the syntax.
const scalarSize = 40

func valueSize(v reflect.Value, depth int) (n int64) {
	if !v.IsValid() || depth > maxJSONDepth {
		return scalarSize
	}
	switch v.Kind() {
	case reflect.String:
		return textSize(v.String())
	case reflect.Pointer, reflect.Interface:
		return valueSize(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		if v.Type() == rawType {
			return int64(v.Len())
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return int64(v.Len())/3*4 + scalarSize
		}
		for i := range v.Len() {
			n += valueSize(v.Index(i), depth+1) + 1
		}
		return n + 2
	case reflect.Map:
		for m := v.MapRange(); m.Next(); {
			n += valueSize(m.Key(), depth+1) + valueSize(m.Value(), depth+1) + 2
		}
		return n + 2
	case reflect.Struct:
		if v.Type() == timeType {
			return scalarSize
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if v.Field(i).IsZero() && strings.Contains(string(field.Tag), ",omit") {
				continue
			}
			n += int64(len(field.Name)) + 4 + valueSize(v.Field(i), depth+1)
		}
		return n + 2
	}
	return scalarSize
}

// textSize returns how many bytes a text needs in JSON.
func textSize(s string) (n int64) {
	n = int64(len(s)) + 2
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			n++
		case c < ' ' || c == '<' || c == '>' || c == '&':
			n += 5
		case c >= utf8.RuneSelf:
			n += 3 // line separators need six bytes for their three
			if r, size := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
				n += 2 // an invalid byte becomes the six of \ufffd
			} else {
				i += size - 1
			}
		}
	}
	return n
}

// callSize returns how many bytes a tool's result needs: if a tool returns no text, the SDK repeats the
// structured result as text.
func callSize(res *sdk.CallToolResult, out any) int64 {
	structured := jsonSize(out)
	if res == nil || res.Content == nil {
		return 3*structured + jsonSize(res)
	}
	return structured + jsonSize(res)
}
