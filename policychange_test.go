package unitask

import (
	"fmt"
	"sync"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/egress"
)

// Whether an id is another caller's, has ended, or never was, is not told.
func TestAttackPolicyOfAnother(t *testing.T) {
	const id = "20261123T000000-aaaaaaaa"
	rt, _, a := asking(t, id) // its record has no owner: it is nobody's
	a.x = &execution{live: &egress.LiveRules{}}
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
