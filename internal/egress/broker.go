package egress

import (
	"slices"

	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
)

// BrokerRules returns the rules by method and path in the broker's form; none if no network exists that they could
// apply to.
func BrokerRules(granted policy.Effective) (list []broker.Rule) {
	if !policy.Reaches(granted) {
		return nil
	}
	for _, r := range granted.AllowHTTP {
		rule := broker.Rule{Name: r.Name(), Set: r.Set, Host: broker.Host(r.Host.String()), Methods: r.Listed(), Path: r.Path,
			Deny: r.Deny, Audit: r.Audit}
		switch {
		case r.Set > 0:
			rule.Remedy = "a [[net.rule]] of the ceiling decides that"
		case !r.Deny:
			rule.Remedy = "--allow-http 'REQUEST' asks for it (over MCP allowHttp)"
		}
		list = append(list, rule)
	}
	return list
}

// BoundSecrets returns a secret in the broker's form: one entry for all hosts with the same places.
func BoundSecrets(s policy.SecretRule, value string) (list []broker.Secret) {
	for _, b := range s.Bindings() {
		secret := broker.Secret{Name: s.Name, Value: value, Headers: b.Headers}
		for _, place := range b.In {
			secret.In = append(secret.In, broker.Place(place))
		}
		if b.Pass {
			secret.Misdirected = broker.Pass
		}
		at := slices.IndexFunc(list, func(o broker.Secret) bool {
			return slices.Equal(o.In, secret.In) && slices.Equal(o.Headers, secret.Headers)
		})
		if at < 0 {
			list, at = append(list, secret), len(list)
		}
		list[at].Hosts = append(list[at].Hosts, broker.Host(b.Host.String()))
	}
	return list
}
