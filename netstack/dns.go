package netstack

import (
	"golang.org/x/net/dns/dnsmessage"
)

const (
	dnsPort = 53
	// maxDNSQuery bounds a question: a name has at most 255 bytes, and a resolver adds an EDNS record.
	maxDNSQuery = 512
	// dnsTTL is short: an answer is valid for the whole run, and caching in the guest does no harm.
	dnsTTL = 60
)

// answerDNS answers one query: a synthetic address for a name that a rule allows, NXDOMAIN for every other name.
// There is no recursion and no other record type, so no data can leave in a question or enter in an answer. A
// packet that is not a query gets no answer.
func answerDNS(f *filter, known *names, body []byte) (answer []byte, decision *Decision) {
	deny := func(reason string) *Decision { return &Decision{Proto: "dns", Verdict: Denied, Reason: reason} }
	if len(body) > maxDNSQuery {
		return nil, deny("query too long")
	}
	var p dnsmessage.Parser
	h, err := p.Start(body)
	if err != nil || h.Response || h.OpCode != 0 {
		return nil, deny("not a query")
	}
	q, err := p.Question()
	if err != nil {
		return nil, deny("not a query")
	}
	if _, err := p.Question(); err == nil {
		return nil, deny("more than one question")
	}
	d := &Decision{Proto: "dns", Name: printable(q.Name.String()), Verdict: Denied, Reason: noRule}
	reply := dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true,
		RCode: dnsmessage.RCodeNameError}
	var resource *dnsmessage.AResource
	name, ok := normalName(q.Name.String())
	if !ok {
		d.Reason = "not a host name"
	} else if r := f.query(name); r.rule != nil && q.Class == dnsmessage.ClassINET {
		addr, ok := known.addr(name)
		switch {
		case !ok:
			d.Reason = "too many names"
		case q.Type == dnsmessage.TypeA:
			resource = &dnsmessage.AResource{A: addr.As4()}
			fallthrough
		case q.Type == dnsmessage.TypeAAAA: // the guest has no IPv6: the name exists, without an address
			reply.RCode = dnsmessage.RCodeSuccess
			d.Verdict, d.Rule, d.Reason, d.Addr = Allowed, r.rule.Text, "", ""
			if resource != nil {
				d.Addr = addr.String()
			}
		default:
			reply.RCode = dnsmessage.RCodeSuccess // no data of that type
			d.Rule, d.Reason = r.rule.Text, "only addresses are answered"
		}
	}
	b := dnsmessage.NewBuilder(nil, reply)
	if b.StartQuestions() != nil || b.Question(q) != nil {
		return nil, deny("not a query")
	}
	if resource != nil {
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
		if b.StartAnswers() != nil || b.AResource(head, *resource) != nil {
			return nil, deny("not a query")
		}
	}
	if answer, err = b.Finish(); err != nil {
		return nil, deny("not a query")
	}
	return answer, d
}
