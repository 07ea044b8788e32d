package learn

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/unitask/unitask/internal/httppath"
	"github.com/unitask/unitask/policy"
)

// propose makes the proposal, and checks it.
func (l *learner) propose() (*Proposal, error) {
	p := &Proposal{Lines: []Line{}, Offline: []string{}}
	for _, src := range l.sources {
		p.Runs = append(p.Runs, src.id)
		if !src.connected {
			p.Offline = append(p.Offline, src.id)
		}
	}
	requests, without := l.requestLines()
	p.Lines = append(p.Lines, l.netLines(requests, without)...)
	p.Lines = append(p.Lines, l.tcpLines(without)...)
	p.Lines = append(p.Lines, requests...)
	p.Lines = append(p.Lines, l.toolLines()...)
	for _, key := range []string{"allowNet", "ask", "allowTcp", "net.rule"} {
		n := 0
		for _, line := range p.Lines {
			if line.Key == key {
				n++
			}
		}
		if n > policy.MaxRules {
			return nil, fmt.Errorf("%w: %d lines of %s, and %d is the most; name fewer runs", ErrTooMuch, n, key,
				policy.MaxRules)
		}
	}
	p.Lines = slices.DeleteFunc(p.Lines, l.mixes)
	if err := l.check(p); err != nil {
		return nil, err
	}
	p.Unknown = l.unknown
	for key, s := range l.left {
		p.Left = append(p.Left, Left{key.what, key.why, s.requests, s.runs})
	}
	slices.SortFunc(p.Left, func(a, b Left) int { return cmp.Or(cmp.Compare(a.What, b.What), cmp.Compare(a.Why, b.Why)) })
	p.File = p.text()
	return p, nil
}

// mixes reports whether a line would allow one run's requests at a port that only another run reached. Rules by method
// and path hold for all ports of a host. The check lists what is left out.
func (l *learner) mixes(line Line) bool {
	rule, err := policy.ParseNetRule(line.Rule)
	if line.Key != "allowNet" && line.Key != "ask" || err != nil || !l.ruled[rule.Host] || line.Note == refusedThen {
		return false
	}
	grants := func(s *source) bool {
		covers := func(r policy.NetRule) bool { return r.Covers(rule) }
		return s.granted.AllowNetAny && rule.Port == 0 || slices.ContainsFunc(s.granted.AllowNet, covers) ||
			line.Key == "ask" && slices.ContainsFunc(s.granted.Ask, covers)
	}
	if l.unread[rule.Host] { // all requests are allowed: so a run had them at this port
		return !slices.ContainsFunc(l.sources, func(s *source) bool {
			read, _ := s.inspected(rule.Host)
			return !read && grants(s)
		})
	}
	runs := map[string]bool{} // whose requests gave the rules
	for use, seen := range l.http {
		if use.host == rule.Host {
			for _, id := range seen.runs {
				runs[id] = true
			}
		}
	}
	return slices.ContainsFunc(l.sources, func(s *source) bool { return runs[s.id] && !grants(s) })
}

// requestLines returns the rules by method and path. without are the hosts that must not be proposed: no rule can
// express the requests to them, and a wider rule would allow other requests.
func (l *learner) requestLines() (lines []Line, without map[string]bool) {
	byHost := map[string][]httpUse{}
	for use := range l.http {
		byHost[use.host] = append(byHost[use.host], use)
	}
	without = map[string]bool{}
	for host, ruled := range l.ruled {
		if ruled && byHost[host] == nil {
			without[host] = !l.unread[host]
		}
	}
	for _, host := range slices.Sorted(maps.Keys(byHost)) {
		if l.unread[host] {
			continue
		}
		rules := l.rulesOf(host, byHost[host])
		without[host] = len(rules) == 0
		lines = append(lines, rules...)
	}
	return lines, without
}

// rulesOf returns the rules of one host.
func (l *learner) rulesOf(host string, uses []httpUse) (lines []Line) {
	groups := map[string][]httpUse{} // by the rule that allowed them
	for _, use := range uses {
		groups[use.within] = append(groups[use.within], use)
	}
	exact, whole := map[string][]httpUse{}, false
	for _, within := range slices.Sorted(maps.Keys(groups)) {
		paths := map[string][]httpUse{}
		written := true
		for _, use := range groups[within] {
			path, ok := exactPath(use.path)
			if ok {
				paths[path] = append(paths[path], use)
			}
			written = written && ok
		}
		if rule, err := policy.ParseHTTPRule(within); within != "" && err == nil && (len(paths) > 1 || !written) {
			lines = append(lines, l.rule(host, rule.Path, groups[within]))
			continue
		}
		whole = whole || !written
		for path, list := range paths {
			exact[path] = append(exact[path], list...)
		}
	}
	if !l.ruled[host] && (whole || len(exact) > maxHostRules) {
		return []Line{l.rule(host, "", uses)}
	}
	for _, path := range slices.Sorted(maps.Keys(exact)) {
		rule := l.rule(host, path, exact[path])
		rule.Covers = nil
		lines = append(lines, rule)
	}
	return lines
}

// exactPath returns a recorded path as a rule's pattern, if one matches exactly this path.
func exactPath(logged string) (string, bool) {
	if len(logged) >= maxPathKnown { // it may be cut
		return "", false
	}
	plain, err := httppath.Plain(loggedPath(logged))
	return plain, err == nil && !strings.Contains(plain, "*") && httppath.Check(plain) == nil
}

// loggedPath returns a path without the netlog's escapes.
func loggedPath(logged string) string {
	if path, err := strconv.Unquote(`"` + logged + `"`); err == nil {
		return path
	}
	return logged
}

// rule returns a line with the methods of some uses.
func (l *learner) rule(host, path string, uses []httpUse) Line {
	s := &seen{}
	var methods, covers []string
	for _, use := range uses {
		s.join(l.http[use])
		methods, covers = append(methods, use.method), append(covers, use.path)
	}
	if slices.Contains(methods, "GET") { // which covers HEAD
		methods = slices.DeleteFunc(methods, func(m string) bool { return m == "HEAD" })
	}
	slices.Sort(methods)
	slices.Sort(covers)
	rule := policy.HTTPRule{Methods: strings.Join(slices.Compact(methods), ","), Host: policy.NetRule{Host: host},
		Path: path}
	return Line{Key: "net.rule", Rule: rule.String(), Requests: s.requests, Runs: s.runs, Covers: slices.Compact(covers)}
}

// netLines returns the lines of allowNet and ask.
func (l *learner) netLines(requests []Line, without map[string]bool) (lines []Line) {
	groups := map[netUse][]netUse{} // by key and rule; the host is empty
	for use := range l.nets {
		if !without[use.host.Host] {
			group := netUse{key: use.key, within: use.within}
			groups[group] = append(groups[group], use)
		}
	}
	var list []netLine
	for group, uses := range groups {
		if (len(uses) > 1 || l.forced[group.within]) && l.mayStand(group.within) {
			one := netLine{key: group.key, rule: group.within, seen: &seen{}}
			for _, use := range uses {
				one.seen.join(l.nets[use])
				one.covers = append(one.covers, hostText(use.host))
			}
			slices.Sort(one.covers)
			list = append(list, one)
			continue
		}
		for _, use := range uses {
			list = append(list, netLine{key: use.key, rule: use.host, seen: l.nets[use], denied: use.denied})
		}
	}
	order := func(a, b netLine) int { // wide rules first
		return cmp.Or(cmp.Compare(a.key, b.key), -cmp.Compare(len(a.covers), len(b.covers)),
			cmp.Compare(a.rule.Port, b.rule.Port), cmp.Compare(a.rule.String(), b.rule.String()))
	}
	slices.SortFunc(list, order)
	var kept []netLine
	for _, one := range list {
		if i := slices.IndexFunc(kept, func(k netLine) bool { return k.rule.Covers(one.rule) }); i >= 0 {
			both := &seen{}
			both.join(kept[i].seen)
			both.join(one.seen)
			kept[i].seen, kept[i].denied = both, kept[i].denied || one.denied
			continue
		}
		kept = append(kept, one)
	}
	for _, k := range kept {
		lines = append(lines, Line{Key: k.key, Rule: k.rule.String(), Requests: k.seen.requests, Runs: k.seen.runs,
			Covers: k.covers, Note: l.noteOf(k, requests)})
	}
	slices.SortFunc(lines, func(a, b Line) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rule, b.Rule)) })
	return lines
}

const refusedThen = "refused then"

type netLine struct {
	key    string
	rule   policy.NetRule
	covers []string
	seen   *seen
	denied bool
}

// mayStand reports whether a wildcard may be proposed. It may not if rules by method and path exist for hosts below it:
// they would not cover the others.
func (l *learner) mayStand(within policy.NetRule) bool {
	return within.Wildcard && !slices.ContainsFunc(l.sources, func(s *source) bool {
		return slices.ContainsFunc(s.granted.AllowHTTP, func(r policy.HTTPRule) bool { return r.Concerns(within) })
	})
}

// noteOf says what is not known about a host.
func (l *learner) noteOf(k netLine, requests []Line) string {
	name := k.rule.Host
	switch {
	case k.denied:
		return refusedThen
	case k.rule.Addr.IsValid(), k.covers != nil:
		return ""
	case k.seen.requests > 0 && l.unread[name]:
		return "requests not read: only the host is known"
	case slices.ContainsFunc(requests, func(r Line) bool { return strings.Contains(r.Rule, " "+name+"/") }):
		return "for the rules below"
	}
	return ""
}

// tcpLines returns the lines of allowTcp.
func (l *learner) tcpLines(without map[string]bool) (lines []Line) {
	for rule, s := range l.tcp {
		if rule.Host != "" && without[rule.Host] {
			continue
		}
		note := ""
		if l.denied[rule] {
			note = refusedThen + ", and not a public address"
		} else if rule.Loopback() {
			note = "a server on this host itself"
		} else if rule.Addr.IsValid() && notPublic(rule) {
			note = "not a public address"
		}
		lines = append(lines, Line{Key: "allowTcp", Rule: rule.String(), Requests: s.requests, Runs: s.runs, Note: note})
	}
	slices.SortFunc(lines, func(a, b Line) int { return cmp.Compare(a.Rule, b.Rule) })
	return lines
}

// toolLines returns a line for each server, whose table allows the tools that were called.
func (l *learner) toolLines() (lines []Line) {
	byServer := map[string][]string{}
	for key := range l.tools {
		byServer[key[0]] = append(byServer[key[0]], key[1])
	}
	for _, name := range slices.Sorted(maps.Keys(byServer)) {
		table := l.opts.Servers[name]
		if table == nil {
			for _, tool := range byServer[name] {
				for _, id := range l.tools[[2]string{name, tool}].runs {
					l.leave(id, 1, "tools of "+name, "no policy file here has the table [tools."+name+"] to copy")
				}
			}
			continue
		}
		own, s := *table, &seen{}
		own.Allow = nil
		line := Line{Key: "tools", Rule: name}
		slices.Sort(byServer[name])
		for _, tool := range byServer[name] {
			used := l.tools[[2]string{name, tool}]
			if !table.Allows(tool) {
				l.leave(used.runs[0], used.requests, "tools of "+name, "the table [tools."+name+"] does not allow them")
				continue
			}
			s.join(used)
			own.Allow, line.Covers = append(own.Allow, pattern(tool)), append(line.Covers, tool)
		}
		if len(own.Allow) == 0 {
			continue
		}
		if len(own.Allow) > policy.MaxToolTexts {
			own.Allow, line.Note = table.Allow, "too many tools to list: allow is that of the file here"
		}
		line.Requests, line.Runs, line.server = s.requests, s.runs, &own
		lines = append(lines, line)
	}
	return lines
}

// pattern returns the pattern that matches a tool's name only.
func pattern(tool string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(tool)
}
