package runlog

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// A run with a long list hides nothing behind it: a truncated list says so.
func TestAuditSaysMore(t *testing.T) {
	for _, n := range []int{maxListed, maxListed + 1, maxListed + 2} {
		log := audit.In(t.TempDir())
		a := &Log{log: log, tell: func(e run.Event) { t.Errorf("%+v", e) }, used: map[string][]string{},
			refused: map[string]int{}, first: map[string]string{}}
		a.Started(run.Policy{Effective: policy.Effective{}, Denials: make([]policy.Denial, n)}, nil)
		for i := range n {
			a.Decided(netstack.Decision{Name: fmt.Sprint(i, ".example"), Verdict: netstack.Allowed, Secrets: []string{"KEY"}})
		}
		a.Ended(&run.Result{}, "")
		err := log.Read(func(_ int64, line []byte) error {
			var e struct {
				Kind   audit.Kind
				Detail struct {
					Count   int
					Denials []policy.Denial
					Hosts   json.RawMessage
				}
			}
			if err := json.Unmarshal(line, &e); err != nil {
				return err
			}
			switch e.Kind {
			case audit.PolicyDenied:
				if e.Detail.Count != n || len(e.Detail.Denials) != maxListed {
					t.Errorf("%d denials: %d, of which %d are listed", n, e.Detail.Count, len(e.Detail.Denials))
				}
			case audit.SecretUsed:
				var hosts map[string][]string
				err := json.Unmarshal(e.Detail.Hosts, &hosts)
				list := hosts["KEY"]
				if err != nil || len(list) != min(n, maxListed+1) || (list[len(list)-1] == MoreListed) != (n > maxListed) {
					t.Errorf("%d hosts: %q, %v", n, list, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A session that continues elsewhere has not ended, and its network traffic on this host is logged.
func TestAuditOfLeft(t *testing.T) {
	for _, uses := range []bool{false, true} {
		log := audit.In(t.TempDir())
		a := &Log{log: log, tell: func(e run.Event) { t.Errorf("%+v", e) }, Session: true, used: map[string][]string{},
			refused: map[string]int{}, first: map[string]string{}}
		want := "[]"
		if uses {
			a.Decided(netstack.Decision{Name: "good.example", Verdict: netstack.Allowed, Secrets: []string{"KEY"}})
			a.Decided(netstack.Decision{Name: "bad.example", Verdict: netstack.Denied, Proto: "tcp"})
			want = "[secret.used net.refused]"
		}
		a.Left()
		kinds := []audit.Kind{}
		if err := log.Read(func(_ int64, line []byte) error {
			var e audit.Entry
			err := json.Unmarshal(line, &e)
			kinds = append(kinds, e.Kind)
			return err
		}); err != nil || fmt.Sprint(kinds) != want {
			t.Errorf("%v, want %s; %v", kinds, want, err)
		}
	}
}

// A run that reached limits reports which.
func TestAuditLimits(t *testing.T) {
	for want, res := range map[string]*run.Result{
		"[]": {}, "[timeoutMs]": {TimedOut: true}, "[memoryMb outputBytes]": {OOM: true, Truncated: true},
		"[maxArtifactBytes]": {ArtifactsRefused: make([]record.Refusal, 1)},
	} {
		for _, session := range []bool{false, true} {
			log := audit.In(t.TempDir())
			a := &Log{log: log, Session: session, tell: func(e run.Event) { t.Errorf("%+v", e) }}
			a.Started(run.Policy{}, nil)
			a.Ended(res, "")
			kinds, limits := []audit.Kind{}, "[]"
			if err := log.Read(func(_ int64, line []byte) error {
				var e struct {
					Kind   audit.Kind
					Detail struct{ Limits []string }
				}
				if err := json.Unmarshal(line, &e); err != nil {
					return err
				}
				if e.Kind == audit.LimitHit {
					limits = fmt.Sprint(e.Detail.Limits)
				} else {
					kinds = append(kinds, e.Kind)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			about := "[run.started run.ended]"
			if session {
				about = "[session.started session.ended]"
			}
			if limits != want || fmt.Sprint(kinds) != about {
				t.Errorf("%s %v, expected %s %s", limits, kinds, want, about)
			}
		}
	}
}

// The number of callers with counted refusals is limited, and each kind is written once in a period.
func TestAttackRefusals(t *testing.T) {
	var r Refusals
	begin := time.Now()
	for i := range 10 {
		if _, now := r.count("a", begin.Add(time.Duration(i)*time.Second)); now != (i == 0) {
			t.Errorf("refusal %d: %t", i, now)
		}
	}
	if leftOut, now := r.count("a", begin.Add(refusalPeriod)); leftOut != 9 || !now {
		t.Errorf("%d %t", leftOut, now)
	}
	for i := range 3 * maxRefused {
		r.count(fmt.Sprint(i), begin)
	}
	attack.Check(t, "callers whose refusals are counted are bounded", "true", fmt.Sprint(len(r.seen) <= maxRefused))
}
