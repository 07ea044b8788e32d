package unitask

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Who has much logged hides nothing behind it: a list that was cut says so.
func TestAuditSaysMore(t *testing.T) {
	for _, n := range []int{maxAudited, maxAudited + 1, maxAudited + 2} {
		log := audit.In(t.TempDir())
		a := &audited{log: log, tell: func(e Event) { t.Errorf("%+v", e) }, used: map[string][]string{}, refused: map[string]int{}, first: map[string]string{}}
		a.started(Policy{Effective: policy.Effective{}, Denials: make([]policy.Denial, n)})
		for i := range n {
			a.decided(netstack.Decision{Name: fmt.Sprint(i, ".example"), Verdict: netstack.Allowed, Secrets: []string{"KEY"}})
		}
		a.ended(&Result{})
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
				if e.Detail.Count != n || len(e.Detail.Denials) != maxAudited {
					t.Errorf("%d denials: %d, of which %d are listed", n, e.Detail.Count, len(e.Detail.Denials))
				}
			case audit.SecretUsed:
				var hosts map[string][]string
				err := json.Unmarshal(e.Detail.Hosts, &hosts)
				list := hosts["KEY"]
				if err != nil || len(list) != min(n, maxAudited+1) || (list[len(list)-1] == moreAudited) != (n > maxAudited) {
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

// A session that goes on elsewhere has not ended, and what it did here with the network is written down.
func TestAuditOfLeft(t *testing.T) {
	for _, uses := range []bool{false, true} {
		log := audit.In(t.TempDir())
		a := &audited{log: log, tell: func(e Event) { t.Errorf("%+v", e) }, session: true, used: map[string][]string{}, refused: map[string]int{}, first: map[string]string{}}
		want := "[]"
		if uses {
			a.decided(netstack.Decision{Name: "good.example", Verdict: netstack.Allowed, Secrets: []string{"KEY"}})
			a.decided(netstack.Decision{Name: "bad.example", Verdict: netstack.Denied, Proto: "tcp"})
			want = "[secret.used net.refused]"
		}
		a.left()
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

// What a caller was refused is written down: without values of secrets, bounded, and not each time
// of a caller that does nothing else.
func TestAttackAuditRefusals(t *testing.T) {
	rt, err := Open(Options{Home: testdir.Private(t), Events: func(e Event) { t.Errorf("%+v", e) }})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	const value = "a-value-of-a-secret"
	long := strings.Repeat("x", 2*maxReason) + ".example/"
	for range 100 {
		for _, req := range []Request{{Code: "1", AllowNet: []string{value + "!"}, Secrets: map[string]string{"KEY": value}}, {Code: "1", AllowNet: []string{long}}} {
			caller := Caller{Via: ViaHTTP, Name: "alice"}
			if len(req.Secrets) > 0 {
				caller.Name = "bob"
			}
			if _, err := rt.RunFor(t.Context(), caller, req, IO{}); err == nil {
				t.Fatal("it runs")
			}
		}
	}
	var got []string
	if err := rt.Audit().Read(func(_ int64, line []byte) error {
		var e audit.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		got = append(got, fmt.Sprint(e.Kind, " of ", e.Caller, " via ", e.Via))
		if strings.Contains(string(line), value) || len(line) > 2*maxReason {
			t.Errorf("%s", line)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "entries about two callers' 200 refusals", "[run.refused of bob via http run.refused of alice via http]", fmt.Sprint(got))
	var r refusals
	begin := time.Now()
	for i := range 10 {
		if _, now := r.count("a", begin.Add(time.Duration(i)*time.Second)); now != (i == 0) {
			t.Errorf("refusal %d: %t", i, now)
		}
	}
	if leftOut, now := r.count("a", begin.Add(auditPeriod)); leftOut != 9 || !now {
		t.Errorf("%d %t", leftOut, now)
	}
	for i := range 3 * maxRefused {
		r.count(fmt.Sprint(i), begin)
	}
	attack.Check(t, "callers whose refusals are counted are bounded", "true", fmt.Sprint(len(r.seen) <= maxRefused))
}

// A run that reached bounds says which.
func TestAuditLimits(t *testing.T) {
	for want, res := range map[string]*Result{
		"[]": {}, "[timeoutMs]": {TimedOut: true}, "[memoryMb outputBytes]": {OOM: true, Truncated: true}, "[maxArtifactBytes]": {ArtifactsRefused: make([]record.Refusal, 1)},
	} {
		for _, session := range []bool{false, true} {
			log := audit.In(t.TempDir())
			a := &audited{log: log, session: session, tell: func(e Event) { t.Errorf("%+v", e) }}
			a.started(Policy{})
			a.ended(res)
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
