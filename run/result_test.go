package run_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/unitask/unitask/run"
)

// TestResultWire checks that a Result's parts survive JSON, because results of a fleet and of sessions use it.
func TestResultWire(t *testing.T) {
	var sent run.Result
	v := reflect.ValueOf(&sent).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("text")
		case reflect.Int:
			f.SetInt(7)
		case reflect.Int64:
			f.SetInt(int64(3 * time.Second))
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Struct: // Duration and Policy
			sent.Duration.Run, sent.Policy.Ceiling = time.Second, "file"
		default:
			t.Fatalf("%s is a %s, which this test does not know", v.Type().Field(i).Name, f.Kind())
		}
	}
	text, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got run.Result
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for i := range v.NumField() {
		if reflect.ValueOf(got).Field(i).IsZero() {
			t.Errorf("%s is lost: %s", v.Type().Field(i).Name, text)
		}
	}
}
