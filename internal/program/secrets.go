package program

import (
	"crypto/x509"
	"fmt"

	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// Give gives the code its granted secrets, as they are or behind a broker. The broker also
// judges requests by the rules by method and path.
func (p *Program) Give(granted policy.Effective, values map[string]string) error {
	p.Secrets = map[string]string{}
	var bound []broker.Secret
	for _, s := range granted.Secrets {
		p.Secrets[s.Name] = values[s.Name]
		if s.Hosts == "" {
			p.Exposed++
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
	roots.AppendCertsFromPEM([]byte(p.ca)) // servers are verified as the code would verify them
	p.Broker, err = broker.New(broker.Config{Secrets: bound, Rules: rules, Roots: roots, Kept: p.Kept,
		MaxSigned: granted.Timeout})
	if err != nil {
		return policy.Bad("secrets", fmt.Sprintf("of %d bound names", len(bound)), "%v", err)
	}
	return nil
}

// Redacted returns the secrets that the record must hide.
func (p *Program) Redacted() record.Secrets {
	list := record.Secrets{Given: map[string]string{}, Bound: map[string]string{}}
	for name, value := range p.Secrets {
		if p.Broker != nil && p.Broker.Placeholder(name) != "" {
			list.Bound[name] = value
		} else {
			list.Given[name] = value
		}
	}
	return list
}
