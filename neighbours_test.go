package unitask

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

func TestNeighbours(t *testing.T) {
	var many []Neighbour
	for i := range run.MaxNeighbours + 1 {
		many = append(many, Neighbour{Name: fmt.Sprintf("n%d", i)})
	}
	for _, c := range []struct {
		list []Neighbour
		want string // what goes in, or what the error says
	}{
		{nil, ""},
		{[]Neighbour{{Name: "helper.py", Content: "x"}, {Name: "a/b/c.py", Content: "y"}, {Name: "a/d", Content: ""}}, "/w/helper.py /w/a/ /w/a/b/ /w/a/b/c.py /w/a/d"},
		{[]Neighbour{{Name: "", Content: "x"}}, `neighbours "": has a path of no or more than 1024 bytes`},
		{[]Neighbour{{Name: "../x", Content: "x"}}, `neighbours "../x": has a path that can't be`},
		{[]Neighbour{{Name: "/etc/x", Content: "x"}}, "can't be"},
		{[]Neighbour{{Name: "a//x", Content: "x"}}, "can't be"},
		{[]Neighbour{{Name: "a\x00", Content: "x"}}, "is no text"},
		{[]Neighbour{{Name: strings.Repeat("a/", 40) + "x", Content: "x"}}, "more than 32 folders deep"},
		{[]Neighbour{{Name: "main.py", Content: "x"}}, `"main.py": is there already`},
		{[]Neighbour{{Name: "main.py/x", Content: "x"}}, `lies below "main.py", which is a file`},
		{[]Neighbour{{Name: "a", Content: ""}, {Name: "a", Content: ""}}, "is there already"},
		{[]Neighbour{{Name: "a/b", Content: ""}, {Name: "a", Content: ""}}, "is a folder of another one"},
		{[]Neighbour{{Name: "a", Content: ""}, {Name: "a/b", Content: ""}}, `lies below "a", which is a file`},
		{[]Neighbour{{Name: "a", Content: "\xff"}}, "is not UTF-8 text"},
		{[]Neighbour{{Name: "a", Content: strings.Repeat("x", run.MaxNeighbourBytes)}, {Name: "b", Content: "x"}}, "must have at most 4194304 together"},
		{many, "must be at most 100"},
	} {
		p, err := checkCode(catalog.Request{Request: Request{Path: "/w/main.py", Neighbours: c.list}})
		if err != nil {
			if field := new(policy.FieldError); !errors.As(err, &field) || field.Field != "neighbours" || c.want == "" || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v does not say %s", err, c.want)
			}
			continue
		}
		var got []string
		for _, f := range p.beside() {
			got = append(got, f.Path+map[bool]string{true: "/"}[f.Mode.IsDir()])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q, want %s", got, c.want)
		}
	}
	if _, err := checkCode(catalog.Request{Request: Request{Path: "/x.py", Neighbours: []Neighbour{{Name: "etc/passwd", Content: "x"}}}}); err == nil {
		t.Error("a file of the guest's own")
	}
	// The caller's package.json is the one that counts.
	p, err := checkCode(catalog.Request{Request: Request{Path: "/w/main.js", PackageType: "module", Neighbours: []Neighbour{{Name: "package.json", Content: "{}"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range p.files() {
		if strings.HasSuffix(f.Path, "package.json") && f.content != "{}" {
			t.Errorf("%s", f.content)
		}
	}
}

// A record keeps neighbours beside it, and a replay has them; one with a secret in it can't be run
// again.
func TestNeighboursOnRecord(t *testing.T) {
	rt, err := Open(Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	req := Request{Path: "/w/main.js", Kernel: "nanos", Neighbours: []Neighbour{{Name: "helper.js", Content: "x = '<ü>\\n'\n"}, {Name: "a/empty", Content: ""}}, Secrets: map[string]string{"KEY": "swordfish"}}
	run := func() string {
		t.Helper()
		res, err := rt.Run(t.Context(), req, IO{}) // which is not vendored
		if err == nil || res == nil {
			t.Fatalf("%+v %v", res, err)
		}
		return res.RunID
	}
	id := run()
	got, err := rt.History().Request(id, "")
	if err != nil || fmt.Sprint(got.Neighbours) != fmt.Sprint(req.Neighbours) {
		t.Errorf("%q %v", got.Neighbours, err)
	}
	rec, err := rt.Runs().Get(id)
	if err != nil || strings.Contains(string(rec.Request), "content") || !strings.Contains(string(rec.Request), "helper.js") {
		t.Errorf("%s %v", rec.Request, err)
	}
	req.Neighbours[1].Content = "it is swordfish"
	id = run()
	text, _, err := rt.Runs().Read(id, record.NeighboursFile, 0)
	if err != nil || strings.Contains(string(text), "swordfish") || !strings.Contains(string(text), record.Redacted) {
		t.Errorf("%s %v", text, err)
	}
	if _, err := rt.History().Request(id, ""); !errors.Is(err, history.ErrRedacted) || !strings.Contains(err.Error(), "neighbours") {
		t.Errorf("%v", err)
	}
}
