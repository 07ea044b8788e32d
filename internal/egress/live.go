package egress

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// MaxPolicyChanges bounds the changes of one run.
const MaxPolicyChanges = 64

// LiveRules holds the network rules that may change during a run.
type LiveRules struct {
	Ceiling *policy.Ceiling
	Fixed   bool // it installs packages, under unitask's own policy
	// Requests are the run's initial rules by method and path. Its broker enforces them, if it has one, and accepts no
	// others.
	Requests []policy.HTTPRule
	Brokered bool

	sync.Mutex       // locked by callers of Rules, Opened and Apply
	Allow, Ask, Deny []policy.NetRule
	Taken            []run.PolicyChange // the changes that led to these rules
}

// Begin stores the run's initial grants.
func (l *LiveRules) Begin(granted policy.Effective) {
	l.Requests, l.Brokered = granted.AllowHTTP, policy.Reaches(granted)
}

// Copy returns a copy for a fork.
func (l *LiveRules) Copy() *LiveRules {
	l.Lock()
	defer l.Unlock()
	return &LiveRules{
		Ceiling:  l.Ceiling,
		Fixed:    l.Fixed,
		Requests: l.Requests,
		Brokered: l.Brokered,
		Allow: slices.Clone(
			l.Allow,
		),
		Ask:   slices.Clone(l.Ask),
		Deny:  slices.Clone(l.Deny),
		Taken: slices.Clone(l.Taken),
	}
}

// Rules returns the current rules of a network with the initial grants. The caller holds l.
func (l *LiveRules) Rules(upstream netstack.Upstream, granted policy.Effective) []netstack.Rule {
	granted.AllowNet = slices.Concat(granted.AllowNet, l.Allow)
	granted.Ask = slices.Concat(granted.Ask, l.Ask)
	cfg, _ := Network(upstream, granted)
	for _, r := range l.Deny {
		cfg.Rules = append(
			cfg.Rules,
			netstack.Rule{
				Text:     "deny " + r.String(),
				Host:     r.Host,
				Wildcard: r.Wildcard,
				Addr:     r.Addr,
				Port:     r.Port,
				Deny:     true,
			},
		)
	}
	return cfg.Rules
}

// Opened reports whether a change has ever allowed a host, even if a later one denied it. The caller holds l.
func (l *LiveRules) Opened() bool {
	return slices.ContainsFunc(l.Taken, func(c run.PolicyChange) bool { return len(c.AllowNet) > 0 })
}

// Apply applies a change, completely or not at all. The caller holds l.
func (l *LiveRules) Apply(c run.PolicyChange) error {
	bad := func(field, value, reason string) error {
		return policy.Bad(field, fmt.Sprintf("%.100q", value), "%s", reason)
	}
	if len(c.AllowNet)+len(c.DenyNet) == 0 {
		return bad("allowNet", "", "is empty, and so is denyNet: nothing would change")
	}
	if l.Fixed {
		return errors.New("it installs packages: its policy does not change")
	}
	if len(l.Taken) >= MaxPolicyChanges {
		return fmt.Errorf("its policy was changed %d times, which is the most", len(l.Taken))
	}
	// A denial is parsed like a request.
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
	granted, denials, err := policy.Resolve(policy.Request{AllowNet: c.AllowNet}, l.Ceiling)
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
	if err := l.enforced(slices.Concat(granted.AllowNet, granted.Ask), granted.AllowHTTP); err != nil {
		return err
	}
	deny := slices.DeleteFunc(
		slices.Clone(l.Deny),
		func(r policy.NetRule) bool { return slices.Contains(wanted.AllowNet, r) },
	)
	without := func(list, more []policy.NetRule) (out []policy.NetRule) {
		for _, r := range slices.Concat(list, more) {
			if !slices.Contains(out, r) && !slices.Contains(denied.AllowNet, r) {
				out = append(out, r)
			}
		}
		return out
	}
	allow, ask := without(l.Allow, granted.AllowNet), without(l.Ask, granted.Ask)
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
	l.Allow, l.Ask, l.Deny, l.Taken = allow, ask, deny, append(l.Taken, c)
	return nil
}

// enforced returns an error for a host whose requests a rule restricts, if no broker enforces that rule.
func (l *LiveRules) enforced(hosts []policy.NetRule, ceiling []policy.HTTPRule) error {
	for _, rule := range slices.Concat(l.Requests, ceiling) {
		held := l.Brokered && slices.ContainsFunc(l.Requests, func(have policy.HTTPRule) bool {
			have.Set = rule.Set // the number of a ceiling's set depends on the request
			return have == rule
		})
		for _, host := range hosts {
			if !held && rule.Concerns(host) {
				return fmt.Errorf(
					"%s: the rule %q about its requests needs a run that began with a network: start one with --allow-net",
					host,
					rule.Name(),
				)
			}
		}
	}
	return nil
}

// Renew replaces the ceiling that changes must fit, if all earlier changes fit the new one.
func (l *LiveRules) Renew(ceiling *policy.Ceiling) error {
	l.Lock()
	defer l.Unlock()
	again := &LiveRules{Ceiling: ceiling, Requests: l.Requests, Brokered: l.Brokered}
	for _, c := range l.Taken {
		if err := again.Apply(c); err != nil {
			return err
		}
	}
	for _, r := range slices.Concat(l.Allow, again.Ask) {
		if !slices.Contains(again.Allow, r) && !slices.Contains(l.Ask, r) {
			return fmt.Errorf("%s: the ceiling has it asked about now", r)
		}
	}
	l.Ceiling = ceiling
	return nil
}
