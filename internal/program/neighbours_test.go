package program

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

func TestNeighbours(t *testing.T) {
	var many []run.Neighbour
	for i := range run.MaxNeighbours + 1 {
		many = append(many, run.Neighbour{Name: fmt.Sprintf("n%d", i)})
	}
	for _, c := range []struct {
		list []run.Neighbour
		want string // what goes in, or what the error says
	}{
		{nil, ""},
		{[]run.Neighbour{{Name: "helper.py", Content: "x"}, {Name: "a/b/c.py", Content: "y"}, {Name: "a/d", Content: ""}}, "/w/helper.py /w/a/ /w/a/b/ /w/a/b/c.py /w/a/d"},
		{[]run.Neighbour{{Name: "", Content: "x"}}, `neighbours "": has a path of no or more than 1024 bytes`},
		{[]run.Neighbour{{Name: "../x", Content: "x"}}, `neighbours "../x": has a path that can't be`},
		{[]run.Neighbour{{Name: "/etc/x", Content: "x"}}, "can't be"},
		{[]run.Neighbour{{Name: "a//x", Content: "x"}}, "can't be"},
		{[]run.Neighbour{{Name: "a\x00", Content: "x"}}, "is no text"},
		{[]run.Neighbour{{Name: strings.Repeat("a/", 40) + "x", Content: "x"}}, "more than 32 folders deep"},
		{[]run.Neighbour{{Name: "main.py", Content: "x"}}, `"main.py": is there already`},
		{[]run.Neighbour{{Name: "main.py/x", Content: "x"}}, `lies below "main.py", which is a file`},
		{[]run.Neighbour{{Name: "a", Content: ""}, {Name: "a", Content: ""}}, "is there already"},
		{[]run.Neighbour{{Name: "a/b", Content: ""}, {Name: "a", Content: ""}}, "is a folder of another one"},
		{[]run.Neighbour{{Name: "a", Content: ""}, {Name: "a/b", Content: ""}}, `lies below "a", which is a file`},
		{[]run.Neighbour{{Name: "a", Content: "\xff"}}, "is not UTF-8 text"},
		{[]run.Neighbour{{Name: "a", Content: strings.Repeat("x", run.MaxNeighbourBytes)}, {Name: "b", Content: "x"}}, "must have at most 4194304 together"},
		{many, "must be at most 100"},
	} {
		p, err := Check(catalog.Request{Request: run.Request{Path: "/w/main.py", Neighbours: c.list}})
		if err != nil {
			if field := new(policy.FieldError); !errors.As(err, &field) || field.Field != "neighbours" || c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v does not say %s", err, c.want)
			}
			continue
		}
		var got []string
		for _, f := range p.Beside() {
			got = append(got, f.Path+map[bool]string{true: "/"}[f.Mode.IsDir()])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q, want %s", got, c.want)
		}
	}
	if _, err := Check(catalog.Request{Request: run.Request{Path: "/x.py", Neighbours: []run.Neighbour{{Name: "etc/passwd", Content: "x"}}}}); err == nil {
		t.Error("a file of the guest's own")
	}
	// The caller's package.json is the one that counts.
	p, err := Check(catalog.Request{Request: run.Request{Path: "/w/main.js", PackageType: "module", Neighbours: []run.Neighbour{{Name: "package.json", Content: "{}"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range p.Files() {
		if strings.HasSuffix(f.Path, "package.json") && f.Content != "{}" {
			t.Errorf("%s", f.Content)
		}
	}
}
