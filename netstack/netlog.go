package netstack

import (
	"maps"
	"strconv"
	"sync"
	"time"
)

// Verdict is what became of a request. The zero value is a denial.
type Verdict int

const (
	Denied Verdict = iota
	Allowed
)

func (v Verdict) String() string {
	if v == Allowed {
		return "allowed"
	}
	return "denied"
}

// MarshalText gives the verdict's name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads it; what it does not know is a denial.
func (v *Verdict) UnmarshalText(text []byte) error {
	*v = Denied
	if string(text) == Allowed.String() {
		*v = Allowed
	}
	return nil
}

// Decision is one line of the netlog.
type Decision struct {
	Time       time.Time `json:"time"`
	Proto      string    `json:"proto"` // dns, tcp; http for a request that the broker read
	Name       string    `json:"name,omitempty"`
	Addr       string    `json:"addr,omitempty"`
	Port       uint16    `json:"port,omitempty"`
	Verdict    Verdict   `json:"verdict"`
	Rule       string    `json:"rule,omitempty"` // the rule that allowed it, or by method and path refused it
	Reason     string    `json:"reason,omitempty"`
	Dialled    string    `json:"dialled,omitempty"` // ADDRESS:PORT, or "proxy HOST:PORT"
	BytesUp    int64     `json:"bytesUp,omitempty"` // from the guest
	BytesDown  int64     `json:"bytesDown,omitempty"`
	DurationMs int64     `json:"durationMs,omitempty"`

	// Of a request that the broker read, as the guest made it: placeholders, no values. Its
	// bytes are those of the bodies, which are among its connection's.
	Method   string   `json:"method,omitempty"`
	Path     string   `json:"path,omitempty"`
	ALPN     string   `json:"alpn,omitempty"`     // that both sides speak; "" in the clear, or where the guest offers none
	Status   int      `json:"status,omitempty"`   // that the guest saw
	Secrets  []string `json:"secrets,omitempty"`  // whose values went out
	Redacted int      `json:"redacted,omitempty"` // how often a value came back
	Exposed  []string `json:"exposed,omitempty"`  // whose values came back to a request that did not carry them
}

// Drop is a kind of frame that is dropped without a line in the netlog. The
// kinds are constants: a guest can't make more of them.
type Drop string

const (
	DropRunt      Drop = "runt"      // too short for its headers
	DropMalformed Drop = "malformed" // lengths or checksum wrong
	DropSource    Drop = "source"    // from an address that is not the guest's
	DropMulticast Drop = "multicast" // to nobody we know
	DropTarget    Drop = "target"    // TCP to an address that nobody can have
	DropEtherType Drop = "ethertype" // neither IPv4 nor ARP
	DropIPv6      Drop = "ipv6"
	DropOptions   Drop = "ipOptions"
	DropFragment  Drop = "fragment"
	DropICMP      Drop = "icmp"
	DropProtocol  Drop = "protocol" // neither TCP, UDP nor ICMP
	DropUDP       Drop = "udp"      // to anything but our DHCP and DNS
	DropARP       Drop = "arp"      // not a question for the gateway
	DropDHCP      Drop = "dhcp"
	DropDNS       Drop = "dns"    // queries beyond the rate
	DropCut       Drop = "cut"    // connections and queries after Cut
	DropOut       Drop = "unread" // answers the guest did not read
	DropLog       Drop = "netlog" // decisions beyond maxDecisions, or after Close
	DropCapture   Drop = "pcap"   // frames that the capture had no room for: see Capture
)

// maxDecisions bounds the netlog of one run; further ones are counted.
const maxDecisions = 10_000

// maxLogged bounds a text of the guest's in the netlog.
const maxLogged = 300

// printable is a text of the guest's or of a server's as it may be logged: cut, and
// with what is not plain shown as escapes.
func printable(s string) string {
	if len(s) > maxLogged {
		s = s[:maxLogged]
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

// netlog counts drops, and hands decisions to the goroutine that writes them.
type netlog struct {
	now   func() time.Time
	lines *spool[Decision]

	mu      sync.Mutex
	decided int
	drops   map[Drop]uint64
}

func newNetlog(sink func(Decision), now func() time.Time) *netlog {
	return &netlog{now: now, lines: newSpool(maxDecisions, sink), drops: map[Drop]uint64{}}
}

func (l *netlog) drop(d Drop) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drops[d]++
}

func (l *netlog) counts() map[Drop]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.drops)
}

// decide never blocks.
func (l *netlog) decide(d Decision) {
	d.Time = l.now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.decided++; l.decided > maxDecisions || !l.lines.put(d, 1) {
		l.drops[DropLog]++
	}
}
