package run_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// fill sets every field of a struct to a nonzero value.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		if !v.Type().Field(i).IsExported() {
			continue
		}
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x" + v.Type().Field(i).Name)
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(time.Millisecond) * int64(i+1))
		case reflect.Map:
			value := reflect.New(f.Type().Elem()).Elem()
			if value.Kind() == reflect.Slice {
				value.Set(reflect.Append(value, reflect.ValueOf("*.example.com"), reflect.ValueOf("a.example")))
			} else {
				value.SetString("in " + v.Type().Field(i).Name)
			}
			f.Set(reflect.MakeMap(f.Type()))
			f.SetMapIndex(reflect.ValueOf("NAME"), value)
		case reflect.Slice:
			one := reflect.New(f.Type().Elem()).Elem()
			if one.Kind() == reflect.Struct {
				fill(t, one)
			} else {
				one.SetString("x")
			}
			f.Set(reflect.Append(f, one))
		case reflect.Float64:
			f.SetFloat(1.5)
		default:
			t.Fatalf("a field of kind %s", f.Kind())
		}
	}
}

// A request survives JSON, with all its fields except a secret's value.
func TestRequestJSON(t *testing.T) {
	var req run.Request
	fill(t, reflect.ValueOf(&req).Elem())
	text, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	fields := -1 // the hosts are in the secrets
	for _, f := range reflect.VisibleFields(reflect.TypeFor[run.Request]()) {
		if f.IsExported() {
			fields++
		}
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || len(members) != fields {
		t.Errorf("%d members of %d fields: %s %v", len(members), fields, text, err)
	}
	if strings.Contains(string(text), req.Secrets["NAME"]) ||
		string(members["secrets"]) != `["NAME@*.example.com,a.example"]` {
		t.Errorf("%s", text)
	}
	if want := time.Duration(req.Timeout / time.Millisecond); string(members["timeoutMs"]) != strings.TrimSuffix(
		want.String(), "ns") {
		t.Errorf("%s of %s", members["timeoutMs"], req.Timeout)
	}
	var again run.Request
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	req.Secrets["NAME"] = ""
	if !reflect.DeepEqual(again, req) {
		t.Errorf("%+v\nis not\n%+v", again, req)
	}
	if text, err := json.Marshal(run.Request{}); err != nil || string(text) != "{}" {
		t.Errorf("%s %v", text, err)
	}
	for _, bad := range []string{`{"ALLOWNET":["a.com"]}`, `{"allowNet":[],"allownet":["a.com"]}`, `{"memory":1}`,
		`{"timeoutMs":1.5}`, `{"Timeout":5}`, `[]`, `{"timeoutMs":"1"}`} {
		if err := json.Unmarshal([]byte(bad), &again); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}

// Every field of the policy is also a field of a request and of the grants, under the same JSON key. The table has all
// of them.
func TestPolicyFields(t *testing.T) {
	keys := func(typ reflect.Type) map[string]bool {
		found := map[string]bool{}
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			found[name] = true
		}
		return found
	}
	request, asked, granted := keys(reflect.TypeFor[run.Request]()), keys(reflect.TypeFor[policy.Request]()),
		keys(reflect.TypeFor[policy.Effective]())
	for _, f := range policy.Fields {
		if !request[f.Key] || !asked[f.Key] || !granted[f.Key] {
			t.Errorf("%s: in Request %v, policy.Request %v, Effective %v", f.Key, request[f.Key], asked[f.Key], granted[f.Key])
		}
		delete(asked, f.Key)
		delete(granted, f.Key)
	}
	if len(asked)+len(granted) > 0 {
		t.Errorf("not in the table: %v %v", asked, granted)
	}
}
