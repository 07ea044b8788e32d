package unitask

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/policy"
)

// A change is taken as a whole or not at all, and never beyond the ceiling.
func TestAttackPolicyChange(t *testing.T) {
	ceiling, err := policy.ParseCeiling("test", []byte("allowNet = [\"*.w.example\"]\nask = [\"*.a.example\"]\nallowNetAny = false"))
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
		{"one that it lacks beside one that it has", []string{"x.w.example", "evil.example"}, []string{"y.w.example"}, "beyond the ceiling"},
		{"more than it has", []string{"*.example.com"}, nil, "beyond the ceiling"},
		{"all that is below, and more", []string{"w.example"}, nil, "beyond the ceiling"},
		{"another port", []string{"x.w.example:22"}, nil, "beyond the ceiling"},
		{"everything", []string{"*"}, nil, "covers every host"},
		{"metadata", []string{"169.254.169.254"}, nil, "beyond the ceiling"},
		{"an escape", []string{"a\x1b[2J.w.example"}, nil, `a\x1b[2J`},
		{"a denial, of anything", nil, []string{"evil.example", "10.0.0.1:22", "*.w.example", "localhost"}, "[] [] [evil.example 10.0.0.1:22 *.w.example localhost]"},
		{"a denial of nothing", nil, []string{""}, "denyNet"},
		{"the same allowed and denied", []string{"x.w.example"}, []string{"x.w.example"}, "[] [] [x.w.example]"},
		{"too many", many, nil, "at most"},
		{"too many denials", nil, many, "at most"},
	} {
		l := &living{ceiling: ceiling}
		got := ""
		if err := l.take(PolicyChange{AllowNet: row.allow, DenyNet: row.deny}); err != nil {
			if got = row.want; !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "\x1b") || len(l.allow)+len(l.ask)+len(l.deny) > 0 {
				got = fmt.Sprint(err, l.allow, l.ask, l.deny)
			}
		} else {
			got = fmt.Sprint(l.allow, l.ask, l.deny)
		}
		attack.Check(t, "a change of policy: "+row.name, row.want, got)
	}
	l := &living{ceiling: ceiling}
	for _, c := range []PolicyChange{{AllowNet: []string{"x.w.example"}}, {DenyNet: []string{"x.w.example"}}, {AllowNet: []string{"x.w.example"}}} {
		if err := l.take(c); err != nil {
			t.Fatal(err)
		}
	}
	attack.Check(t, "a denial that was taken back", "[x.w.example] []", fmt.Sprint(l.allow, l.deny))
	fork := l.copy()
	if err := fork.take(PolicyChange{DenyNet: []string{"x.w.example"}}); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a fork's change in its parent", "[x.w.example] []", fmt.Sprint(l.allow, l.deny))
	for err = error(nil); err == nil; {
		err = l.take(PolicyChange{DenyNet: []string{"z.example"}})
	}
	attack.Check(t, "changes without end", fmt.Sprintf("its policy was changed %d times, which is the most", maxPolicyChanges), err.Error())
	attack.Check(t, "the policy of an installation", "it installs packages: its policy does not change", (&living{fixed: true}).take(PolicyChange{AllowNet: []string{"a.example"}}).Error())
}

// Whether an id is another caller's, has ended, or never was, is not told.
func TestAttackPolicyOfAnother(t *testing.T) {
	const id = "20261123T000000-aaaaaaaa"
	rt, _, a := asking(t, id) // its record has no owner: it is nobody's
	a.x = &execution{code: &program{living: &living{}}}
	for _, row := range []struct{ name, owner, id string }{
		{"another caller's", "alice", id}, {"the user's, of what is nobody's", "", id}, {"that never was", "", "20261123T000000-ffffffff"}, {"empty", "", ""}, {"a path", "", "../" + id}, {"last", "", "last"}, {"a part of another's", "alice", "2026"}, {"an escape", "", "\x1b[2J"},
	} {
		err := rt.SetPolicy(t.Context(), row.owner, row.id, PolicyChange{AllowNet: []string{"a.example"}})
		attack.Check(t, "an id to change the policy of: "+row.name, fmt.Sprintf("no run or session %.80q of yours is under way", row.id), fmt.Sprint(err))
	}
	var group sync.WaitGroup
	for range 20 { // beside questions and answers; it has no machine
		group.Go(func() { a.hear(approvalAsked{Policy: &PolicyChange{DenyNet: []string{"a.example"}}}) })
		group.Go(func() { a.hear(approvalAsked{}) })
	}
	group.Wait()
	attack.Check(t, "a change before there is a machine", "its machine has not started yet", a.hear(approvalAsked{Policy: &PolicyChange{DenyNet: []string{"a.example"}}}).Error)
}
