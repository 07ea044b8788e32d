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

func TestInlineFiles(t *testing.T) {
	var many []run.InlineFile
	for i := range run.MaxInlineFiles + 1 {
		many = append(many, run.InlineFile{Name: fmt.Sprintf("n%d", i)})
	}
	for _, c := range []struct {
		list []run.InlineFile
		want string // the input, or a part of the error
	}{
		{nil, ""},
		{[]run.InlineFile{{Name: "helper.py", Content: "x"}, {Name: "a/b/c.py", Content: "y"}, {Name: "a/d", Content: ""}},
			"/w/helper.py /w/a/ /w/a/b/ /w/a/b/c.py /w/a/d"},
		{[]run.InlineFile{{Name: "", Content: "x"}}, `inlineFiles "": has a path of no or more than 1024 bytes`},
		{[]run.InlineFile{{Name: "../x", Content: "x"}}, `inlineFiles "../x": has a path that can't be`},
		{[]run.InlineFile{{Name: "/etc/x", Content: "x"}}, "can't be"},
		{[]run.InlineFile{{Name: "a//x", Content: "x"}}, "can't be"},
		{[]run.InlineFile{{Name: "a\x00", Content: "x"}}, "is no text"},
		{[]run.InlineFile{{Name: strings.Repeat("a/", 40) + "x", Content: "x"}}, "more than 32 folders deep"},
		{[]run.InlineFile{{Name: "main.py", Content: "x"}}, `"main.py": is there already`},
		{[]run.InlineFile{{Name: "main.py/x", Content: "x"}}, `lies below "main.py", which is a file`},
		{[]run.InlineFile{{Name: "a", Content: ""}, {Name: "a", Content: ""}}, "is there already"},
		{[]run.InlineFile{{Name: "a/b", Content: ""}, {Name: "a", Content: ""}}, "is a folder of another one"},
		{[]run.InlineFile{{Name: "a", Content: ""}, {Name: "a/b", Content: ""}}, `lies below "a", which is a file`},
		{[]run.InlineFile{{Name: "a", Content: "\xff"}}, "is not UTF-8 text"},
		{[]run.InlineFile{{Name: "a", Content: strings.Repeat("x", run.MaxInlineBytes)}, {Name: "b", Content: "x"}},
			"must have at most 4194304 together"},
		{many, "must be at most 100"},
	} {
		p, err := Check(catalog.Request{Request: run.Request{Path: "/w/main.py", InlineFiles: c.list}})
		if err != nil {
			if field := new(policy.FieldError); !errors.As(err, &field) || field.Field != "inlineFiles" || c.want == "" ||
				!strings.Contains(err.Error(), c.want) {
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
	if _, err := Check(catalog.Request{Request: run.Request{Path: "/x.py",
		InlineFiles: []run.InlineFile{{Name: "etc/passwd", Content: "x"}}}}); err == nil {
		t.Error("a file of the guest's own")
	}
	// The caller's package.json is the one that counts.
	p, err := Check(catalog.Request{Request: run.Request{Path: "/w/main.js", PackageType: "module",
		InlineFiles: []run.InlineFile{{Name: "package.json", Content: "{}"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range p.Files() {
		if strings.HasSuffix(f.Path, "package.json") && f.Content != "{}" {
			t.Errorf("%s", f.Content)
		}
	}
}
