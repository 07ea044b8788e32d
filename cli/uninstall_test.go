package cli

import (
	"reflect"
	"slices"
	"testing"

	layout "github.com/unitask/unitask/internal/home"
)

// uninstall knows each entry of a home.
func TestEntriesOfHome(t *testing.T) {
	dir := layout.Dir("/home")
	known := append(rebuiltIn(dir), yoursIn(dir)...)
	of := reflect.ValueOf(dir)
	for i := range of.NumMethod() {
		method := of.Method(i)
		name := of.Type().Method(i).Name
		if name == "CustomFile" { // in Custom
			continue
		}
		path := method.Call(slices.Repeat([]reflect.Value{reflect.ValueOf("")}, method.Type().NumIn()))[0].String()
		if !slices.Contains(known, path) {
			t.Errorf("uninstall does not know %s, which Dir.%s returns", path, name)
		}
	}
}
