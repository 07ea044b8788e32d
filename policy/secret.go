package policy

import (
	"fmt"
	"slices"
	"strings"
)

// SecretRule is one --secret: NAME, or NAME@HOST[,HOST…].
type SecretRule struct {
	// Name is the name of the environment variable that holds it for the code.
	Name string
	// Hosts are the hosts that the value is bound to, in Binding's form, each once, sorted and joined by commas.
	// The value is put into requests to them and never enters the machine, where the code has a placeholder. ""
	// means that the code itself gets the secret.
	Hosts string
}

// maxSecretHosts bounds the hosts of one secret.
const maxSecretHosts = 64

// ParseSecret parses NAME or NAME@HOST[:PLACE[+PLACE…]][,HOST…]; HOST may be *.DOMAIN. A place is one of Places,
// header.NAME for one field, or pass (Binding.Pass), which applies to all hosts of the secret.
func ParseSecret(s string) (SecretRule, error) {
	name, list, bound := strings.Cut(s, "@")
	r := SecretRule{}
	var err error
	if r.Name, err = parseName(name); err != nil || !bound {
		return r, err
	}
	if strings.Contains(list, "@") { // before the split: a password may have a comma
		return SecretRule{}, fmt.Errorf("has a host %s that %w", quoted(withoutLogin(list)), errLogin)
	}
	hosts := strings.Split(list, ",")
	if len(hosts) > maxSecretHosts {
		return SecretRule{}, fmt.Errorf("has %d hosts: %d is the most", len(hosts), maxSecretHosts)
	}
	var bindings []Binding
	pass := false
	for _, host := range hosts {
		b, err := parseBinding(host)
		if err != nil {
			return SecretRule{}, fmt.Errorf("has a host %s that %w", quoted(host), err)
		}
		pass = pass || b.Pass
		bindings = append(bindings, b)
	}
	for i := range bindings {
		bindings[i].Pass = pass
	}
	r.Hosts = joinBindings(bindings)
	return r, nil
}

// Bound returns the hosts in Binding's form; an empty list means that the code itself gets the secret.
func (r SecretRule) Bound() []string {
	if r.Hosts == "" {
		return nil
	}
	return strings.Split(r.Hosts, ",")
}

// Bindings returns the hosts, and the places in requests to each for the value.
func (r SecretRule) Bindings() (list []Binding) {
	for _, text := range r.Bound() {
		b, err := parseBinding(text)
		if err != nil { // Hosts was not made by ParseSecret
			continue
		}
		list = append(list, b)
	}
	return list
}

// String returns the form that ParseSecret reads.
func (r SecretRule) String() string {
	if r.Hosts == "" {
		return r.Name
	}
	return r.Name + "@" + r.Hosts
}

// MarshalText returns String's form.
func (r SecretRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses like ParseSecret.
func (r *SecretRule) UnmarshalText(text []byte) (err error) {
	*r, err = ParseSecret(string(text))
	return err
}

// intersect returns what two rules both allow: a secret that one of them binds stays bound.
func (r SecretRule) intersect(o SecretRule) (SecretRule, bool) {
	switch {
	case r.Name != o.Name:
		return SecretRule{}, false
	case o.Hosts == "":
		return r, true
	case r.Hosts == "":
		return o, true
	}
	var both []Binding
	for _, a := range r.Bindings() {
		for _, b := range o.Bindings() {
			if one, ok := a.intersect(b); ok {
				both = append(both, one)
			}
		}
	}
	return SecretRule{r.Name, joinBindings(both)}, len(both) > 0
}

// mergeSecrets merges rules to one for each name, with all of its hosts; an unbound secret stays unbound.
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
			out[i].Hosts = joinBindings(append(out[i].Bindings(), r.Bindings()...))
		}
	}
	return out
}
