package unitask_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// Wherever in a request a secret's value also occurs, no file of the home contains it. That includes the record, and
// the audit log of a refused request.
func TestAttackSecretInRequest(t *testing.T) {
	for name, value := range map[string]string{
		"secret":                "a-secret-value",
		"long secret":           strings.Repeat("one-of-many-words-", 20),
		"secret of odd letters": `a"secret\value` + "\n\té",
	} {
		for _, field := range reflect.VisibleFields(reflect.TypeFor[unitask.Request]()) {
			req := unitask.Request{Code: "1"}
			if field.Name == "Secrets" || !fill(reflect.ValueOf(&req).Elem().FieldByIndex(field.Index), value) {
				continue
			}
			req.Secrets = map[string]string{"KEY": value}
			home := testdir.Private(t)
			rt := openRuntime(t, unitask.Options{Home: home})
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // the record is made, the machine is not
			res, err := rt.Run(ctx, req, unitask.IO{Events: func(unitask.Event) {}})
			if err == nil {
				t.Fatalf("%s: it ran", field.Name)
			}
			how := "refused"
			if res != nil {
				how = "recorded"
			}
			part, found := value[:12], []string{}
			everyFile(t, home, func(file, text string) {
				if strings.Contains(text, part) || strings.Contains(text, strings.Trim(fmt.Sprintf("%q", part), `"`)) {
					found = append(found, file)
				}
			})
			row := fmt.Sprintf("the value of a %s in a request's %s, which is %s: files that have it", name, field.Name, how)
			attack.Check(t, row, "[]", fmt.Sprint(found))
		}
	}
}

// fill puts a text into every place of a value that takes one, and reports whether there is a place.
func fill(v reflect.Value, text string) (done bool) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
		return true
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		return fill(v.Index(0), text)
	case reflect.Map:
		key, to := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		done = fill(key, text)
		done = fill(to, text) || done
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, to)
	case reflect.Struct:
		for i := range v.NumField() {
			done = v.Type().Field(i).IsExported() && fill(v.Field(i), text) || done
		}
	}
	return done
}
