package e2b

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of the protocol are Go structs. A tag `pb:"3"` gives a field's number in the binary form, and the
// field's json tag gives its name in the JSON form. Pointers are optional fields, and a field that is nil is not sent.

// maxNesting bounds messages in messages; the protocol has five.
const maxNesting = 8

// binaryCodec reads and writes the binary form of Protocol Buffers.
type binaryCodec struct{}

func (binaryCodec) Name() string { return "proto" }

func (binaryCodec) Marshal(message any) ([]byte, error) {
	return appendMessage(nil, reflect.Indirect(reflect.ValueOf(message)))
}

func (binaryCodec) Unmarshal(data []byte, message any) error {
	return readMessage(data, reflect.ValueOf(message).Elem(), maxNesting)
}

// jsonCodec reads and writes the JSON form.
type jsonCodec struct{ name string }

func (c jsonCodec) Name() string { return c.name }

func (jsonCodec) Marshal(message any) ([]byte, error) { return json.Marshal(message) }

func (jsonCodec) Unmarshal(data []byte, message any) error {
	if len(data) == 0 {
		return errors.New("the message is empty, and not even {}")
	}
	return json.Unmarshal(data, message)
}

// fieldNumber returns the number of a struct's field, 0 for none.
func fieldNumber(f reflect.StructField) protowire.Number {
	n, _ := strconv.Atoi(f.Tag.Get("pb"))
	return protowire.Number(n)
}

var timeType = reflect.TypeFor[time.Time]()

// appendMessage appends the fields of a struct.
func appendMessage(to []byte, of reflect.Value) ([]byte, error) {
	for i := range of.NumField() {
		n := fieldNumber(of.Type().Field(i))
		if n == 0 {
			continue
		}
		var err error
		if to, err = appendField(to, n, of.Field(i)); err != nil {
			return nil, fmt.Errorf("%s: %w", of.Type().Field(i).Name, err)
		}
	}
	return to, nil
}

// appendField appends a field, without those that have their type's zero value.
func appendField(to []byte, n protowire.Number, v reflect.Value) ([]byte, error) {
	switch {
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			return to, nil
		}
		if v.Elem().Kind() == reflect.Struct {
			return appendStruct(to, n, v.Elem())
		}
		return appendScalar(to, n, v.Elem())
	case v.Type() == timeType:
		at := v.Interface().(time.Time)
		text := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(at.Unix()))
		text = protowire.AppendVarint(protowire.AppendTag(text, 2, protowire.VarintType), uint64(at.Nanosecond()))
		return protowire.AppendBytes(protowire.AppendTag(to, n, protowire.BytesType), text), nil
	case v.Kind() == reflect.Struct:
		return appendStruct(to, n, v)
	case v.Kind() == reflect.Map:
		for _, key := range v.MapKeys() {
			pair := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), key.String())
			pair = protowire.AppendString(protowire.AppendTag(pair, 2, protowire.BytesType), v.MapIndex(key).String())
			to = protowire.AppendBytes(protowire.AppendTag(to, n, protowire.BytesType), pair)
		}
		return to, nil
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() != reflect.Uint8:
		add := appendScalar
		if v.Type().Elem().Kind() == reflect.Struct {
			add = appendStruct
		}
		for i := range v.Len() {
			var err error
			if to, err = add(to, n, v.Index(i)); err != nil {
				return nil, err
			}
		}
		return to, nil
	case v.IsZero():
		return to, nil
	}
	return appendScalar(to, n, v)
}

func appendStruct(to []byte, n protowire.Number, v reflect.Value) ([]byte, error) {
	text, err := appendMessage(nil, v)
	if err != nil {
		return nil, err
	}
	return protowire.AppendBytes(protowire.AppendTag(to, n, protowire.BytesType), text), nil
}

func appendScalar(to []byte, n protowire.Number, v reflect.Value) ([]byte, error) {
	switch v.Kind() {
	case reflect.Bool:
		return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), protowire.EncodeBool(v.Bool())), nil
	case reflect.Uint32:
		return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), v.Uint()), nil
	case reflect.Int64, reflect.Int:
		return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), uint64(v.Int())), nil
	case reflect.Int32: // the only such field is an sint32
		return protowire.AppendVarint(protowire.AppendTag(to, n, protowire.VarintType), protowire.EncodeZigZag(v.Int())), nil
	case reflect.String:
		return protowire.AppendString(protowire.AppendTag(to, n, protowire.BytesType), v.String()), nil
	case reflect.Slice:
		return protowire.AppendBytes(protowire.AppendTag(to, n, protowire.BytesType), v.Bytes()), nil
	}
	return nil, fmt.Errorf("no form for %s", v.Type())
}

// readMessage reads the fields of a struct, and skips unknown ones.
func readMessage(data []byte, into reflect.Value, depth int) error {
	if depth == 0 {
		return errors.New("the message has too many levels")
	}
	for len(data) > 0 {
		n, kind, used := protowire.ConsumeTag(data)
		if used < 0 {
			return protowire.ParseError(used)
		}
		data = data[used:]
		used = protowire.ConsumeFieldValue(n, kind, data)
		if used < 0 {
			return protowire.ParseError(used)
		}
		if field := fieldOf(into, n); field.IsValid() {
			if err := readField(data[:used], kind, field, depth); err != nil {
				return fmt.Errorf("field %d: %w", n, err)
			}
		}
		data = data[used:]
	}
	return nil
}

func fieldOf(of reflect.Value, n protowire.Number) reflect.Value {
	for i := range of.NumField() {
		if fieldNumber(of.Type().Field(i)) == n {
			return of.Field(i)
		}
	}
	return reflect.Value{}
}

func readField(data []byte, kind protowire.Type, into reflect.Value, depth int) error {
	if into.Kind() == reflect.Pointer {
		if into.IsNil() {
			into.Set(reflect.New(into.Type().Elem()))
		}
		into = into.Elem()
	}
	switch kind {
	case protowire.VarintType:
		return setNumber(into, data)
	case protowire.BytesType:
		text, used := protowire.ConsumeBytes(data)
		if used < 0 {
			return protowire.ParseError(used)
		}
		return setBytes(into, text, depth)
	}
	return fmt.Errorf("has the wrong type")
}

func setNumber(into reflect.Value, data []byte) error {
	n, used := protowire.ConsumeVarint(data)
	if used < 0 {
		return protowire.ParseError(used)
	}
	switch {
	case into.Kind() == reflect.Bool:
		into.SetBool(protowire.DecodeBool(n))
	case into.Kind() == reflect.Uint32:
		into.SetUint(uint64(uint32(n)))
	case into.Kind() == reflect.Int64:
		into.SetInt(int64(n))
	case into.Kind() == reflect.Int32:
		into.SetInt(int64(int32(protowire.DecodeZigZag(n))))
	case into.Type() == reflect.TypeFor[enum]():
		into.SetString(strconv.FormatUint(n, 10))
	default:
		return fmt.Errorf("is a number where there must be none")
	}
	return nil
}

// maxRepeated bounds the entries of a repeated field or a map.
const maxRepeated = 10_000

func setBytes(into reflect.Value, text []byte, depth int) error {
	switch into.Kind() {
	case reflect.String:
		into.SetString(strings.ToValidUTF8(string(text), "\ufffd"))
	case reflect.Struct:
		return readMessage(text, into, depth-1)
	case reflect.Map:
		var pair struct {
			Key   string `pb:"1"`
			Value string `pb:"2"`
		}
		if err := readMessage(text, reflect.ValueOf(&pair).Elem(), depth-1); err != nil {
			return err
		}
		if into.IsNil() {
			into.Set(reflect.MakeMap(into.Type()))
		}
		if into.Len() >= maxRepeated {
			return fmt.Errorf("has more than %d entries", maxRepeated)
		}
		into.SetMapIndex(reflect.ValueOf(pair.Key), reflect.ValueOf(pair.Value))
	case reflect.Slice:
		if into.Type().Elem().Kind() == reflect.Uint8 {
			into.SetBytes(append([]byte{}, text...))
			return nil
		}
		if into.Len() >= maxRepeated {
			return fmt.Errorf("has more than %d entries", maxRepeated)
		}
		one := reflect.New(into.Type().Elem()).Elem()
		if err := setBytes(one, text, depth); err != nil {
			return err
		}
		into.Set(reflect.Append(into, one))
	default:
		return fmt.Errorf("is text where there must be none")
	}
	return nil
}
