package unitask

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

func TestNeighbours(t *testing.T) {
	var many []Neighbour
	for i := range maxNeighbours + 1 {
		many = append(many, Neighbour{Name: fmt.Sprintf("n%d", i)})
	}
	for _, c := range []struct {
		list []Neighbour
		want string // what goes in, or what the error says
	}{
		{nil, ""},
		{[]Neighbour{{"helper.py", "x"}, {"a/b/c.py", "y"}, {"a/d", ""}}, "/w/helper.py /w/a/ /w/a/b/ /w/a/b/c.py /w/a/d"},
		{[]Neighbour{{"", "x"}}, `neighbours "": has a path of no or more than 1024 bytes`},
		{[]Neighbour{{"../x", "x"}}, `neighbours "../x": has a path that can't be`},
		{[]Neighbour{{"/etc/x", "x"}}, "can't be"},
		{[]Neighbour{{"a//x", "x"}}, "can't be"},
		{[]Neighbour{{"a\x00", "x"}}, "is no text"},
		{[]Neighbour{{strings.Repeat("a/", 40) + "x", "x"}}, "more than 32 folders deep"},
		{[]Neighbour{{"main.py", "x"}}, `"main.py": is there already`},
		{[]Neighbour{{"main.py/x", "x"}}, `lies below "main.py", which is a file`},
		{[]Neighbour{{"a", ""}, {"a", ""}}, "is there already"},
		{[]Neighbour{{"a/b", ""}, {"a", ""}}, "is a folder of another one"},
		{[]Neighbour{{"a", ""}, {"a/b", ""}}, `lies below "a", which is a file`},
		{[]Neighbour{{"a", "\xff"}}, "is not UTF-8 text"},
		{[]Neighbour{{"a", strings.Repeat("x", maxNeighbourBytes)}, {"b", "x"}}, "must have at most 4194304 together"},
		{many, "must be at most 100"},
	} {
		p, err := checkCode(Request{Path: "/w/main.py", Neighbours: c.list})
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
	if _, err := checkCode(Request{Path: "/x.py", Neighbours: []Neighbour{{"etc/passwd", "x"}}}); err == nil {
		t.Error("a file of the guest's own")
	}
	// The caller's package.json is the one that counts.
	p, err := checkCode(Request{Path: "/w/main.js", PackageType: "module", Neighbours: []Neighbour{{"package.json", "{}"}}})
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
	req := Request{Path: "/w/main.js", Kernel: "nanos", Neighbours: []Neighbour{{"helper.js", "x = '<ü>\\n'\n"}, {"a/empty", ""}}, Secrets: map[string]string{"KEY": "swordfish"}}
	run := func() string {
		t.Helper()
		res, err := rt.Run(t.Context(), req, IO{}) // which is not vendored
		if err == nil || res == nil {
			t.Fatalf("%+v %v", res, err)
		}
		return res.RunID
	}
	id := run()
	got, err := rt.Recorded(id, "")
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
	if _, err := rt.Recorded(id, ""); !errors.Is(err, ErrRedacted) || !strings.Contains(err.Error(), "neighbours") {
		t.Errorf("%v", err)
	}
}
