package unitask

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
)

// maxPolicyChanges bounds the changes of one run.
const maxPolicyChanges = 64

// living is what of a run's network may change while it is under way.
type living struct {
	ceiling *policy.Ceiling
	fixed   bool // it installs packages, under a policy of ours

	mu               sync.Mutex
	allow, ask, deny []policy.NetRule
	taken            []PolicyChange // that came to these
}

// copy is a fork's.
func (l *living) copy() *living {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &living{ceiling: l.ceiling, fixed: l.fixed, allow: slices.Clone(l.allow), ask: slices.Clone(l.ask), deny: slices.Clone(l.deny), taken: slices.Clone(l.taken)}
}

// rules are those of a network with what was granted at the beginning; l.mu is held.
func (l *living) rules(rt *Runtime, granted policy.Effective) []netstack.Rule {
	granted.AllowNet = slices.Concat(granted.AllowNet, l.allow)
	granted.Ask = slices.Concat(granted.Ask, l.ask)
	cfg, _ := egress.Network(rt.opts.Upstream, granted)
	for _, r := range l.deny {
		cfg.Rules = append(cfg.Rules, netstack.Rule{Text: "deny " + r.String(), Host: r.Host, Wildcard: r.Wildcard, Addr: r.Addr, Port: r.Port, Deny: true})
	}
	return cfg.Rules
}

// take takes a change, as a whole or not at all; l.mu is held.
func (l *living) take(c PolicyChange) error {
	bad := func(field, value, reason string) error {
		return policy.Bad(field, fmt.Sprintf("%.100q", value), "%s", reason)
	}
	if len(c.AllowNet)+len(c.DenyNet) == 0 {
		return bad("allowNet", "", "is empty, and so is denyNet: nothing would change")
	}
	if l.fixed {
		return errors.New("it installs packages: its policy does not change")
	}
	if len(l.taken) >= maxPolicyChanges {
		return fmt.Errorf("its policy was changed %d times, which is the most", len(l.taken))
	}
	// A denial is parsed as what is asked for is.
	denied, _, err := policy.Resolve(policy.Request{AllowNet: c.DenyNet}, nil)
	var field *policy.FieldError
	if errors.As(err, &field) {
		field.Field = "denyNet"
	}
	if err != nil {
		return err
	}
	wanted, _, err := policy.Resolve(policy.Request{AllowNet: c.AllowNet}, nil)
	if err != nil {
		return err
	}
	granted, denials, err := policy.Resolve(policy.Request{AllowNet: c.AllowNet}, l.ceiling)
	if err != nil {
		return err
	}
	for _, r := range wanted.AllowNet {
		for _, d := range denials {
			if d.Requested == r.String() {
				return fmt.Errorf("%s is beyond the ceiling: %s", r, d)
			}
		}
	}
	deny := slices.DeleteFunc(slices.Clone(l.deny), func(r policy.NetRule) bool { return slices.Contains(wanted.AllowNet, r) })
	without := func(list, more []policy.NetRule) (out []policy.NetRule) {
		for _, r := range slices.Concat(list, more) {
			if !slices.Contains(out, r) && !slices.Contains(denied.AllowNet, r) {
				out = append(out, r)
			}
		}
		return out
	}
	allow, ask := without(l.allow, granted.AllowNet), without(l.ask, granted.Ask)
	for _, r := range denied.AllowNet {
		if !slices.Contains(deny, r) {
			deny = append(deny, r)
		}
	}
	if len(allow)+len(ask) > policy.MaxRules || len(deny) > policy.MaxRules {
		return fmt.Errorf("more than %d hosts were added to what the run began with", policy.MaxRules)
	}
	if c.At.IsZero() {
		c.At = time.Now().UTC()
	}
	l.allow, l.ask, l.deny, l.taken = allow, ask, deny, append(l.taken, c)
	return nil
}

// network is the network that a machine of the run is to have now.
func (x *execution) network() machine.Config {
	l := x.code.living
	l.mu.Lock()
	defer l.mu.Unlock()
	cfg := x.config
	cfg.Network.Rules = l.rules(x.rt, x.granted)
	return cfg
}

// change changes the policy of a run whose machine is there. The network holds it when it returns.
func (a *approvals) change(c PolicyChange) error {
	l := a.x.code.living
	l.mu.Lock()
	defer l.mu.Unlock()
	a.mu.Lock()
	m := a.machine
	a.mu.Unlock()
	if m == nil {
		return errors.New("its machine has not started yet")
	}
	if err := l.take(c); err != nil {
		return err
	}
	m.SetRules(l.rules(a.x.rt, a.x.granted))
	c = l.taken[len(l.taken)-1]
	a.mu.Lock()
	a.x.res.PolicyChanges = append(a.x.res.PolicyChanges, c)
	a.mu.Unlock()
	a.x.audit.write(a.x.audit.entry(audit.PolicyChanged, c))
	if a.x.code.session == nil {
		return nil
	}
	if err := paused.Open(a.x.rt.opts.Home).WriteChanges(a.x.rec.ID, l.taken); err != nil {
		return fmt.Errorf("it holds now, and would be forgotten with the process that has the session: %w", err)
	}
	return nil
}

// SetPolicy changes the policy of a run or session of an owner ("" is the user of this process) that is
// under way in this home, in whatever process of the same user. It is not told apart whether an
// id is another owner's, has ended, or never was.
func (rt *Runtime) SetPolicy(ctx context.Context, owner, id string, c PolicyChange) error {
	none := fmt.Errorf("no run or session %.80q of yours is under way", id)
	owner = Caller{Name: owner}.WithDefaults().Name
	found, err := rt.runs.Find(id)
	if err != nil || strings.TrimSpace(id) == "" {
		return none
	}
	rec, err := rt.runs.Get(found)
	if err != nil || rec.Owner != owner {
		return none
	}
	told, err := rt.talk(ctx, filepath.Join(rt.runs.Dir(), found), approvalAsked{Policy: &c})
	if err != nil {
		return none
	}
	if told.Error != "" {
		return fmt.Errorf("run %s: %s", found, told.Error)
	}
	return nil
}
