package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

// The result object of an error lists what was removed before it.
func TestRemoveEach(t *testing.T) {
	var out bytes.Buffer
	std := Streams{Stdout: &out, Stderr: &out}
	a := &app{std: std, ui: newUI(std), asJSON: true, code: 2}
	err := a.removeEach([]string{"one", "none", "two"}, func(name string) ([]string, error) {
		if name == "none" {
			return nil, usage(errors.New("there is no such thing"))
		}
		return []string{name}, nil
	})
	if err == nil || out.Len() > 0 {
		t.Fatalf("got %v and %q, want an error alone", err, out.String())
	}
	if err := a.failed(err); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Outcome string
		Done    struct{ Removed []string }
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Outcome != "usage" || !reflect.DeepEqual(got.Done.Removed, []string{"one", "two"}) {
		t.Errorf("got %+v of %s", got, out.String())
	}
}
