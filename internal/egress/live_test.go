package egress

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// A change takes effect completely or not at all, and never exceeds the ceiling.
func TestAttackPolicyChange(t *testing.T) {
	ceiling, err := policy.ParseCeiling(
		"test",
		[]byte("allowNet = [\"*.w.example\"]\nask = [\"*.a.example\"]\nallowNetAny = false"),
	)
	if err != nil {
		t.Fatal(err)
	}
	many := make([]string, policy.MaxRules+1)
	for i := range many {
		many[i] = fmt.Sprintf("n%d.w.example", i)
	}
	for _, row := range []struct {
		name        string
		allow, deny []string
		want        string // the lists after it, or a part of the error
	}{
		{"nothing", nil, nil, "is empty"},
		{"one that the ceiling has", []string{"x.w.example"}, nil, "[x.w.example] [] []"},
		{"one that it has asked about", []string{"x.a.example"}, nil, "[] [x.a.example] []"},
		{"one that it lacks", []string{"evil.example"}, nil, "beyond the ceiling"},
		{"one that it lacks beside one that it has", []string{"x.w.example", "evil.example"}, []string{"y.w.example"},
			"beyond the ceiling"},
		{"more than it has", []string{"*.example.com"}, nil, "beyond the ceiling"},
		{"all that is below, and more", []string{"w.example"}, nil, "beyond the ceiling"},
		{"another port", []string{"x.w.example:22"}, nil, "beyond the ceiling"},
		{"everything", []string{"*"}, nil, "covers every host"},
		{"metadata", []string{"169.254.169.254"}, nil, "beyond the ceiling"},
		{"an escape", []string{"a\x1b[2J.w.example"}, nil, `a\x1b[2J`},
		{"a denial, of anything", nil, []string{"evil.example", "10.0.0.1:22", "*.w.example", "localhost"},
			"[] [] [evil.example 10.0.0.1:22 *.w.example localhost]"},
		{"a denial of nothing", nil, []string{""}, "denyNet"},
		{"the same allowed and denied", []string{"x.w.example"}, []string{"x.w.example"}, "[] [] [x.w.example]"},
		{"too many", many, nil, "at most"},
		{"too many denials", nil, many, "at most"},
	} {
		l := &LiveRules{Ceiling: ceiling}
		got := ""
		if err := l.Apply(run.PolicyChange{AllowNet: row.allow, DenyNet: row.deny}); err != nil {
			if got = row.want; !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "\x1b") ||
				len(l.Allow)+len(l.Ask)+len(l.Deny) > 0 {
				got = fmt.Sprint(err, l.Allow, l.Ask, l.Deny)
			}
		} else {
			got = fmt.Sprint(l.Allow, l.Ask, l.Deny)
		}
		attack.Check(t, "a change of policy: "+row.name, row.want, got)
	}
	l := &LiveRules{Ceiling: ceiling}
	for _, c := range []run.PolicyChange{{AllowNet: []string{"x.w.example"}}, {DenyNet: []string{"x.w.example"}},
		{AllowNet: []string{"x.w.example"}}} {
		if err := l.Apply(c); err != nil {
			t.Fatal(err)
		}
	}
	attack.Check(t, "a denial that was taken back", "[x.w.example] []", fmt.Sprint(l.Allow, l.Deny))
	fork := l.Copy()
	if err := fork.Apply(run.PolicyChange{DenyNet: []string{"x.w.example"}}); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a fork's change in its parent", "[x.w.example] []", fmt.Sprint(l.Allow, l.Deny))
	for err = error(nil); err == nil; {
		err = l.Apply(run.PolicyChange{DenyNet: []string{"z.example"}})
	}
	attack.Check(
		t,
		"changes without end",
		fmt.Sprintf("its policy was changed %d times, which is the most", MaxPolicyChanges),
		err.Error(),
	)
	attack.Check(
		t,
		"the policy of an installation",
		"it installs packages: its policy does not change",
		(&LiveRules{Fixed: true}).Apply(run.PolicyChange{AllowNet: []string{"a.example"}}).Error(),
	)
}

// A host that is added later has the ceiling's rules by method and path, or is refused. A run that started without a
// network has no broker that could enforce them.
func TestAttackPolicySetRules(t *testing.T) {
	ceiling, err := policy.ParseCeiling("test", []byte(`allowNet = ["*.corp.example", "10.0.0.1"]
ask = ["*.asked.corp.test"]
[[net.rule]]
host = "api.corp.example"
method = "GET"
[[net.rule]]
host = "*.logged.corp.example"
mode = "audit"
[[net.rule]]
host = "*.asked.corp.test"
action = "deny"
path = "/admin/**"`))
	if err != nil {
		t.Fatal(err)
	}
	for _, begin := range []struct {
		name string
		req  policy.Request
		held bool
		own  string // the host of its own rule
	}{
		{"without a network", policy.Request{}, false, ""},
		{"without a network, with rules of its own", policy.Request{AllowHTTP: []string{"GET api.corp.example"}}, false,
			"api.corp.example"},
		{"with a network", policy.Request{AllowNet: []string{"other.corp.example"}}, true, ""},
		{"with a network and rules of its own", policy.Request{AllowNet: []string{"other.corp.example"},
			AllowHTTP: []string{"GET other.corp.example/x"}}, true, "other.corp.example"},
		{"without a network, with rules of its own alone", policy.Request{AllowHTTP: []string{"GET free.corp.example"}},
			false, "free.corp.example"},
		{"with a question", policy.Request{Ask: []string{"x.asked.corp.test"}}, true, ""},
	} {
		granted, _, err := policy.Resolve(begin.req, ceiling)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []struct {
			name string
			rule bool
		}{
			{"api.corp.example", true}, {"api.corp.example:8443", true}, {"API.corp.example.", true}, {"*.corp.example", true},
			{"x.logged.corp.example", true}, {"x.asked.corp.test", true},
			{"free.corp.example", false}, {"10.0.0.1", false},
		} {
			l := &LiveRules{Ceiling: ceiling}
			l.Begin(granted)
			change := run.PolicyChange{AllowNet: []string{host.name}}
			_, denials, err := policy.Resolve(policy.Request{AllowNet: change.AllowNet}, ceiling)
			if err != nil {
				t.Fatal(host.name, err)
			}
			want, got := "refused", "taken"
			if (begin.held || !host.rule && host.name != begin.own) && len(denials) == 0 {
				want = "taken"
			}
			if err := l.Apply(change); err != nil {
				got = "refused"
			}
			attack.Check(t, "policy set "+host.name+", of a run that began "+begin.name, want, got)
			if err := l.Copy().Renew(ceiling); err != nil {
				t.Errorf("the same ceiling again: %v", err)
			}
		}
	}
}

// If the ceiling asks about a host, a change that opened it without a question exceeds the ceiling.
func TestAttackPolicyRenew(t *testing.T) {
	read := func(text string) *policy.Ceiling {
		c, err := policy.ParseCeiling("test", []byte(text+"\nallowNetAny = false"))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const allowed, asked = `allowNet = ["*.w.example"]`, `ask = ["*.w.example"]`
	for _, row := range []struct{ name, before, opened, now, want string }{
		{"the same", allowed, "x.w.example", allowed, "held"},
		{"asks about it", allowed, "x.w.example", asked, "refused"},
		{"asks about a part, and allows all", allowed, "*.w.example", allowed + "\nask = [\"x.w.example\"]", "held"},
		{"asks about it as before", asked, "x.w.example", asked, "held"},
		{"no longer asks", asked, "x.w.example", allowed, "held"},
		{"lacks it", allowed, "x.w.example", `allowNet = ["y.w.example"]`, "refused"},
	} {
		l := &LiveRules{Ceiling: read(row.before)}
		if err := l.Apply(run.PolicyChange{AllowNet: []string{row.opened}}); err != nil {
			t.Fatal(err)
		}
		before := l.Ceiling
		got := map[bool]string{true: "held", false: "refused"}[l.Renew(read(row.now)) == nil]
		if got == "refused" && l.Ceiling != before {
			got = "refused, and taken"
		}
		attack.Check(t, "a ceiling read again that "+row.name, row.want, got)
	}
}
