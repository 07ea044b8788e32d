package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

func TestSecretRules(t *testing.T) {
	for text, want := range map[string]string{
		"KEY":                     "KEY",
		"KEY@API.Example.com.":    "KEY@api.example.com",
		"KEY@b.example,a.example": "KEY@a.example,b.example",
		"KEY@a.example,a.example": "KEY@a.example",
		"KEY@*.example.com":       "KEY@*.example.com",
		"KEY@":                    "",
		"@a.example":              "",
		"KEY@a.example,":          "",
		"KEY@a.example:443":       "",
		"KEY@127.0.0.1":           "",
		"KEY@*":                   "",
		"KEY@*.com":               "",
		"KEY@a.example@b.example": "",
		"KEY@https://a.example/":  "",
		"a-b@a.example":           "",
		"KEY@" + strings.Repeat("a.example,", 64) + "b.example": "",
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

// A ceiling binds what was asked for without hosts, and never lets a value go to a host
// that it does not name.
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
		{"two entries", `["KEY@a.example", "KEY@b.example"]`, "KEY@a.example,b.example,c.example", "[KEY@a.example,b.example] 1"},
		{"bound where it need not be", `["KEY"]`, "KEY@a.example", "[KEY@a.example] 0"},
		{"none", `[]`, "KEY@a.example", "[] 1"},
	} {
		e, denials, err := Resolve(Request{Secrets: []string{c.asked}}, ceiling(t, "secrets = "+c.ceiling))
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a secret "+c.name, c.want, fmt.Sprint(e.Secrets, " ", len(denials)))
	}
}
