package hints

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// maxConnections limits the connections that hints mention. The netlog has all of them.
const maxConnections = 3

// Connections remembers the first connections of a run that were refused or failed, one for each host and port. The
// zero value is ready to use. mu guards seen.
type Connections struct {
	mu   sync.Mutex
	seen []netstack.Decision
}

// See notes a decision of the network. It ignores invalid host names, because the guest chose their words. It also
// ignores a DNS query of another type for an allowed host, and a request that was refused for its contents.
func (c *Connections) See(d netstack.Decision) {
	switch {
	case d.Verdict == netstack.Allowed, d.Host() == "",
		strings.HasPrefix(d.Reason, "not approved") && !d.Unasked(): // Asker.Denied reports these
		return
	case d.Proto == "tcp", d.Proto == "dns" && d.Rule == "",
		d.Proto == "http" && (d.Reason == broker.DeniedByRule || d.Reason == broker.AllowedByNone):
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	same := func(o netstack.Decision) bool { return target(o) == target(d) }
	if len(c.seen) < maxConnections && !slices.ContainsFunc(c.seen, same) {
		c.seen = append(c.seen, d)
	}
}

// Take returns the decisions since a time, and forgets all.
func (c *Connections) Take(since time.Time) []netstack.Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := slices.DeleteFunc(c.seen, func(d netstack.Decision) bool { return d.Time.Before(since) })
	c.seen = nil
	return seen
}

// target returns HOST, or HOST:PORT if the port is not 80 or 443.
func target(d netstack.Decision) string {
	if d.Port != 0 && d.Port != 80 && d.Port != 443 {
		return fmt.Sprintf("%s:%d", d.Host(), d.Port)
	}
	return d.Host()
}

// connection returns a hint: which host was not reached, why, and what allows it.
func connection(d netstack.Decision, f Facts) run.Hint {
	host := target(d)
	asks := func(flag string) string {
		if f.Session {
			return "a new session with " + flag + " may reach it"
		}
		return flag + " asks for it"
	}
	h := run.Hint{Kind: run.HintConnection, Subject: host, Cause: cmp.Or(d.Failure, netstack.FailurePolicy)}
	if h.Cause == run.CauseName && strings.HasPrefix(d.Dialled, "proxy ") { // the name of the proxy
		h.Cause = run.CauseServer
	}
	switch h.Cause {
	case run.CauseName:
		h.Text = host + " was not reached: the policy allows it, but this host can't resolve the name"
		return h
	case run.CauseServer:
		h.Text = host + " was not reached: the policy allows it, but the connection failed"
		if known := d.Cause(); known == netstack.ReasonRefused ||
			known == netstack.ReasonNoAnswer { // otherwise the words are a proxy's
			h.Text += ": " + known
		}
		return h
	case run.CauseAddress:
		h.Ask("allowTcp")
		h.Text = fmt.Sprintf("%s was not reached: the policy allows the name, but it %s", host, d.Cause())
		return h
	}
	asked := slices.IndexFunc(f.Denials, func(one policy.Denial) bool {
		return (one.Field == "allowNet" || one.Field == "ask") && (one.Requested == host || one.Requested == d.Host()) ||
			one.Field == "allowHttp" && d.Proto == "http" && strings.Contains(one.Requested, " "+d.Host()+"/")
	})
	switch {
	case asked >= 0 && (d.Unruled() || d.Reason == broker.AllowedByNone):
		h.Ask(f.Denials[asked].Field)
		h.Rule = f.Denials[asked].Rule
		h.Text = fmt.Sprintf("%s was not reached: its %s %s by %s", host, h.Field, f.Denials[asked].Reason, h.Rule)
	case d.Reason == broker.AllowedByNone:
		h.Ask("allowHttp")
		h.Text = fmt.Sprintf("%s was not sent the request: %s; %s", host, d.Cause(),
			asks("--allow-http 'METHOD "+host+"/PATH'"))
	case d.Proto == "http":
		h.Text = fmt.Sprintf("%s was not sent the request: %s", host, d.Cause())
	case !d.Unruled():
		h.Text = fmt.Sprintf("%s was not reached: %s", host, d.Cause())
	default:
		what := "the run has no network"
		if policy.Reaches(f.Granted) || f.Changed {
			what = d.Cause()
		}
		h.Ask("allowNet")
		h.Text = fmt.Sprintf("%s was not reached: %s; %s", host, what, asks("--allow-net "+host))
	}
	return h
}
