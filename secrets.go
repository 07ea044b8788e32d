package unitask

import (
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// give gives the code the secrets that were granted, as they are or behind a broker, which
// holds requests against the rules by method and path, too.
func (p *program) give(granted policy.Effective, values map[string]string) error {
	p.secrets = map[string]string{}
	var bound []broker.Secret
	for _, s := range granted.Secrets {
		p.secrets[s.Name] = values[s.Name]
		if s.Hosts == "" {
			p.exposed++
			continue
		}
		bound = append(bound, boundSecrets(s, values[s.Name])...)
	}
	rules := brokerRules(granted)
	if len(bound)+len(rules) == 0 {
		return nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	roots.AppendCertsFromPEM([]byte(p.ca)) // a server is verified as the code would have
	p.broker, err = broker.New(broker.Config{Secrets: bound, Rules: rules, Roots: roots, Kept: p.kept, MaxSigned: granted.Timeout})
	if err != nil {
		return policy.Bad("secrets", fmt.Sprintf("of %d bound names", len(bound)), "%v", err)
	}
	return nil
}

// redacted are the secrets as the record looks for them.
func (p *program) redacted() record.Secrets {
	list := record.Secrets{Given: map[string]string{}, Bound: map[string]string{}}
	for name, value := range p.secrets {
		if p.broker != nil && p.broker.Placeholder(name) != "" {
			list.Bound[name] = value
		} else {
			list.Given[name] = value
		}
	}
	return list
}

// brokerRules are the rules by method and path as the broker has them; none where there is no
// network that they could be about.
func brokerRules(granted policy.Effective) (list []broker.Rule) {
	if len(granted.AllowNet)+len(granted.Ask)+len(granted.AllowTCP) == 0 && !granted.AllowNetAny {
		return nil
	}
	for _, r := range granted.AllowHTTP {
		rule := broker.Rule{Name: r.Name(), Set: r.Set, Host: broker.Host(r.Host.String()), Methods: r.Listed(), Path: r.Path, Deny: r.Deny, Audit: r.Audit}
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

// boundSecrets are a secret as the broker has it: once for all hosts with the same places.
func boundSecrets(s policy.SecretRule, value string) (list []broker.Secret) {
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
