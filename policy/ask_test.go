package policy

import (
	"fmt"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A host under the ceiling's ask becomes a question, and nothing else does.
func TestAttackAskCeilings(t *testing.T) {
	for _, row := range []struct {
		name, ceiling, over string
		ask                 Request
		open, asked         string
		denials             int
	}{
		{"no ceiling", "", "", Request{AllowNet: []string{"a.w.example"}, Ask: []string{"b.w.example"}}, "[a.w.example]",
			"[b.w.example]", 0},
		{"a host that is to be asked about", `ask = ["*.w.example"]`, "", Request{AllowNet: []string{"a.w.example"}}, "[]",
			"[a.w.example]", 0},
		{"beside a list", "allowNet = [\"a.w.example\"]\nask = [\"*.w.example\"]", "",
			Request{AllowNet: []string{"a.w.example", "b.w.example", "c.test"}}, "[a.w.example]", "[b.w.example]", 1},
		{"ask without a key is bounded by the list", `allowNet = ["a.w.example"]`, "",
			Request{Ask: []string{"a.w.example", "b.w.example"}}, "[]", "[a.w.example]", 1},
		{"an empty list of both", "allowNet = []\nask = []", "",
			Request{AllowNet: []string{"a.w.example"}, Ask: []string{"b.w.example"}}, "[]", "[]", 2},
		{"every host, under ask", `ask = ["a.w.example"]`, "", Request{AllowNetAny: true}, "[]", "[]", 1},
		{"a port that is not to be asked about", `ask = ["a.w.example:8443"]`, "",
			Request{Ask: []string{"a.w.example", "a.w.example:8443"}}, "[]", "[a.w.example:8443]", 1},
		{"a wildcard beyond", `ask = ["a.w.example"]`, "", Request{Ask: []string{"*.w.example"}}, "[]", "[a.w.example]", 1},
		{"a nearer file can't widen by asking", `ask = ["*.w.example"]`, `allowNet = ["a.w.example"]`,
			Request{AllowNet: []string{"b.w.example"}, Ask: []string{"c.w.example"}}, "[]", "[]", 2},
		{"a nearer file has asked what was open", `ask = ["*.w.example"]`, `allowNet = ["a.w.example"]`,
			Request{AllowNet: []string{"a.w.example"}}, "[]", "[a.w.example]", 0},
	} {
		var c *Ceiling
		for _, text := range []string{row.over, row.ceiling} {
			if text == "" {
				continue
			}
			one, err := ParseCeiling("/x/"+CeilingFile, []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if c != nil {
				one = c.NarrowedBy(one)
			}
			c = one
		}
		e, denials, err := Resolve(row.ask, c)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "under a ceiling with ask: "+row.name, fmt.Sprint(row.open, " ", row.asked, " ", false, row.denials),
			fmt.Sprint(e.AllowNet, " ", e.Ask, " ", e.AllowNetAny, len(denials)))
	}
}
