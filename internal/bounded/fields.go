package bounded

import "reflect"

// Limits bound the fields of a value that another party sent.
type Limits struct {
	Text   int   // bytes of a text
	List   int   // elements of a list, and entries of a map
	Number int64 // largest integer; the smallest is always -1
}

// Fields cuts each exported field of what v points to, at every depth, to the limits. It cuts texts as Text does. It
// leaves bytes and floating-point numbers unchanged. It also leaves a map's keys unchanged, but removes entries with a
// longer key.
func Fields(v any, limits Limits) { limits.bound(reflect.ValueOf(v)) }

func (l Limits) bound(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Kind() == reflect.Pointer {
			l.bound(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				l.bound(v.Field(i))
			}
		}
	case reflect.String:
		v.SetString(Text(v.String(), l.Text))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(min(max(v.Int(), -1), l.Number))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		if v.Len() > l.List {
			v.Set(v.Slice3(0, l.List, l.List))
		}
		for i := range v.Len() {
			l.bound(v.Index(i))
		}
	case reflect.Map:
		l.boundMap(v)
	}
}

func (l Limits) boundMap(v reflect.Value) {
	for i, key := range v.MapKeys() {
		if i >= l.List || key.Kind() == reflect.String && Text(key.String(), l.Text) != key.String() {
			v.SetMapIndex(key, reflect.Value{})
			continue
		}
		value := reflect.New(v.Type().Elem()).Elem()
		value.Set(v.MapIndex(key))
		l.bound(value)
		v.SetMapIndex(key, value)
	}
}
