package history

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// fill sets each settable field of a value to something hostile.
func fill(v reflect.Value, text string, number int64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), text, number)
			}
		}
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(number)
	case reflect.Slice:
		n := 2 * MaxSaidList
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		fill(v.Index(0), text, number)
	case reflect.Bool:
		v.SetBool(true)
	}
}

// Each field of a worker's report about a run's end is limited, also one that is added later.
func TestAttackWorkerFields(t *testing.T) {
	none, err := record.NewRedactor(record.Secrets{})
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	var walk func(name string, v reflect.Value)
	walk = func(name string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				if field := v.Type().Field(i); field.IsExported() {
					walk(name+"."+field.Name, v.Field(i))
				}
			}
		case reflect.Slice:
			if v.Len() > MaxSaidList {
				list = append(list, name)
			}
			for i := range v.Len() {
				walk(name+"[]", v.Index(i))
			}
		case reflect.String:
			if s := v.String(); len(s) > max(maxSaidText, MaxSaidError) && name != ".Value" ||
				strings.ContainsAny(s, "\x1b\n") && name != ".Value" ||
				len(s) > MaxSaidValue {
				list = append(list, name)
			}
		case reflect.Int, reflect.Int64:
			if n := v.Int(); n < -1 || n > maxSaidNumber {
				list = append(list, name)
			}
		}
	}
	for _, number := range []int64{math.MinInt64, -2, math.MaxInt64} {
		var res run.Result
		fill(reflect.ValueOf(&res).Elem(), "\x1b[2J\n"+strings.Repeat("x", 1<<17), number)
		BoundSaidResult(&res, none)
		walk("", reflect.ValueOf(res))
		if res.ExitCode < 0 || res.ExitCode > 255 || res.Duration.Total < 0 {
			list = append(list, "ExitCode or Duration")
		}
		if text, err := json.Marshal(res); err != nil || len(text) > 64<<20 {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
	attack.Check(t, "fields of a worker's result without a bound", "", strings.Join(list, " "))
}

// The longest possible lines of a local run stay complete: the code must not hide them by their length.
func TestBoundSaidLine(t *testing.T) {
	odd := strings.Repeat(`\x01`, 254)
	for _, d := range []netstack.Decision{
		{Proto: "dns", Name: odd, Reason: "not a host name"},
		{Proto: "tcp", Name: "a.example", Reason: "HTTP for " + strings.Repeat(`\xff`, 300)},
		{Proto: "tcp", Name: "a.example", Reason: "TLS for " + strings.Repeat(`\xff`, 300)},
		{Proto: "http", Name: "a.example", Path: strings.Repeat(`\xff`, 300)},
	} {
		got := d
		BoundSaidLine(&got, nil, nil)
		if fmt.Sprint(got) != fmt.Sprint(d) {
			t.Errorf("got %v, want it as it was: %v", got, d)
		}
	}
	used := netstack.Decision{Proto: "http", Name: strings.Repeat("a", 301), Secrets: []string{"KEY"}}
	if BoundSaidLine(&used, nil, nil); used.Name != "(too long)" {
		t.Errorf("a name that got a secret: %q", used.Name)
	}
}
