package policy

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

func TestHTTPRules(t *testing.T) {
	for text, want := range map[string]string{
		"GET api.example.com/repos/acme/*":          "GET api.example.com/repos/acme/*",
		"POST,GET,POST API.Example.com./x":          "GET,POST api.example.com/x",
		"* *.example.com":                           "* *.example.com",
		"deny DELETE api.example.com/**":            "deny DELETE api.example.com/**",
		"audit deny * api.example.com/a":            "audit deny * api.example.com/a",
		"audit GET api.example.com":                 "audit GET api.example.com",
		"2: GET api.example.com/":                   "2: GET api.example.com/",
		"GET B\u00fccher.example/\u00e9":            "GET xn--bcher-kva.example/\u00e9",
		"":                                          "",
		"api.example.com/x":                         "",
		"GET":                                       "",
		"GET  api.example.com":                      "",
		"GET api.example.com /x":                    "",
		"get api.example.com/x":                     "",
		"GET, api.example.com/x":                    "",
		"G\u00c4T api.example.com":                  "",
		"GET https://api.example.com/x":             "GET api.example.com/x",
		"GET ftp://api.example.com/x":               "",
		"GET https://u@api.example.com/x":           "",
		"GET https://https://api.example.com/x":     "",
		"GET api.example.com:8443/x":                "",
		"GET 127.0.0.1/x":                           "",
		"GET */x":                                   "",
		"GET *.com/x":                               "",
		"GET api.example.com/a/../b":                "",
		"GET api.example.com/a%20b":                 "",
		"GET api.example.com/a;b":                   "",
		"GET api.example.com/a?b":                   "",
		"GET api.example.com/**/a":                  "",
		`GET api.example.com\a`:                     "",
		"deny audit GET api.example.com":            "",
		"0: GET api.example.com":                    "",
		"01: GET api.example.com":                   "",
		"-1: GET api.example.com":                   "",
		"x: GET api.example.com":                    "",
		"99999: GET api.example.com":                "",
		strings.Repeat("A,", 40) + "B a.example":    "",
		"GET a.example/" + strings.Repeat("x", 1e4): "",
	} {
		r, err := ParseHTTPRule(text)
		if (err == nil) != (want != "") || err == nil && r.String() != want {
			t.Errorf("%.60s is %s: %v", text, r, err)
		}
		if err != nil && r != (HTTPRule{}) {
			t.Errorf("%.60s: %v, and yet %+v", text, err, r)
		}
	}
}

const apiRules = `
[[net.rule]]
host = "api.example.com"
method = ["GET", "POST"]
path = "/repos/acme/**"
[[net.rule]]
host = "api.example.com"
path = "/repos/acme/keys/**"
action = "deny"
[[net.rule]]
host = "*.example.org"
method = "GET"
mode = "audit"
`

func TestHTTPCeilings(t *testing.T) {
	c := ceiling(t, apiRules)
	if got := fmt.Sprint(
		c.most["net"]); got != "[GET,POST api.example.com/repos/acme/** deny * api.example.com/repos/acme/keys/** audit "+
		"GET *.example.org]" {
		t.Error(got)
	}
	for text, want := range map[string]string{
		"net = []":                                                      "test.toml:1: net has: is a list: use [[net.rule]]",
		"[net]\nrules = []":                                             `holds "rules"`,
		"[net.rule]\nhost = \"a.example\"":                              `holds "rule"`,
		"[net]\nrule = [1]":                                             `holds "rule"`,
		"[[net.rule]]\nmethod = \"GET\"":                                "rule 1: has no host",
		"[[net.rule]]\nhost = 1":                                        "host is a number",
		"[[net.rule]]\nhost = \"*\"":                                    "covers every host",
		"[[net.rule]]\nhost = \"a.example/x\"":                          "the path is a key of its own",
		"[[net.rule]]\nhost = \"a.example\"\npath = \"x\"":              "does not begin with a slash",
		"[[net.rule]]\nhost = \"a.example\"\npath = \"/x y\"":           "METHOD HOST/PATH",
		"[[net.rule]]\nhost = \"a.example\"\npath = \"/../x\"":          "has a path",
		"[[net.rule]]\nhost = \"a.example\"\nmethod = \"get\"":          "upper case",
		"[[net.rule]]\nhost = \"a.example\"\nmethod = \"GET a.com\"":    "no single one",
		"[[net.rule]]\nhost = \"a.example\"\nmethod = \"deny GET\"":     "no single one",
		"[[net.rule]]\nhost = \"a.example\"\nmethod = []":               "method is empty",
		"[[net.rule]]\nhost = \"a.example\"\nmode = \"log\"":            `mode "log": use enforce or audit`,
		"[[net.rule]]\nhost = \"a.example\"\nmode = \"\"":               `mode "": use enforce or audit`,
		"[[net.rule]]\nhost = \"a.example\"\naction = \"block\"":        `action "block": use allow or deny`,
		"[[net.rule]]\nhost = \"a.example\"\nPath = \"/x\"":             `unknown key "Path"`,
		"[[net.rule]]\nhost = \"a.example\"\n[[net.rule]]\nhost = \"\"": "rule 2: has no host",
		strings.Repeat("[[net.rule]]\nhost = \"a.example\"\n", 257):     "257 rules",
	} {
		if _, err := ParseCeiling("test.toml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %s", text, err, want)
		}
	}
}

// A ceiling's rules are a separate set, which a request's rules can't replace; the error lists the requests beyond
// them.
func TestAttackHTTPRules(t *testing.T) {
	const set = " 1: GET,POST api.example.com/repos/acme/** 1: deny * api.example.com/repos/acme/keys/** 1: " +
		"audit GET *.example.org"
	for _, c := range []struct {
		name, ceiling string
		asked         []string
		want          string
	}{
		{"nothing", apiRules, nil, "[" + set[1:] + "] 0"},
		{"less", apiRules, []string{"GET api.example.com/repos/acme/x"}, "[GET api.example.com/repos/acme/x" + set + "] 0"},
		{"its head", apiRules, []string{"HEAD api.example.com/repos/acme/x"},
			"[HEAD api.example.com/repos/acme/x" + set + "] 0"},
		{"another method", apiRules, []string{"DELETE api.example.com/repos/acme/x"},
			"[DELETE api.example.com/repos/acme/x" + set + "] 1"},
		{"every method", apiRules, []string{"* api.example.com/repos/acme/x"},
			"[* api.example.com/repos/acme/x" + set + "] 1"},
		{"another path", apiRules, []string{"GET api.example.com/repos/**"}, "[GET api.example.com/repos/**" + set + "] 1"},
		{"every path", apiRules, []string{"GET api.example.com"}, "[GET api.example.com" + set + "] 1"},
		{"what is denied", apiRules, []string{"GET api.example.com/repos/acme/keys/1"},
			"[GET api.example.com/repos/acme/keys/1" + set + "] 1"},
		{"every host below", apiRules, []string{"GET *.example.com/**"}, "[GET *.example.com/**" + set + "] 1"},
		{"what is only audited", apiRules, []string{"DELETE a.example.org/x"}, "[DELETE a.example.org/x" + set + "] 0"},
		{"another host", apiRules, []string{"DELETE a.example/x"}, "[DELETE a.example/x" + set + "] 0"},
		{"to deny more", apiRules, []string{"deny * api.example.com/**"}, "[deny * api.example.com/**" + set + "] 0"},
		{"to audit in its place", apiRules, []string{"audit * api.example.com/**"},
			"[audit * api.example.com/**" + set + "] 1"},
		{"a set of the ceiling's number", apiRules, []string{"1: * api.example.com/**"},
			"[1: * api.example.com/**" + strings.ReplaceAll(set, " 1: ", " 2: ") + "] 0"},
		{"part of the ceiling's set", apiRules, []string{"1: GET,POST api.example.com/repos/acme/**"},
			"[1: GET,POST api.example.com/repos/acme/**" + strings.ReplaceAll(set, " 1: ", " 2: ") + "] 0"},
		{"no ceiling", "", []string{"GET a.example/x"}, "[GET a.example/x] 0"},
	} {
		top := ceiling(t, c.ceiling)
		e, denials, err := Resolve(Request{AllowHTTP: c.asked}, top)
		if err != nil {
			t.Fatal(c.name, err)
		}
		attack.Check(t, "rules under a ceiling: "+c.name, c.want, fmt.Sprint(e.AllowHTTP, " ", len(denials)))
		again, denials, err := Resolve(Asked(e), top)
		if err != nil || !reflect.DeepEqual(again, e) || len(denials) > 0 {
			t.Errorf("%s: once more it is %+v %v %v", c.name, again, denials, err)
		}
	}
	both := ceiling(t,
		"[[net.rule]]\nhost = \"a.example\"\n[principals.alice]\n[[principals.alice.net.rule]]\nhost = \"a.example\"\n"+
			"path = \"/x\"").For("alice")
	e, denials, err := Resolve(Request{AllowHTTP: []string{"GET a.example/x"}}, both)
	if got := fmt.Sprint(e.AllowHTTP, denials, err); got != "[GET a.example/x 1: * a.example 2: * a.example/x] [] <nil>" {
		t.Error(got)
	}
}

func TestHTTPBeyond(t *testing.T) {
	base := ceiling(t, apiRules)
	rule := func(keys ...string) string { return "[[net.rule]]\n" + strings.Join(keys, "\n") + "\n" }
	host, deny := `host = "api.example.com"`, rule(`host = "api.example.com"`, `path = "/repos/acme/keys/**"`,
		`action = "deny"`)
	for text, want := range map[string]string{
		apiRules: "[]",
		rule(host, `method = "GET"`, `path = "/repos/acme/x"`) + deny: "[]",
		rule(host, `method = "GET"`,
			`path = "/repos/acme/x"`): "[net without deny * api.example.com/repos/acme/keys/**]",
		rule(host, `method = "GET"`, `path = "/repos/**"`) + deny: "[net GET api.example.com/repos/**]",
		rule(host, `method = "GET"`, `path = "/repos/acme/x"`, `mode = "audit"`) +
			rule(`host = "https://api.example.com/"`, `method = "GET"`, `path = "/repos/acme/x"`) + deny: "[]",
		deny: "[net without GET,POST api.example.com/repos/acme/**]",
		deny: "[net without GET,POST api.example.com/repos/acme/**]",
		rule(`host = "*.example.com"`, `method = "GET"`, `path = "/repos/acme/x"`) +
			deny: "[net GET *.example.com/repos/acme/x]",
		rule(host, `method = "GET"`, `path = "/repos/acme/x"`) + deny + rule(`host = "b.example"`): "[]",
	} {
		if got := fmt.Sprint(ceiling(t, text).Beyond(base)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func TestHTTPHosts(t *testing.T) {
	for _, c := range []struct {
		r    Request
		want string
	}{
		{Request{AllowHTTP: []string{"GET a.example/x", "POST a.example/y", "GET *.b.example.com", "deny * c.example",
			"audit GET d.example", "no rule"}}, "[a.example *.b.example.com d.example]"},
		{Request{AllowHTTP: []string{"GET a.example/x"}, AllowNetAny: true}, "[]"},
		{Request{AllowHTTP: []string{"GET a.example.com/x", "GET b.example/x", "GET example.com"},
			AllowNet: []string{"*.example.com", "b.example:8443"}}, "[example.com]"},
		{Request{AllowHTTP: []string{"GET a.example/x", "GET b.example/x"},
			AllowTCP: []string{"a.example:8080", "127.0.0.1:80"}}, "[b.example]"},
		{Request{AllowHTTP: []string{"GET https://a.example/x", "audit GET HTTP://b.example/x", "POST https://a.example/y"}},
			"[a.example:443 b.example:80]"},
		{Request{AllowHTTP: []string{"GET https://a.example/x", "GET http://a.example/x", "GET https://b.example/x"},
			AllowNet: []string{"b.example:80"}}, "[a.example:443 a.example:80]"},
	} {
		if got := fmt.Sprint(HTTPHosts(c.r)); got != c.want {
			t.Errorf("%+v: %s", c.r, got)
		}
	}
}

// Of a ceiling, only the limits of requests and network traffic apply to a build's machine. The same is true of two
// ceilings.
func TestReaching(t *testing.T) {
	parse := func(text string) *Ceiling {
		t.Helper()
		c, err := ParseCeiling("/w/c.toml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	rules := func(path string) string {
		return "[[net.rule]]\nhost = \"api.example\"\nmethod = \"GET\"\npath = \"" + path + "\"\n"
	}
	above := parse("memoryMb = 128\nimages = [\"node\"]\nmaxDownloadBytes = 5\n" + rules("/a/**"))
	c := above.NarrowedBy(parse("allowNet = []\nmaxUploadBytes = 7\n" + rules("/a/b/*"))).Reaching()
	e, denials, err := Resolve(Request{Image: "sha256:" + strings.Repeat("ab", 32), AllowNet: []string{"api.example"},
		MemoryMB: 512}, c)
	if err != nil || len(denials) > 0 || e.Image == "" || e.MemoryMB != 512 || len(e.AllowNet) != 1 {
		t.Errorf("%+v %v %v", e, denials, err)
	}
	if got := fmt.Sprint(e.AllowHTTP, e.MaxUpload,
		e.MaxDownload); got != "[1: GET api.example/a/** 2: GET api.example/a/b/*] 7 5" {
		t.Error(got)
	}
	if (*Ceiling)(nil).Reaching() != nil {
		t.Error("no ceiling is one")
	}
}
