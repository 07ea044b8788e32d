package learn

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strings"

	"github.com/unitask/unitask/internal/publicaddr"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
)

// lines calls f with each line of a run's log. It reads no more than maxLogBytes, and reports whether that was all.
func (l *learner) lines(log io.Reader, id, name string, f func([]byte)) (all bool, err error) {
	limited := &io.LimitedReader{R: log, N: maxLogBytes}
	scan := bufio.NewScanner(limited)
	scan.Buffer(make([]byte, 64<<10), maxLogLine)
	for scan.Scan() {
		f(scan.Bytes())
	}
	if err := scan.Err(); errors.Is(err, bufio.ErrTooLong) || err == nil && limited.N == 0 {
		l.cannot("run " + id + ": the end of its " + name + " was not read, because it is too large")
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	return true, nil
}

func (l *learner) readNetlog(store *record.Store, src *source) error {
	file, err := store.OpenFile(src.id, record.NetlogFile)
	if errors.Is(err, fs.ErrNotExist) {
		if policy.Reaches(src.granted) {
			src.connected = true
			l.cannot("run " + src.id + " has no netlog: its connections are not known")
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return l.netlog(src, file)
}

func (l *learner) netlog(src *source, log io.Reader) error {
	hosts := map[string]bool{} // names of connections
	var carried []string       // names of requests
	all, err := l.lines(log, src.id, record.NetlogFile, func(line []byte) {
		var d netstack.Decision
		if json.Unmarshal(line, &d) != nil {
			src.connected = true // not known: the last line of an interrupted run may be cut
			return
		}
		switch {
		case d.Proto == netstack.ProtoNetlog:
			src.connected = true
			l.cannot("run " + src.id + ": its netlog was full, and its network cut")
		case d.Proto == "tcp" && d.Verdict == netstack.Allowed:
			src.connected = true
			if name := l.connected(src, d); name != "" && len(hosts) < maxTargets {
				hosts[name] = true
			}
		case d.Proto == "http" && d.Verdict == netstack.Allowed:
			if name := l.requested(src, d); name != "" && !hosts[name] && len(carried) < maxTargets {
				carried = append(carried, name)
			}
		case d.Verdict != netstack.Allowed:
			l.refused(src, d)
		}
	})
	src.connected = src.connected || !all
	for _, name := range carried {
		if !hosts[name] {
			hosts[name] = true
			l.carried(src, name)
		}
	}
	return err
}

// count returns how many requests a line is about.
func count(d netstack.Decision) int { return max(1, d.Count) }

// nameOf returns a rule for exactly the host of a decision, without a port, if one can be written.
func nameOf(d netstack.Decision) (rule policy.NetRule, ok bool) {
	text := d.Host()
	if d.Name == "" {
		text = d.Addr
	}
	rule, err := policy.ParseNetRule(text)
	ok = err == nil && !rule.Wildcard && rule.Port == 0 && rule.String() == text
	return rule, ok
}

// connected notes a connection that was allowed, and returns the host's name.
func (l *learner) connected(src *source, d netstack.Decision) string {
	kind, text, _ := strings.Cut(d.Rule, " ")
	if kind == "tcp" {
		rule, err := policy.ParseTCPRule(text)
		if err != nil || rule.String() != text {
			l.leave(src.id, count(d), "connections", "their rule can't be read")
			return ""
		}
		if !note(l, l.tcp, rule, src.id, count(d)) {
			return ""
		}
		l.use(src, request{key: "allowTcp", host: text, port: d.Port})
		l.inspect(src, rule.Host)
		return rule.Host
	}
	host, ok := nameOf(d)
	within := policy.NetRule{Any: true}
	var err error
	if text != "any" {
		within, err = policy.ParseNetRule(text)
	}
	key := map[string]string{"net": "allowNet", "ask": "ask"}[kind]
	port := host
	if port.Port = d.Port; !within.Covers(port) {
		err = fmt.Errorf("%s is not within %s", port, within)
	}
	if !ok || key == "" || err != nil {
		l.leave(src.id, count(d), "connections", "no rule can be written for their host")
		return ""
	}
	host.Port = within.Port
	if !note(l, l.nets, netUse{key, host, within, false}, src.id, count(d)) {
		return ""
	}
	l.use(src, request{key: key, host: hostText(host), port: d.Port})
	l.inspect(src, host.Host)
	return host.Host
}

// hostText returns a rule's name or address.
func hostText(r policy.NetRule) string {
	r.Port = 0
	return r.String()
}

// use notes a request to check the proposal with.
func (l *learner) use(s *source, r request) {
	switch {
	case s.used[r]:
	case l.checks == maxChecks:
		l.cannot(fmt.Sprintf("no more than %d requests are checked against the file", maxChecks))
	default:
		l.checks++
		s.used[r] = true
	}
}

// inspect notes whether a run read the requests to a host.
func (l *learner) inspect(src *source, name string) {
	if name == "" {
		return
	}
	read, ruled := src.inspected(name)
	l.ruled[name] = l.ruled[name] || ruled
	l.unread[name] = l.unread[name] || !read
}

// requested notes an HTTP request that was read and allowed, and returns the host's name.
func (l *learner) requested(src *source, d netstack.Decision) string {
	host, ok := nameOf(d)
	if !ok || host.Host == "" || !plainMethod(d.Method) {
		l.leave(src.id, count(d), "requests", "no rule can be written for their host or method")
		return ""
	}
	if ok, _ := broker.Decide(src.rules, host.Host, d.Method, loggedPath(d.Path)); !ok {
		l.leave(src.id, count(d), d.Method+" "+host.Host, "the run's own rules do not allow it as it is logged")
		return ""
	}
	if !note(l, l.http, httpUse{host.Host, d.Method, d.Path, src.within(host.Host, d.Rule)}, src.id, count(d)) {
		return ""
	}
	l.inspect(src, host.Host)
	l.use(src, request{host: host.Host, port: d.Port, method: d.Method, path: d.Path})
	return host.Host
}

// plainMethod reports whether a rule can name a method.
func plainMethod(method string) bool {
	r, err := policy.ParseHTTPRule(method + " example.com/")
	return err == nil && r.Methods == method && !strings.Contains(method, ",")
}

// carried notes a host that a request named on a connection to another host. Only a wildcard allows both.
func (l *learner) carried(src *source, name string) {
	for key, list := range map[string][]policy.NetRule{"allowNet": src.granted.AllowNet, "ask": src.granted.Ask} {
		for _, rule := range list {
			host := policy.NetRule{Host: name, Port: rule.Port}
			if rule.Wildcard && rule.Covers(host) {
				if note(l, l.nets, netUse{key, host, rule, false}, src.id, 0) {
					l.forced[rule] = true
					l.inspect(src, name)
				}
				return
			}
		}
	}
}

// refused notes a request that was not allowed, or failed.
func (l *learner) refused(src *source, d netstack.Decision) {
	host, ok := nameOf(d)
	what := "requests"
	if ok {
		what = hostText(host)
	}
	if d.Port != 0 && ok {
		what = fmt.Sprintf("%s port %d", what, d.Port)
	}
	n := count(d)
	switch {
	case !ok && d.Unruled():
		l.leave(src.id, n, what, "refused: their host is none that a rule could name")
	case strings.HasPrefix(d.Reason, "not approved"):
		l.leave(src.id, n, what, "asked about, and not approved")
	case d.Proto == "http" && d.Reason == broker.AllowedByNone && ok && host.Host != "" && plainMethod(d.Method):
		if !l.opts.Refused {
			l.leave(src.id, n, what, "no rule allowed its method and path")
			return
		}
		if note(l, l.http, httpUse{host: host.Host, method: d.Method, path: d.Path}, src.id, n) {
			l.use(src, request{host: host.Host, port: d.Port, method: d.Method, path: d.Path, refused: true})
		}
	case !d.Unruled():
		l.leave(src.id, n, what, "denied by a rule or a limit, or it failed")
	case host.Addr.IsValid() && !publicaddr.Public(host.Addr):
		l.private(src, host.Addr, d.Port, what, n)
	case host.Host != "" && notHere(host.Host):
		l.leave(src.id, n, what, "refused: the name leads to no public address")
	case !l.opts.Refused:
		l.leave(src.id, n, what, "refused: no rule allowed it")
	default:
		if d.Port != 80 && d.Port != 443 {
			host.Port = d.Port
		}
		if note(l, l.nets, netUse{"allowNet", host, host, true}, src.id, n) {
			l.use(src, request{key: "allowNet", host: hostText(host), port: cmp.Or(d.Port, 443), refused: true})
		}
	}
}

// private notes a refused connection to an address that is not public.
func (l *learner) private(src *source, addr netip.Addr, port uint16, what string, n int) {
	if !l.opts.Private || port == 0 {
		l.leave(src.id, n, what, "refused: the address is not public (this host, its network, or a cloud's metadata)")
		return
	}
	rule := policy.TCPRule{Addr: addr, Port: port}
	if !note(l, l.tcp, rule, src.id, n) {
		return
	}
	l.denied[rule] = true
	l.use(src, request{key: "allowTcp", host: rule.String(), port: port, refused: true})
}

func (l *learner) readTools(store *record.Store, src *source) error {
	file, err := store.OpenFile(src.id, record.ToolsFile)
	if errors.Is(err, fs.ErrNotExist) {
		if len(src.granted.Tools) > 0 {
			l.cannot("run " + src.id + " has no record of its calls of tools")
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = l.lines(file, src.id, record.ToolsFile, func(line []byte) {
		var c struct{ Server, Tool, Code string }
		if json.Unmarshal(line, &c) != nil || !policy.IsToolServerName(c.Server) || c.Tool == "" ||
			len(c.Tool) > maxPathKnown {
			return
		}
		if c.Code == "" || c.Code == "tool" || c.Code == "timeout" || c.Code == "large" {
			note(l, l.tools, [2]string{c.Server, c.Tool}, src.id, 1)
			return
		}
		l.leave(src.id, 1, "tools of "+c.Server, "calls were refused or failed: "+c.Code)
	})
	return err
}
