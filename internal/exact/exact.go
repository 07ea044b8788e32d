// Package exact reads keys of TOML and JSON exactly as written. The decoders that it uses match a key to a field in any
// case: if one file has allowNet and ALLOWNET, either may win. The package is for texts that make security decisions;
// it reads no file itself.
package exact

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// KeyError says which key of a text is invalid, and why.
type KeyError struct {
	Key    toml.Key
	Reason string
}

func (e *KeyError) Error() string { return e.Reason }

// Decode decodes a text into v, a pointer to a map or to a struct with tags on all fields. A key must be exactly a
// tag's text, and no two keys of one table may differ only in case. Otherwise the error is a *KeyError. Other errors
// are the decoder's.
func Decode(text string, v any) (toml.MetaData, error) {
	var all map[string]any
	meta, err := toml.Decode(text, &all)
	if err != nil {
		return meta, err
	}
	spelled := map[string]string{} // the folded key, and how it was first written
	for _, key := range meta.Keys() {
		for n := range key { // a.b = 1 also creates the table a
			written := strings.Join(key[:n+1], ".")
			if other, known := spelled[fold(written)]; known && other != written {
				return meta, &KeyError{key, fmt.Sprintf("keys %q and %q differ only in case: keep one", other, written)}
			}
			spelled[fold(written)] = written
		}
	}
	for _, key := range meta.Keys() {
		if near, ok := find(reflect.TypeOf(v), key); !ok {
			reason := fmt.Sprintf("unknown key %q", strings.Join(key, "."))
			if near != "" {
				reason += fmt.Sprintf(": keys are exact, write %s", near)
			}
			return meta, &KeyError{key, reason}
		}
	}
	return toml.Decode(text, v)
}

// Members checks that the members of a JSON object have exactly the names of a struct's fields. encoding/json would
// accept them in any case.
func Members(data []byte, of any) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return err
	}
	t := reflect.Indirect(reflect.ValueOf(of)).Type()
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if !slices.ContainsFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			return tag == name && tag != "" && tag != "-"
		}) {
			return fmt.Errorf("unknown key %q", name)
		}
	}
	return nil
}

// fold returns a form of the key without differences in case, by Unicode's rules.
func fold(key string) string { return strings.ToLower(strings.ToUpper(key)) }

// find reports whether a key leads to a field of a type; near is a similar key that the author may have meant.
func find(t reflect.Type, key toml.Key) (near string, ok bool) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if len(key) == 0 {
		return "", true
	}
	switch t.Kind() {
	case reflect.Interface:
		return "", true
	case reflect.Map:
		return find(t.Elem(), key[1:])
	case reflect.Struct:
		for i := range t.NumField() {
			tag := t.Field(i).Tag.Get("toml")
			switch {
			case tag == "" || tag == "-":
			case tag == key[0]:
				return find(t.Field(i).Type, key[1:])
			case strings.EqualFold(tag, key[0]):
				near = tag
			}
		}
	}
	return near, false
}
