// Package exact reads keys of TOML and JSON exactly as written. The decoders below it match a key in any case to a
// field: if one file has allowNet and ALLOWNET, either may win. The package is for texts that decide something; it
// reads no file itself.
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

// KeyError says which key of a text can't stand as it does.
type KeyError struct {
	Key    toml.Key
	Reason string
}

func (e *KeyError) Error() string { return e.Reason }

// Decode decodes a text into v, a pointer to a struct whose fields are all tagged, or
// to a map. A key that is not a tag's exact text is an error, and so are two keys of
// one table that differ only in case: a *KeyError. Other errors are the decoder's.
func Decode(text string, v any) (toml.MetaData, error) {
	var all map[string]any
	meta, err := toml.Decode(text, &all)
	if err != nil {
		return meta, err
	}
	spelled := map[string]string{} // folded to how it was written first
	for _, key := range meta.Keys() {
		for n := range key { // a.b = 1 makes the table a too
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

// Members checks that the members of a JSON object have the names of the fields of a
// struct, exactly; encoding/json would take them in any case.
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

// fold brings a key into a form that does not tell case apart, by Unicode's rules.
func fold(key string) string { return strings.ToLower(strings.ToUpper(key)) }

// find says whether a key leads to a place in a type; near is the key that may have
// been meant.
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
