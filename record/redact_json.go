package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// JSON redacts the strings of a JSON text, including names of environment variables. It returns the fields with a
// secret: "args[1]", "env.NAME".
func (r *Redactor) JSON(text []byte) (clean []byte, fields []string) {
	if r == nil {
		return text, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return []byte(`"` + Redacted + `"`), []string{""} // an unreadable text can't be shown to be clean
	}
	v = r.value(v, "", &fields)
	if fields == nil {
		return text, nil
	}
	clean, err := json.Marshal(v)
	if err != nil {
		return []byte(`"` + Redacted + `"`), []string{""}
	}
	slices.Sort(fields)
	return clean, fields
}

// value redacts the value at a path, in place if it can.
func (r *Redactor) value(v any, path string, fields *[]string) any {
	switch v := v.(type) {
	case string:
		clean := r.String(v)
		if clean != v {
			*fields = append(*fields, path)
		}
		return clean
	case []any:
		for i := range v {
			v[i] = r.value(v[i], fmt.Sprintf("%s[%d]", path, i), fields)
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, e := range v {
			name := key
			if path == "env" { // other names are ours
				if name = r.String(key); name != key {
					*fields = append(*fields, "a name in env")
				}
			}
			at := name
			if path != "" {
				at = path + "." + name
			}
			out[name] = r.value(e, at, fields)
		}
		return out
	}
	return v
}

// Marshal returns a value as redacted JSON for a record, and the fields that held secrets. A value that JSON can't
// encode is null.
func (r *Redactor) Marshal(v any) (json.RawMessage, []string) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, nil
	}
	return r.JSON(text)
}
