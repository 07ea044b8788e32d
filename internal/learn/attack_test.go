package learn

import (
	"fmt"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Many runs with many hosts each do not make the memory grow without bound.
func TestAttackManyTargets(t *testing.T) {
	l := newLearner(Options{})
	for r := range 20 {
		src := &source{id: fmt.Sprint("r", r), used: map[request]bool{}}
		src.granted, _, _ = policy.Resolve(policy.Request{AllowNetAny: true}, nil)
		l.sources = append(l.sources, src)
		for i := range 2 * maxTargets {
			l.connected(src, tcp(fmt.Sprintf("h%d.example.com", i+r*(i/maxTargets)*maxTargets), 443, "net any"))
		}
	}
	used := 0
	for _, src := range l.sources {
		used += len(src.used)
	}
	attack.Check(t, "learn: hosts that are held, of many runs", "true", fmt.Sprint(len(l.nets) <= maxTargets &&
		len(l.unread) <= maxTargets && len(l.ruled) <= maxTargets))
	attack.Check(t, "learn: requests that are held, of many runs", "true", fmt.Sprint(used <= maxChecks))
}

// A run that is named twice counts once.
func TestNamedTwice(t *testing.T) {
	store := record.Open(testdir.Private(t))
	recorded(t, store, "r1", policy.Request{AllowNetAny: true},
		logged(tcp("a.example", 443, "net any")), "")
	p, err := From(store, []string{"r1", "r1"}, Options{})
	if err != nil || len(p.Runs) != 1 || p.Lines[0].Requests != 1 {
		t.Errorf("%+v %v", p, err)
	}
}
