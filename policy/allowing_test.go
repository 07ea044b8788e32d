package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testdir"
)

// A ceiling's text gets one more rule, and keeps all else.
func TestAllowing(t *testing.T) {
	for _, row := range []struct{ name, before, key, rule, after string }{
		{"an empty list", "allowNet = []\n", "allowNet", "a.example", "allowNet = [\"a.example\"]\n"},
		{"a list on a line", "# top\nallowNet = [ 'b.example' ] # why ]\ncpus = 1\n", "allowNet", "a.example",
			"# top\nallowNet = [ 'b.example', \"a.example\" ] # why ]\ncpus = 1\n"},
		{"a comma at its end", "allowNet = [\"b.example\",]", "allowNet", "a.example:8443",
			"allowNet = [\"b.example\", \"a.example:8443\"]"},
		{"several lines", "allowNet = [\n    \"b.example\", # [\n    # the last, \"\"\" ]\n]\n", "allowNet", "*.a.example",
			"allowNet = [\n    \"b.example\", # [\n    # the last, \"\"\" ]\n    \"*.a.example\",\n]\n"},
		{"no comma at the end of several lines", "allowNet = [\n\t\"b.example\" # x\n]\n", "allowNet", "a.example",
			"allowNet = [\n\t\"b.example\", # x\n\t\"a.example\",\n]\n"},
		{"a bracket after the last", "allowNet = [\n  \"b.example\"]\n", "allowNet", "a.example",
			"allowNet = [\n  \"b.example\", \"a.example\"]\n"},
		{"only a comment inside", "allowNet = [\n  # none\n]\n", "allowNet", "a.example",
			"allowNet = [\n  # none\n  \"a.example\",\n]\n"},
		{"a key in quotes", "cpus = 1\n\"allowNet\" = []", "allowNet", "a.example",
			"cpus = 1\n\"allowNet\" = [\"a.example\"]"},
		{"no list", "cpus = 1\n", "allowNet", "a.example", ""},
		{"its name in a comment", "# allowNet = []\ncpus = 1 # allowNet = []", "allowNet", "a.example", ""},
		{"its name in a text", "images = [\"node\"]\n[defaults]\nlabels = [\"\"\"\nallowNet = []\n\"\"\"]\n", "allowNet",
			"a.example", ""},
		{"a rule that is none", "allowNet = []\n", "allowNet", "\"]\nallowNetAny = true #", ""},
		{"another key", "allowTcp = []\n", "allowTcp", "10.0.0.1:1", ""},
		{"a rule by path", "allowNet = [\"a.example\"]", "net.rule", "GET a.example/v1/*",
			"allowNet = [\"a.example\"]\n\n[[net.rule]]\nhost = \"a.example\"\nmethod = [\"GET\"]\npath = \"/v1/*\"\n"},
		{"another rule by path", "[[net.rule]]\nhost = \"b.example\"\n", "net.rule", "* a.example",
			"[[net.rule]]\nhost = \"b.example\"\n\n[[net.rule]]\nhost = \"a.example\"\n"},
		{"rules that a table can't extend", "net = { rule = [{ host = \"b.example\" }] }\n", "net.rule", "GET a.example/",
			""},
		{"a path with characters that nobody sees", "cpus = 1\n", "net.rule", "GET a.example/a\u202e\u200b", ""},
		{"a rule that denies", "cpus = 1\n", "net.rule", "deny GET a.example/", ""},
	} {
		c, err := ParseCeiling("test", []byte(row.before))
		if err != nil && row.after != "" {
			t.Fatal(row.name, err)
		}
		if err != nil {
			continue // the row is about the text alone
		}
		if got, err := c.Allowing(row.key, row.rule); got != row.after || (err == nil) != (row.after != "") {
			t.Errorf("%s: got %q, %v; want %q", row.name, got, err, row.after)
		}
	}
}

// A text that adds anything but the rule is refused, whoever made it.
func TestOnlyAdds(t *testing.T) {
	r, err := ParseHTTPRule("GET a.example/v1")
	if err != nil {
		t.Fatal(err)
	}
	const other = "[[net.rule]]\nhost = \"b.example\"\n"
	const table = "[[net.rule]]\nhost = \"a.example\"\nmethod = [\"GET\"]\npath = \"/v1\"\n"
	if err := onlyAdds("cpus = 1\n", "cpus = 1\n"+table, "net", tableOf(r)); err != nil {
		t.Error(err)
	}
	for name, row := range map[string][2]string{
		"another rule":               {"", strings.Replace(table, "/v1", "/**", 1)},
		"another key of the rule":    {"", table + "action = \"deny\"\n"},
		"no method":                  {"", strings.Replace(table, "method", "#", 1)},
		"two rules":                  {"", table + table},
		"another key of net":         {"", "net.x = 1\n" + table},
		"a changed key of net":       {"net.x = 1\n", "net.x = 2\n" + table},
		"a lost key of net":          {"net.x = 1\n", table},
		"another key":                {"", "cpus = 1\n" + table},
		"another rule beside it":     {table, strings.Replace(table, "/v1", "/**", 1) + table},
		"the rule before the others": {other, table + other},
	} {
		if onlyAdds(row[0], row[1], "net", tableOf(r)) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// A new text replaces the text that was read, and no other; the file stays trusted if it was.
func TestReplace(t *testing.T) {
	home, dir := testdir.Private(t), testdir.Private(t)
	name, trust := filepath.Join(dir, CeilingFile), OpenTrust(home)
	for _, err := range []error{os.WriteFile(name, []byte("allowNet = []\n"), 0o600), os.Chmod(name, 0o640)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	allow := func(host string, meanwhile func()) (*Ceiling, bool, error) {
		t.Helper()
		c, err := ReadCeiling(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := c.Allowing("allowNet", host)
		if err != nil {
			t.Fatal(err)
		}
		meanwhile()
		trusted, err := trust.Replace(c, text, time.Now())
		return c, trusted, err
	}
	if _, trusted, err := allow("a.example", func() {}); err != nil || trusted {
		t.Fatal(trusted, err)
	}
	c, err := ReadCeiling(name)
	if err == nil {
		err = trust.Add(c, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, trusted, err := allow("b.example", func() {}); err != nil || !trusted {
		t.Fatal(trusted, err)
	}
	if c, err = ReadCeiling(name); err != nil || trust.Of(c) != nil || !strings.Contains(c.Text(), "b.example") {
		t.Fatal(err, trust.Of(c), c.Text())
	}
	const other = "allowNet = [] # mine\n"
	_, _, err = allow("c.example", func() {
		if err := os.WriteFile(name, []byte(other), 0o640); err != nil {
			t.Fatal(err)
		}
	})
	text, e := os.ReadFile(name)
	st, e2 := os.Stat(name)
	if !errors.Is(err, ErrCeilingChanged) || string(text) != other || errors.Join(e, e2) != nil || st.Mode() != 0o640 {
		t.Errorf("%v, %q, %v %v", err, text, st.Mode(), errors.Join(e, e2))
	}
}
