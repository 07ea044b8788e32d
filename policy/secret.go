package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// SecretRule is one --secret: NAME, or NAME@HOST[,HOST…].
type SecretRule struct {
	// Name is that of the environment variable that the code finds it in.
	Name string
	// Hosts are the hosts that the value is bound to, as NetRule writes them, sorted and
	// joined by commas: it is put into requests to them and never enters the machine, where the
	// code has a placeholder. "" is a secret that the code itself gets.
	Hosts string
}

// maxSecretHosts bounds the hosts of one secret.
const maxSecretHosts = 64

// ParseSecret reads NAME or NAME@HOST[,HOST…], where HOST may be *.DOMAIN.
func ParseSecret(s string) (SecretRule, error) {
	name, list, bound := strings.Cut(s, "@")
	r := SecretRule{}
	var err error
	if r.Name, err = parseName(name); err != nil || !bound {
		return r, err
	}
	hosts := strings.Split(list, ",")
	if len(hosts) > maxSecretHosts {
		return SecretRule{}, fmt.Errorf("has %d hosts: %d is the most", len(hosts), maxSecretHosts)
	}
	for i, host := range hosts {
		rule, err := ParseNetRule(host)
		if err == nil && (rule.Addr.IsValid() || rule.Port != 0) {
			err = errors.New("is no host name: use NAME@HOST, without a port")
		}
		if err != nil {
			return SecretRule{}, fmt.Errorf("has a host %.100q that %w", host, err)
		}
		hosts[i] = rule.String()
	}
	r.Hosts = joinHosts(hosts)
	return r, nil
}

func joinHosts(hosts []string) string {
	slices.Sort(hosts)
	return strings.Join(slices.Compact(hosts), ",")
}

// Bound returns the hosts; none is a secret that the code itself gets.
func (r SecretRule) Bound() []string {
	if r.Hosts == "" {
		return nil
	}
	return strings.Split(r.Hosts, ",")
}

// String is what ParseSecret reads.
func (r SecretRule) String() string {
	if r.Hosts == "" {
		return r.Name
	}
	return r.Name + "@" + r.Hosts
}

// MarshalText is String.
func (r SecretRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is ParseSecret.
func (r *SecretRule) UnmarshalText(text []byte) (err error) {
	*r, err = ParseSecret(string(text))
	return err
}

// intersect is what two rules both allow: a secret that one of them binds is bound.
func (r SecretRule) intersect(o SecretRule) (SecretRule, bool) {
	switch {
	case r.Name != o.Name:
		return SecretRule{}, false
	case o.Hosts == "":
		return r, true
	case r.Hosts == "":
		return o, true
	}
	var both []string
	for _, a := range r.Bound() {
		for _, b := range o.Bound() {
			mine, _ := ParseNetRule(a)
			its, _ := ParseNetRule(b)
			if host, ok := mine.intersect(its); ok {
				both = append(both, host.String())
			}
		}
	}
	return SecretRule{r.Name, joinHosts(both)}, len(both) > 0
}

// mergeSecrets has each name once, with all of its hosts; one that is not bound stays so.
func mergeSecrets(list []SecretRule) []SecretRule {
	out := []SecretRule{}
	for _, r := range list {
		i := slices.IndexFunc(out, func(o SecretRule) bool { return o.Name == r.Name })
		switch {
		case i < 0:
			out = append(out, r)
		case r.Hosts == "" || out[i].Hosts == "":
			out[i].Hosts = ""
		default:
			out[i].Hosts = joinHosts(append(out[i].Bound(), r.Bound()...))
		}
	}
	return out
}
