package unitask

import (
	"crypto/x509"
	"fmt"

	"github.com/unitask/unitask/internal/egress"
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
		bound = append(bound, egress.BoundSecrets(s, values[s.Name])...)
	}
	rules := egress.BrokerRules(granted)
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
