package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

func TestSecretRules(t *testing.T) {
	for text, want := range map[string]string{
		"KEY":                         "KEY",
		"KEY@API.Example.com.":        "KEY@api.example.com",
		"KEY@b.example,a.example":     "KEY@a.example,b.example",
		"KEY@a.example,a.example":     "KEY@a.example",
		"KEY@*.example.com":           "KEY@*.example.com",
		"KEY@":                        "",
		"@a.example":                  "",
		"KEY@a.example,":              "",
		"KEY@a.example:443":           "",
		"KEY@127.0.0.1":               "",
		"KEY@*":                       "",
		"KEY@*.com":                   "",
		"KEY@a.example@b.example":     "",
		"KEY@https://a.example/":      "KEY@a.example",
		"KEY@https://a.example/v":     "",
		"KEY@ftp://a.example":         "",
		"KEY@https://u@a.example":     "",
		"KEY@http://a.example":        "",
		"KEY@https://a.example:443":   "KEY@a.example",
		"KEY@https://a.example:8443":  "",
		"KEY@https://a.example:query": "KEY@a.example:query",
		"a-b@a.example":               "",
		"KEY@" + strings.Repeat("a.example,", 64) + "b.example": "",

		"KEY@a.example:header":                         "KEY@a.example",
		"KEY@a.example:query":                          "KEY@a.example:query",
		"KEY@a.example:body+query+query":               "KEY@a.example:query+body",
		"KEY@a.example:header.X-Api-Key":               "KEY@a.example:header.x-api-key",
		"KEY@a.example:path+header.b+header.a":         "KEY@a.example:header.a+header.b+path",
		"KEY@a.example:header+header.a":                "KEY@a.example",
		"KEY@a.example:pass":                           "KEY@a.example:header+pass",
		"KEY@b.example:query,a.example:pass":           "KEY@a.example:header+pass,b.example:query+pass",
		"KEY@a.example:query,a.example":                "KEY@a.example:header+query",
		"KEY@a.example:header.a,a.example:header.b":    "KEY@a.example:header.a+header.b",
		"KEY@a.example:":                               "",
		"KEY@a.example:quary":                          "",
		"KEY@a.example:query+":                         "",
		"KEY@a.example:header.":                        "",
		"KEY@a.example:header.a b":                     "",
		"KEY@a.example:query:body":                     "",
		"KEY@a.example:Query":                          "",
		"KEY@a.example:443+query":                      "",
		"KEY@*.example.com:query":                      "KEY@*.example.com:query",
		"KEY:query":                                    "",
		"KEY@a.example:" + strings.Repeat("query+", 9): "",
	} {
		r, err := ParseSecret(text)
		if (err == nil) != (want != "") || err == nil && r.String() != want {
			t.Errorf("%s is %s: %v", text, r, err)
		}
		if err != nil && r != (SecretRule{}) && r.Hosts != "" {
			t.Errorf("%s: %v, and yet %+v", text, err, r)
		}
	}
}

// A ceiling limits a secret that was requested without hosts, and never lets a value go to a host that it does not
// name.
func TestAttackSecretHosts(t *testing.T) {
	for _, c := range []struct{ name, ceiling, asked, want string }{
		{"as the ceiling has it", `["KEY@a.example"]`, "KEY@a.example", "[KEY@a.example] 0"},
		{"into the machine", `["KEY@a.example"]`, "KEY", "[KEY@a.example] 1"},
		{"to another host", `["KEY@a.example"]`, "KEY@evil.example", "[] 1"},
		{"to another host beside", `["KEY@a.example"]`, "KEY@a.example,evil.example", "[KEY@a.example] 1"},
		{"to all below", `["KEY@a.example.com"]`, "KEY@*.example.com", "[KEY@a.example.com] 1"},
		{"to one below", `["KEY@*.example.com"]`, "KEY@a.b.example.com", "[KEY@a.b.example.com] 0"},
		{"to the apex", `["KEY@*.example.com"]`, "KEY@example.com", "[] 1"},
		{"another name", `["KEY@a.example"]`, "OTHER@a.example", "[] 1"},
		{"two entries", `["KEY@a.example", "KEY@b.example"]`, "KEY@a.example,b.example,c.example",
			"[KEY@a.example,b.example] 1"},
		{"bound where it need not be", `["KEY"]`, "KEY@a.example", "[KEY@a.example] 0"},
		{"none", `[]`, "KEY@a.example", "[] 1"},
		{"in another place", `["KEY@a.example"]`, "KEY@a.example:body", "[] 1"},
		{"in another place beside", `["KEY@a.example"]`, "KEY@a.example:header+query+path+body", "[KEY@a.example] 1"},
		{"in every field", `["KEY@a.example:header.authorization"]`, "KEY@a.example",
			"[KEY@a.example:header.authorization] 1"},
		{"in another field", `["KEY@a.example:header.authorization"]`, "KEY@a.example:header.x-comment", "[] 1"},
		{"in one field of all", `["KEY@a.example"]`, "KEY@a.example:header.a", "[KEY@a.example:header.a] 0"},
		{"in another host's place", `["KEY@a.example:query", "KEY@b.example"]`, "KEY@a.example:header,b.example:query",
			"[] 1"},
		{"in another host's place, by a wildcard", `["KEY@*.example.com:query", "KEY@a.example.com"]`,
			"KEY@*.example.com:header", "[KEY@a.example.com] 1"},
		{"into the machine, bound to places", `["KEY@a.example:query", "KEY@b.example"]`, "KEY",
			"[KEY@a.example:query,b.example] 1"},
		{"with its placeholder passed", `["KEY@a.example"]`, "KEY@a.example:pass", "[KEY@a.example] 1"},
		{"with its placeholder passed, as allowed", `["KEY@a.example:pass"]`, "KEY@a.example:pass",
			"[KEY@a.example:header+pass] 0"},
		{"refused where it may be passed", `["KEY@a.example:pass"]`, "KEY@a.example", "[KEY@a.example] 0"},
		{"in a place that a table does not name", "", "KEY@a.example:body+pass", "[] 1"},
		{"as a table has it", "", "KEY@a.example:query+header.x-key", "[KEY@a.example:header.x-key+query] 0"},
		{"in every field, under a table", "", "KEY@a.example", "[KEY@a.example:header.x-key] 1"},
	} {
		text := "secrets = " + c.ceiling
		if c.ceiling == "" {
			text = "[secrets.KEY]\nhosts = [\"a.example\", \"b.example\"]\nin = [\"query\", \"header\"]\n" +
				"header = [\"X-Key\"]\nonMisdirect = \"deny\""
		}
		top := ceiling(t, text)
		e, denials, err := Resolve(Request{Secrets: []string{c.asked}}, top)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a secret "+c.name, c.want, fmt.Sprint(e.Secrets, " ", len(denials)))
		again, denials, err := Resolve(Asked(e), top)
		if err != nil || !slices.Equal(again.Secrets, e.Secrets) || len(denials) > 0 {
			t.Errorf("%s: once more it is %v %v %v", c.name, again.Secrets, denials, err)
		}
	}
}

// A table has the same meaning as the list's text, or the error names the fault.
func TestSecretTables(t *testing.T) {
	for text, want := range map[string]string{
		`hosts = ["a.example"]`:                                          "[KEY@a.example]",
		`hosts = ["b.example", "a.example"]`:                             "[KEY@a.example,b.example]",
		`hosts = ["a.example"]` + "\nonMisdirect = \"pass\"":             "[KEY@a.example:header+pass]",
		`hosts = ["a.example"]` + "\nin = [\"query\", \"body\"]":         "[KEY@a.example:query+body]",
		`hosts = ["a.example"]` + "\nheader = [\"Authorization\"]":       "[KEY@a.example:header.authorization]",
		`hosts = ["https://a.example/"]`:                                 "[KEY@a.example]",
		`hosts = ["http://a.example"]`:                                   `a secret over TLS only`,
		`hosts = ["https://a.example/v1"]`:                               `has a host`,
		`hosts = []`:                                                     `test.toml:1: secrets has: "KEY": has no hosts`,
		`in = ["query"]`:                                                 `has no hosts`,
		`hosts = "a.example"`:                                            `hosts is a string`,
		`hosts = ["a.example:query"]`:                                    `has a host "a.example:query"`,
		`hosts = ["a.example"]` + "\nin = []":                            `empty list`,
		`hosts = ["a.example"]` + "\nheader = []":                        `empty list`,
		`hosts = ["a.example"]` + "\nin = [\"quary\"]":                   `has a place "quary"`,
		`hosts = ["a.example"]` + "\nin = [\"pass\"]":                    `has a place or field "pass"`,
		`hosts = ["a.example"]` + "\nin = [\"query+body\"]":              `has a place or field "query+body"`,
		`hosts = ["a.example"]` + "\nin = [\"query\"]\nheader = [\"a\"]": `no "header" in its in`,
		`hosts = ["a.example"]` + "\nonMisdirect = \"allow\"":            `onMisdirect must be "deny" or "pass"`,
		`hosts = ["a.example"]` + "\nHeader = [\"a\"]":                   `Header is unknown`,
		`hosts = ["127.0.0.1"]`:                                          `no host name`,
	} {
		c, err := ParseCeiling("test.toml", []byte("[secrets.KEY]\n"+text))
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(c.most["secrets"])
		}
		if err == nil && got != want || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if _, err := ParseCeiling("test.toml", []byte("secrets = {KEY = [\"a.example\"]}")); err == nil ||
		!strings.Contains(err.Error(), "use [secrets.NAME]") {
		t.Error(err)
	}
}
