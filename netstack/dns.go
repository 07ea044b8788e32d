package netstack

import (
	"golang.org/x/net/dns/dnsmessage"
)

const (
	dnsPort = 53
	// maxDNSQuery bounds a question: a name has at most 255 bytes, and a
	// resolver adds an EDNS record.
	maxDNSQuery = 512
)

// answerDNS answers one query: NXDOMAIN for every name that no rule allows. A
// query that is none gets no answer.
func answerDNS(body []byte) (answer []byte, decision *Decision) {
	if len(body) > maxDNSQuery {
		return nil, &Decision{Proto: "dns", Verdict: Denied, Reason: "query too long"}
	}
	var p dnsmessage.Parser
	h, err := p.Start(body)
	if err != nil || h.Response || h.OpCode != 0 {
		return nil, &Decision{Proto: "dns", Verdict: Denied, Reason: "not a query"}
	}
	q, err := p.Question()
	if err != nil {
		return nil, &Decision{Proto: "dns", Verdict: Denied, Reason: "not a query"}
	}
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{
		ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true, RCode: dnsmessage.RCodeNameError,
	})
	if b.StartQuestions() != nil || b.Question(q) != nil {
		return nil, nil
	}
	answer, err = b.Finish()
	if err != nil {
		return nil, nil
	}
	return answer, &Decision{Proto: "dns", Name: q.Name.String(), Verdict: Denied, Reason: "no rule allows it"}
}
