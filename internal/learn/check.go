package learn

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/unitask/unitask/internal/egress"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
)

// check asks the proposed ceiling about each request of each run, as a replay would. It cuts the run's own grants to
// the ceiling, and lets the network's rules decide. It leaves out requests that the ceiling does not allow.
func (l *learner) check(p *Proposal) error {
	ceiling, err := policy.ParseCeiling("the proposal", []byte(p.text()))
	if err != nil {
		return fmt.Errorf("check the proposal: %w", err)
	}
	for key := range l.tools { // the others are left out already
		if server := ceiling.ToolServer(key[0]); server != nil && server.Allows(key[1]) {
			p.Checked++
		}
	}
	all, _, err := policy.Resolve(p.request(), ceiling) // with what was refused then
	if err != nil {
		return fmt.Errorf("check the proposal: %w", err)
	}
	refused := judgeOf(all)
	for _, src := range l.sources {
		asked := policy.Asked(src.granted)
		asked = policy.Request{AllowNet: asked.AllowNet, AllowNetAny: asked.AllowNetAny, Ask: asked.Ask,
			AllowTCP: asked.AllowTCP, AllowHTTP: asked.AllowHTTP}
		granted, _, err := policy.Resolve(asked, ceiling)
		if err != nil {
			return fmt.Errorf("check the proposal with run %s: %w", src.id, err)
		}
		own := judgeOf(granted)
		for r := range src.used {
			under := own
			if r.refused {
				under = refused
			}
			if under.allows(r) {
				p.Checked++
				continue
			}
			what := r.host
			if r.method != "" {
				what = r.method + " " + r.host
			}
			l.leave(src.id, 1, what, "used, but no rule can be written that allows exactly this")
		}
	}
	return nil
}

// request asks for all of the proposal.
func (p *Proposal) request() (r policy.Request) {
	for _, line := range p.Lines {
		switch line.Key {
		case "allowNet":
			r.AllowNet = append(r.AllowNet, line.Rule)
		case "ask":
			r.Ask = append(r.Ask, line.Rule)
		case "allowTcp":
			r.AllowTCP = append(r.AllowTCP, line.Rule)
		}
	}
	return r
}

// judge has the rules of grants, as the network has them.
type judge struct {
	requests    []broker.Rule
	connections []netstack.Rule
}

func judgeOf(granted policy.Effective) judge {
	cfg, _ := egress.Network(netstack.Upstream{}, granted)
	return judge{egress.BrokerRules(granted), cfg.Rules}
}

// allows reports whether grants allow a request.
func (j judge) allows(r request) bool {
	if r.method != "" {
		allowed, _ := broker.Decide(j.requests, r.host, r.method, loggedPath(r.path))
		return allowed
	}
	if r.key == "allowTcp" {
		rule, err := policy.ParseTCPRule(r.host)
		if err != nil {
			return false
		}
		text, _ := netstack.Decide(j.connections, rule.Host, rule.Addr, rule.Port)
		return strings.HasPrefix(text, "tcp ")
	}
	name := r.host
	addr, err := netip.ParseAddr(r.host)
	if err == nil {
		name = ""
	}
	text, _ := netstack.Decide(j.connections, name, addr, r.port)
	return text != "" && (r.key != "allowNet" || !strings.HasPrefix(text, "ask "))
}

// Allows reports whether grants allow a request by HTTP or HTTPS, as the network decides, and by which rule or why not.
// host is a name in normal form or an address, and path begins with a slash.
func Allows(granted policy.Effective, method, host string, port uint16, path string) (ok bool, why string) {
	j, name := judgeOf(granted), host
	addr, err := netip.ParseAddr(host)
	if err == nil {
		name = ""
	}
	rule, reason := netstack.Decide(j.connections, name, addr, port)
	if rule == "" {
		return false, reason
	}
	if _, ruled := (&source{granted: granted}).inspected(host); !ruled || strings.HasPrefix(rule, "tcp ") {
		return true, rule
	}
	if ok, why = broker.Decide(j.requests, host, method, path); ok {
		why = rule
	}
	return ok, why
}
