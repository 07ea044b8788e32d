package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"github.com/unitask/unitask/internal/hostname"
)

// NetRule is one --allow-net: a host, an address or a wildcard, and a port.
type NetRule struct {
	// Host is a name in its normal form (lower case, ASCII by IDNA, no trailing dot). It is "" if Addr is set, and for the
	// rule that allows everything.
	Host string
	// Wildcard means every name below Host, at any depth, but not Host itself.
	Wildcard bool
	Addr     netip.Addr // of an address literal
	Port     uint16     // 0 means 80 and 443
	Any      bool       // every host (--allow-net-any)
}

// String returns the rule in its normal form, which ParseNetRule reads.
func (r NetRule) String() string {
	host := r.Host
	switch {
	case r.Any:
		host = "*"
	case r.Addr.IsValid():
		if host = r.Addr.String(); r.Addr.Is6() && r.Port != 0 {
			host = "[" + host + "]"
		}
	case r.Wildcard:
		host = "*." + host
	}
	if r.Port != 0 {
		host += ":" + strconv.Itoa(int(r.Port))
	}
	return host
}

// MarshalText returns String's form.
func (r NetRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses like ParseNetRule.
func (r *NetRule) UnmarshalText(text []byte) (err error) {
	*r, err = ParseNetRule(string(text))
	return err
}

// TCPRule is one --allow-tcp: exactly this host and port, with any protocol.
type TCPRule struct {
	Host string     // in normal form, or "" if Addr is set
	Addr netip.Addr // of an address literal
	Port uint16
}

// String returns the rule in its normal form.
func (r TCPRule) String() string {
	host := r.Host
	if r.Addr.IsValid() {
		if host = r.Addr.String(); r.Addr.Is6() {
			host = "[" + host + "]"
		}
	}
	return host + ":" + strconv.Itoa(int(r.Port))
}

// MarshalText returns String's form.
func (r TCPRule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses like ParseTCPRule.
func (r *TCPRule) UnmarshalText(text []byte) (err error) {
	*r, err = ParseTCPRule(string(text))
	return err
}

// Loopback reports whether the rule names the host's own loopback, which the guest reaches at the same port of
// its own loopback.
func (r TCPRule) Loopback() bool { return hostname.Loopback(r.Host, r.Addr) }

// parseName checks the name of a secret, which must be a name of an environment variable.
func parseName(s string) (string, error) {
	for i, c := range []byte(s) {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return "", errors.New("is not a name of an environment variable: letters, digits and _ only")
		}
	}
	if s == "" || len(s) > 256 {
		return "", errors.New("must have 1 to 256 bytes")
	}
	return s, nil
}

// profile is IDNA for lookups: mapped to lower case, checked, in ASCII.
var profile = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.StrictDomainName(true), idna.VerifyDNSLength(true))

// maxName bounds a name before IDNA processes it; in ASCII it may then have 253 bytes.
const maxName = 1024

// NormalHost returns a host name's normal form, or an error if it has none. It refuses, and does not repair, a
// name that other parsers could read differently.
func NormalHost(name string) (string, error) {
	if name == "" {
		return "", errors.New("is empty")
	}
	if len(name) > maxName {
		return "", fmt.Errorf("is longer than %d bytes", maxName)
	}
	if !utf8.ValidString(name) {
		return "", errors.New("is not UTF-8")
	}
	for _, c := range []byte(name) {
		if c <= ' ' || c == 0x7f || strings.IndexByte("%/\\@:?#[]*\"'<>|^`{}", c) >= 0 {
			return "", fmt.Errorf("holds %q", c)
		}
	}
	ascii, err := profile.ToASCII(strings.TrimSuffix(name, "."))
	if err != nil {
		return "", errors.New("is no host name")
	}
	if hostname.Numeric(ascii) {
		return "", errors.New("looks like an address and is none")
	}
	return ascii, nil
}

func splitPort(s string) (host string, port uint16, given bool, err error) {
	colon := strings.LastIndexByte(s, ':')
	switch {
	case strings.HasPrefix(s, "["):
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", 0, false, errors.New("has no ]")
		}
		host = s[1:end]
		if a, err := netip.ParseAddr(host); err != nil || !a.Is6() {
			return "", 0, false, errors.New("has no IPv6 address in its brackets")
		}
		if end == len(s)-1 {
			return host, 0, false, nil
		}
		if s[end+1] != ':' {
			return "", 0, false, errors.New("goes on after its closing bracket")
		}
		colon = end + 1
	case colon < 0 || strings.Count(s, ":") > 1: // a name, or a bare IPv6 address
		return s, 0, false, nil
	default:
		host = s[:colon]
	}
	n, err := strconv.ParseUint(s[colon+1:], 10, 16)
	if err != nil || n == 0 || s[colon+1] == '0' {
		return "", 0, false, fmt.Errorf("has port %q: use 1 to 65535", s[colon+1:])
	}
	return host, uint16(n), true, nil
}

func parseAddr(host string) (netip.Addr, bool, error) {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, false, nil
	}
	if addr.Zone() != "" {
		return netip.Addr{}, false, errors.New("has a zone")
	}
	return addr.Unmap(), true, nil
}

// webPorts are the ports of the schemes of the web.
var webPorts = map[string]string{"http": "80", "https": "443"}

var errLogin = errors.New("has a user or an @: give only the host")

// withoutScheme returns the part after the scheme of an http or https URL, and the scheme's port. It returns other
// texts unchanged, with "". It refuses a login.
func withoutScheme(s string) (rest, port string, err error) {
	scheme, rest, is := strings.Cut(s, "://")
	if !is {
		rest = s
	} else if port = webPorts[strings.ToLower(scheme)]; port == "" {
		return "", "", fmt.Errorf("has the scheme %.20q: give only the host", scheme)
	}
	if hasLogin(rest) {
		return "", "", errLogin
	}
	return rest, port, nil
}

// hasLogin reports whether a login precedes a host, even if the password contains a slash. No rule has both a port and
// a path, so a colon begins a password.
func hasLogin(s string) bool {
	host, path, _ := strings.Cut(strings.TrimLeft(s, "/"), "/")
	return strings.Contains(host, "@") || strings.Contains(host, ":") && strings.Contains(path, "@")
}

// hostOfURL returns the HOST:PORT of an http or https URL without further parts, and other texts unchanged.
func hostOfURL(s string) (string, error) {
	host, port, err := withoutScheme(s)
	if err != nil || port == "" {
		return host, err
	}
	if end := strings.IndexAny(host, "/?#"); end >= 0 && host[end:] != "/" {
		return "", fmt.Errorf("has a path: %.100q grants all of the host, and allowHttp a rule such as 'GET HOST/PATH'",
			host[:end])
	}
	host = strings.TrimSuffix(host, "/")
	if _, _, given, err := splitPort(host); given || err != nil || host == "" {
		return host, err
	}
	return host + ":" + port, nil
}

// ParseNetRule parses HOST, *.DOMAIN or an address, each optionally with :PORT, also as a URL without a path, whose
// scheme gives the port. It refuses "*" and wildcards that cover a whole public suffix.
func ParseNetRule(s string) (NetRule, error) {
	var r NetRule
	s, err := hostOfURL(s)
	if err != nil {
		return r, err
	}
	host, port, _, err := splitPort(s)
	if err != nil {
		return r, err
	}
	r.Port = port
	if addr, is, err := parseAddr(host); err != nil || is {
		r.Addr = addr
		return r, err
	}
	if rest, ok := strings.CutPrefix(host, "*"); ok {
		if rest == "" || rest == "." {
			return r, errors.New("covers every host: --allow-net-any says that")
		}
		if rest[0] != '.' {
			return r, errors.New("has a * that is no whole label")
		}
		r.Wildcard, host = true, rest[1:]
	}
	if r.Host, err = NormalHost(host); err != nil {
		return NetRule{}, err
	}
	if r.Wildcard {
		if suffix, _ := publicsuffix.PublicSuffix(r.Host); suffix == r.Host {
			return NetRule{}, fmt.Errorf("covers all of the public suffix %s: --allow-net-any says that", suffix)
		}
	}
	return r, nil
}

// ParseTCPRule parses HOST:PORT.
func ParseTCPRule(s string) (TCPRule, error) {
	s, err := hostOfURL(s)
	if err != nil {
		return TCPRule{}, err
	}
	host, port, given, err := splitPort(s)
	if err != nil {
		return TCPRule{}, err
	}
	if !given {
		return TCPRule{}, errors.New("has no port: use HOST:PORT")
	}
	r := TCPRule{Port: port}
	if addr, is, err := parseAddr(host); err != nil || is {
		r.Addr = addr
		return r, err
	}
	if r.Host, err = NormalHost(host); err != nil {
		return TCPRule{}, err
	}
	return r, nil
}

// intersect returns what two rules both allow.
func (r NetRule) intersect(o NetRule) (NetRule, bool) {
	port, ok := commonPort(r.Port, o.Port)
	if !ok {
		return NetRule{}, false
	}
	both := NetRule{Port: port}
	switch {
	case r.Any:
		both.Any, both.Host, both.Wildcard, both.Addr = o.Any, o.Host, o.Wildcard, o.Addr
	case o.Any:
		both.Host, both.Wildcard, both.Addr = r.Host, r.Wildcard, r.Addr
	case r.Addr.IsValid() || o.Addr.IsValid():
		both.Addr, ok = r.Addr, r.Addr == o.Addr
	case r.Wildcard && o.Wildcard:
		both.Wildcard = true
		switch {
		case r.Host == o.Host || strings.HasSuffix(r.Host, "."+o.Host):
			both.Host = r.Host
		case strings.HasSuffix(o.Host, "."+r.Host):
			both.Host = o.Host
		default:
			ok = false
		}
	case r.Wildcard:
		both.Host, ok = o.Host, strings.HasSuffix(o.Host, "."+r.Host)
	case o.Wildcard:
		both.Host, ok = r.Host, strings.HasSuffix(r.Host, "."+o.Host)
	default:
		both.Host, ok = r.Host, r.Host == o.Host
	}
	if !ok {
		return NetRule{}, false
	}
	return both, true
}

// commonPort intersects ports; 0 means 80 and 443.
func commonPort(a, b uint16) (uint16, bool) {
	web := func(p uint16) bool { return p == 80 || p == 443 }
	switch {
	case a == b:
		return a, true
	case a == 0 && web(b):
		return b, true
	case b == 0 && web(a):
		return a, true
	}
	return 0, false
}

// intersect returns what two rules both allow: exactly the same, or nothing. 127.0.0.1, localhost and [::1] all differ.
func (r TCPRule) intersect(o TCPRule) (TCPRule, bool) { return r, r == o }

// Covers reports whether the rule allows everything that another one allows.
func (r NetRule) Covers(o NetRule) bool {
	both, ok := r.intersect(o)
	return ok && both == o
}
