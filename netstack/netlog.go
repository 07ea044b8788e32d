package netstack

import (
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Verdict is the decision on a request. The zero value is a denial.
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

// MarshalText returns the verdict's name.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText parses a verdict; an unknown text is a denial.
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
	Rule       string    `json:"rule,omitempty"` // the rule that allowed it, or refused it by method and path
	Reason     string    `json:"reason,omitempty"`
	Dialled    string    `json:"dialled,omitempty"` // ADDRESS:PORT, or "proxy HOST:PORT"
	BytesUp    int64     `json:"bytesUp,omitempty"` // from the guest
	BytesDown  int64     `json:"bytesDown,omitempty"`
	DurationMs int64     `json:"durationMs,omitempty"`

	// For a request that the broker read, as the guest sent it: placeholders, no values. Its byte counts are
	// those of the bodies, and the connection's counts include them.
	Method   string   `json:"method,omitempty"`
	Path     string   `json:"path,omitempty"`
	ALPN     string   `json:"alpn,omitempty"`     // spoken by both sides; "" without TLS, or if the guest offers none
	Status   int      `json:"status,omitempty"`   // as the guest saw it
	Secrets  []string `json:"secrets,omitempty"`  // whose values were sent
	Redacted int      `json:"redacted,omitempty"` // how often a value was replaced in the answer
	Exposed  []string `json:"exposed,omitempty"`  // whose values were in the answer, but not in the request

	// sent means that the server received some of the request, even if it then failed: this is not a refusal.
	sent bool

	// quotes means that the reason quotes the guest.
	quotes bool

	// Failure tells why it was denied; "" is FailurePolicy. It is not part of the netlog's lines.
	Failure Failure `json:"-"`

	// Count, if not 0, is the number of further similar requests that this line represents; it shows the last of
	// them.
	Count int `json:"count,omitempty"`
}

// Host returns the name in its normal form, or "" if it is not a host name. A guest may ask for a name that is a
// sentence: messages to people or models about a connection must contain only host names.
func (d Decision) Host() string {
	name, _ := normalName(d.Name)
	if strings.HasPrefix(name, "-") || strings.Contains(name, ".-") { // we tell people to type it
		return ""
	}
	return name
}

// Cause returns the reason without quotes from the guest.
func (d Decision) Cause() string {
	if d.quotes {
		return "what the code sent was refused"
	}
	return d.Reason
}

// Failure is the kind of a denial or failure.
type Failure string

const (
	FailurePolicy  Failure = "policy"  // no rule allows it, or one forbids it
	FailureName    Failure = "name"    // allowed, but the name can't be resolved
	FailureAddress Failure = "address" // allowed, but the name leads to an address that is not public
	FailureServer  Failure = "server"  // allowed, but the server refused the connection or did not answer
)

// Unruled reports whether a request was denied because no rule allows it.
func (d Decision) Unruled() bool {
	return d.Verdict == Denied && strings.HasPrefix(d.Reason, noRule[:len("no rule")])
}

// Drop is a kind of frame that is dropped without a line in the netlog. The kinds are constants: a guest can't
// create more.
type Drop string

const (
	DropRunt      Drop = "runt"      // too short for its headers
	DropMalformed Drop = "malformed" // lengths or checksum wrong
	DropSource    Drop = "source"    // from an address that is not the guest's
	DropMulticast Drop = "multicast" // to an unknown address
	DropTarget    Drop = "target"    // TCP to an address that no host can have
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
	DropOut       Drop = "unread" // answers that the guest did not read
	DropLog       Drop = "netlog" // lines without room, or after Close
	DropCapture   Drop = "pcap"   // frames without room in the capture: see Capture
)

// Refusals must not use up the room for what the guest did. So there are two classes of lines. Connections and
// requests that were allowed, or sent and then failed, all have a line: when their room is used up, the network
// is cut. Other lines (refusals and name lookups) are combined with similar ones into one line with a count.
const (
	// maxUses bounds the lines of allowed requests, for all networks of a run.
	maxUses = 100_000
	// maxRefusals bounds the other lines, of one network; further ones are counted by protocol.
	maxRefusals = 5_000
	// maxAlike bounds the similar lines that are written separately.
	maxAlike = 100
	// maxKinds bounds the kinds of lines that are distinguished.
	maxKinds = 2_000
	// maxWaiting bounds the lines that wait for the disk. Refusals get half of it.
	maxWaiting = 10_000
)

// ProtoNetlog is the protocol of a line about the log itself: the network was cut, because there was no room.
const ProtoNetlog = "netlog"

// maxLogged bounds a text from the guest in the netlog.
const maxLogged = 300

// printable returns a text from the guest or a server in a form to log: cut, with special characters escaped.
func printable(s string) string {
	if len(s) > maxLogged {
		s = s[:maxLogged]
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

// netlog counts drops, and passes decisions to the goroutine that writes them.
type netlog struct {
	now   func() time.Time
	tally func(Decision) // gets every decision, also without room for a line; nil discards
	cut   func()         // cuts the network without blocking; set once, before decide is called
	lines *spool[Decision]

	mu       sync.Mutex
	uses     *atomic.Int64 // lines of allowed connections
	refusals int           // other lines
	kinds    map[lineKind]*alike
	full     bool // no room for what was allowed, or no line can be written
	drops    map[Drop]uint64
}

// lineKind is the common part of similar lines.
type lineKind struct {
	proto, name, addr string
	port              uint16
	verdict           Verdict
	rule, reason      string
	method            string
}

// alike counts the lines of a kind.
type alike struct {
	seen, more int
	last       Decision
}

func newNetlog(sink, tally func(Decision), lost func() error, uses *atomic.Int64, now func() time.Time) *netlog {
	if tally == nil {
		tally = func(Decision) {}
	}
	l := &netlog{now: now, tally: tally, cut: func() {}, uses: uses, kinds: map[lineKind]*alike{},
		drops: map[Drop]uint64{}}
	write := sink
	if sink != nil && lost != nil {
		write = func(d Decision) {
			if sink(d); lost() != nil {
				l.end("the log can't be written: the network is cut")
			}
		}
	}
	l.lines = newSpool(maxWaiting, write)
	return l
}

// end cuts the network, and logs why.
func (l *netlog) end(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLocked(why)
}

func (l *netlog) endLocked(why string) {
	if l.full {
		return
	}
	l.full = true
	last := Decision{Time: l.now().UTC(), Proto: ProtoNetlog, Verdict: Denied, Reason: why}
	l.lines.force(last)
	l.cut()
	l.tally(last)
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

// decide logs a decision. It never blocks.
func (l *netlog) decide(d Decision) {
	d.Time = l.now().UTC()
	l.tally(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.Verdict == Allowed && d.Proto != "dns" || d.sent || len(d.Secrets)+len(d.Exposed) > 0 {
		l.use(d)
	} else {
		l.refusal(d)
	}
}

// use writes the line of an allowed request.
func (l *netlog) use(d Decision) {
	switch {
	case l.full:
		l.drops[DropLog]++
		return
	case l.uses.Add(1) <= maxUses && l.lines.put(d, 1):
		return
	}
	l.drops[DropLog]++
	l.endLocked("there is no room for more lines of the log: the network is cut")
}

// refusal writes the line of a denied request or a name lookup, or counts it.
func (l *netlog) refusal(d Decision) {
	kind := lineKind{d.Proto, d.Name, d.Addr, d.Port, d.Verdict, d.Rule, d.Reason, d.Method}
	a := l.kinds[kind]
	if a == nil && len(l.kinds) >= maxKinds {
		kind = lineKind{proto: d.Proto, verdict: d.Verdict, reason: "others"}
		a = l.kinds[kind]
		d = Decision{Time: d.Time, Proto: d.Proto, Verdict: d.Verdict, Reason: "others, of more kinds than are told apart"}
	}
	if a == nil {
		a = &alike{}
		l.kinds[kind] = a
	}
	a.seen++
	if a.seen <= maxAlike && l.refusals < maxRefusals && l.lines.put(d, 2) {
		l.refusals++
		return
	}
	a.more, a.last = a.more+1, d
}

// close writes the counts, and waits as long as spool.close does.
func (l *netlog) close() {
	l.mu.Lock()
	for _, a := range l.kinds {
		if a.more > 0 {
			a.last.Count = a.more
			l.lines.force(a.last)
		}
	}
	clear(l.kinds)
	l.mu.Unlock()
	l.lines.close()
}
