package netstack

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/hostname"
)

// Rule allows or denies one target. The zero value matches nothing.
type Rule struct {
	Text string // its name in the netlog
	// What the rule matches: one host, in normal form; every name below Host (Wildcard); one address; or
	// everything (Any).
	Host     string
	Wildcard bool
	Addr     netip.Addr
	Any      bool
	Port     uint16 // 0 means 80 and 443
	// Raw rules allow exactly this host and port, with any protocol and whatever address the name has. Other
	// rules must lead to a public address outside this host's networks. Their connections must use HTTP or TLS,
	// on any port, for a name that the rule allows.
	Raw bool
	// Deny forbids what the rule matches, whatever other rules allow; Port 0 then means every port.
	Deny bool
	// Ask requires approval for each connection that no other rule allows (Config.Asker).
	Ask bool
}

// loopback reports whether the rule is for the host's loopback, which the guest reaches at the gateway.
func (r *Rule) loopback() bool {
	return r.Raw && hostname.Loopback(r.Host, r.Addr)
}

// allowsName reports whether the rule matches a name in normal form.
func (r *Rule) allowsName(name string) bool {
	switch {
	case r.Any:
		return true
	case r.Host == "" || name == "":
		return false
	case r.Wildcard:
		return strings.HasSuffix(name, "."+r.Host)
	}
	return name == r.Host
}

func (r *Rule) allowsPort(port uint16) bool {
	if r.Port == 0 {
		return port == 80 || port == 443
	}
	return port == r.Port
}

// target is a guest's destination: a name or an address.
type target struct {
	name string // in normal form, or ""
	addr netip.Addr
	port uint16
}

// ruling is the filter's decision. The zero value denies.
type ruling struct {
	rule   *Rule  // nil: denied
	reason string // why it is denied
}

// filter makes the decisions. It is pure: it neither resolves nor dials, and knows nothing about frames.
type filter struct{ rules []Rule }

const (
	noRule     = "no rule allows it"
	deniedRule = "a rule denies it"
)

// denies returns the rule that forbids a target. Denying one name of the loopback denies all its names.
func (f *filter) denies(t target) *Rule {
	for i := range f.rules {
		r := &f.rules[i]
		if !r.Deny || r.Port != 0 && r.Port != t.port {
			continue
		}
		if r.allowsName(t.name) || r.Addr.IsValid() && r.Addr == t.addr ||
			hostname.Loopback(r.Host, r.Addr) && hostname.Loopback(t.name, t.addr) {
			return r
		}
	}
	return nil
}

// deniesNames reports whether some rule denies names, at a port.
func (f *filter) deniesNames(port uint16) bool {
	return slices.ContainsFunc(f.rules, func(r Rule) bool {
		return r.Deny && r.Host != "" &&
			(r.Port == 0 || r.Port == port)
	})
}

// named reports whether a rule allows a target's address by naming it.
func (f *filter) named(t target) bool {
	return slices.ContainsFunc(f.rules, func(r Rule) bool {
		return !r.Deny && r.Addr.IsValid() && r.Addr == t.addr &&
			r.allowsPort(t.port)
	})
}

// query decides about a name lookup.
func (f *filter) query(name string) ruling {
	if r := f.denies(target{name: name}); r != nil {
		return ruling{reason: deniedRule}
	}
	for i := range f.rules {
		if r := &f.rules[i]; r.allowsName(name) && !r.Deny && !r.loopback() {
			return ruling{rule: r}
		}
	}
	return ruling{reason: noRule}
}

// connect decides about a connection. A raw rule takes precedence because it demands less; a rule with Ask comes
// last.
func (f *filter) connect(t target) ruling {
	if f.denies(t) != nil {
		return ruling{reason: deniedRule}
	}
	var found *Rule
	port := false
	for i := range f.rules {
		r := &f.rules[i]
		if r.Deny || r.loopback() {
			continue
		}
		if host := r.allowsName(t.name) || (t.name == "" && (r.Any || r.Addr.IsValid() && r.Addr == t.addr)); !host {
			continue
		}
		if !r.allowsPort(t.port) {
			port = true
			continue
		}
		if found == nil || r.Raw || found.Ask && !r.Ask {
			found = r
		}
	}
	switch {
	case found != nil:
		return ruling{rule: found}
	case port:
		return ruling{reason: "no rule allows this port"}
	}
	return ruling{reason: noRule}
}

// gateway decides about a connection to the gateway's own address, which leads to a port of the host's loopback
// if a rule names that port.
func (f *filter) gateway(port uint16) ruling {
	for i := range f.rules {
		if r := &f.rules[i]; !r.Deny && r.loopback() && r.Port == port {
			if f.denies(target{name: r.Host, addr: r.Addr, port: port}) != nil {
				return ruling{reason: deniedRule}
			}
			return ruling{rule: r}
		}
	}
	return ruling{reason: noRule}
}

const maxHostName = 253 // bytes of a host's name, by RFC 1035

// normalName converts a name from the wire (DNS, SNI, Host) into normal form: lower case, no trailing dot. Names
// consist of labels of 1 to 63 letters, digits, hyphens and underscores. A text that a resolver or proxy may read as an
// address is not a name. That is everything that ends in a number (URL Standard, 3.5), like 127.1, 2130706433,
// 0x7f000001.
func normalName(s string) (string, bool) {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > maxHostName {
		return "", false
	}
	out := []byte(s)
	label := 0
	for i, c := range out {
		switch {
		case c == '.':
			if label == 0 {
				return "", false
			}
			label = 0
			continue
		case 'A' <= c && c <= 'Z':
			out[i] = c + 'a' - 'A'
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return "", false
		}
		if label++; label > 63 {
			return "", false
		}
	}
	if label == 0 {
		return "", false
	}
	if name := string(out); !hostname.Numeric(name) {
		return name, true
	}
	return "", false
}

// Decide returns the text of the rule that allows a connection to a name, or to an address if the name is "". It
// returns the reason if there is none. It judges as a Network does before it resolves the name.
func Decide(rules []Rule, name string, addr netip.Addr, port uint16) (rule, reason string) {
	f := filter{rules: rules}
	t := target{name: name, addr: addr, port: port}
	found := f.connect(t)
	if found.rule == nil && hostname.Loopback(name, addr) {
		found = f.gateway(port)
	}
	if found.rule == nil {
		return "", found.reason
	}
	return found.rule.Text, ""
}
