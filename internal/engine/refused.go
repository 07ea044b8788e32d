package engine

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
)

// refused remembers the first connection that a run was refused, or that failed. mu guards first.
type refused struct {
	mu    sync.Mutex
	first *netstack.Decision
}

// see notes a decision of the network. A name that is no host's is not noted, since the guest chose its words; nor is a
// question of another type about a host that a rule allows.
func (r *refused) see(d netstack.Decision) {
	switch {
	case d.Verdict == netstack.Allowed, d.Host() == "":
		return
	case d.Proto == "tcp", d.Proto == "dns" && d.Rule == "":
	default:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first == nil {
		r.first = &d
	}
}

// hint says which host was not reached, why, and what allows it; "" if all were.
func (r *refused) hint(granted policy.Effective, denials []policy.Denial) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first == nil {
		return ""
	}
	d := r.first
	name := d.Host()
	host := name
	if d.Port != 0 && d.Port != 80 && d.Port != 443 {
		host = fmt.Sprintf("%s:%d", name, d.Port)
	}
	if !strings.HasPrefix(d.Cause(), "no rule") {
		return fmt.Sprintf("%s was not reached: %s", host, d.Cause())
	}
	asked := slices.IndexFunc(denials, func(one policy.Denial) bool {
		return one.Field == "allowNet" && (one.Requested == host || one.Requested == name)
	})
	if asked >= 0 {
		return fmt.Sprintf(
			"%s was not reached: its allowNet %s by %s",
			host,
			denials[asked].Reason,
			denials[asked].Rule,
		)
	}
	what := "the run has no network"
	if policy.Reaches(granted) {
		what = d.Cause()
	}
	return fmt.Sprintf("%s was not reached: %s; --allow-net %[1]s asks for it (over MCP allowNet)", host, what)
}
