package unitask

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/unitask/unitask/audit"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
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
