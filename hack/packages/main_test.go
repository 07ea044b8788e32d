package main

import (
	"strings"
	"testing"
)

func TestList(t *testing.T) {
	seen := map[string]bool{}
	many := map[string]int{}
	for _, i := range parseList(listText) {
		system, name, ok := strings.Cut(i.spec, ":")
		if !ok || name == "" || i.use == "" || seen[i.spec] {
			t.Errorf("%+v", i)
		}
		seen[i.spec] = true
		many[system]++
	}
	if many["pip"] < 200 || many["npm"] < 100 || len(many) != 2 {
		t.Error(many)
	}
}

func TestTable(t *testing.T) {
	all := []item{{"pip:a", "a"}, {"pip:b", "b"}, {"npm:c", "c"}}
	got := table(all, map[string]outcome{"pip:a": {Package: "pip:a"},
		"npm:c": {Package: "npm:c",
			Reason: "can't be installed from https://registry.example/: no | way (`unitask inspect 1` has the rest)"}})
	if !strings.Contains(got, "| pip | 2 | 1 | 1 |\n| npm | 1 | 1 | 0 |\n") ||
		!strings.Contains(got, "| `npm:c` | no / way |\n") || strings.Contains(got, "example") {
		t.Error(got)
	}
	if got := errorLine(
		"file:///x:1\n  throw\n\nError [ERR_X]: no such module\n    at y\n"); got != "Error [ERR_X]: no such module" {
		t.Error(got)
	}
}
