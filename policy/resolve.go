package policy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// narrow cuts what was granted to what a ceiling allows. It never adds.
func (c *Ceiling) narrow(e *Effective, asked Request) (denials []Denial) {
	if c.over != nil {
		denials = c.over.narrow(e, asked)
	}
	denyFor := func(key string) func(string, any, string) {
		return func(field string, requested any, reason string) {
			denials = append(denials, Denial{Field: field, Requested: fmt.Sprint(requested), Reason: reason, Rule: c.rule(key), Key: c.prefix + key})
		}
	}
	deny := func(field string, requested any, reason string) { denyFor(field)(field, requested, reason) }
	if c.Kernel != nil && e.Kernel != *c.Kernel {
		if e.Kernel != "" {
			deny("kernel", e.Kernel, "only "+*c.Kernel+" is allowed")
		}
		e.Kernel = *c.Kernel
	}
	clamp(&e.MemoryMB, c.MemoryMB, "memoryMb", asked.MemoryMB != 0, deny)
	clamp(&e.TimeoutSeconds, c.TimeoutSeconds, "timeoutSeconds", asked.TimeoutSeconds != 0, deny)
	clamp(&e.OutputBytes, c.OutputBytes, "outputBytes", asked.OutputBytes != 0, deny)
	clamp(&e.MaxConnections, c.MaxConnections, "maxConnections", asked.MaxConnections != 0, deny)
	clamp(&e.MaxUpload, c.MaxUpload, "maxUploadBytes", asked.MaxUpload != 0, deny)
	clamp(&e.MaxDownload, c.MaxDownload, "maxDownloadBytes", asked.MaxDownload != 0, deny)

	e.AllowNet = cut("allowNet", e.AllowNet, c.netRules(), ParseNetRule, NetRule.intersect, deny)
	if e.AllowNetAny && !c.any() {
		deny("allowNetAny", true, "not every host is allowed")
		e.AllowNetAny = false
		if c.AllowNet != nil { // everything, under a list, is the list
			all := NetRule{Any: true}
			for _, text := range *c.AllowNet {
				if r, err := ParseNetRule(text); err == nil {
					if r, ok := all.intersect(r); ok && !slices.Contains(e.AllowNet, r.String()) {
						e.AllowNet = append(e.AllowNet, r.String())
					}
				}
			}
		}
	}
	var tcp *[]TCPRule
	if c.AllowTCP != nil {
		tcp = new([]TCPRule)
		for _, text := range *c.AllowTCP {
			if r, err := ParseTCPRule(text); err == nil {
				*tcp = append(*tcp, r)
			}
		}
	}
	e.AllowTCP = cut("allowTcp", e.AllowTCP, tcp, ParseTCPRule, TCPRule.intersect, deny)
	var names *[]name
	if c.Secrets != nil {
		names = new([]name)
		for _, text := range *c.Secrets {
			*names = append(*names, name(text))
		}
	}
	e.Files = under("files", e.Files, "filesUnder", c.FilesUnder, denyFor("filesUnder"))
	e.Dirs = under("dirs", e.Dirs, "dirsUnder", c.DirsUnder, denyFor("dirsUnder"))
	if c.Artifacts != nil && *c.Artifacts == 0 { // which, in a request, is the default
		if asked.Artifacts > 0 {
			deny("artifacts", e.Artifacts, "none are allowed")
		}
		e.Artifacts = -1
	} else {
		clamp(&e.Artifacts, c.Artifacts, "artifacts", asked.Artifacts != 0, deny)
	}
	e.Secrets = cut("secrets", e.Secrets, names, parseName, name.intersect, deny)
	return denials
}

// under keeps the mounts whose real path lies in one of the folders.
func under(field string, asked []Mount, key string, folders *[]string, deny func(string, any, string)) []Mount {
	if folders == nil {
		return asked
	}
	var out []Mount
	for _, m := range asked {
		if slices.ContainsFunc(*folders, func(dir string) bool { return Within(dir, m.Real) }) {
			out = append(out, m)
			continue
		}
		// The one answer for everything outside: where a path leads there, and whether
		// anything is there, is not the caller's to know.
		deny(field, m.Host, "is not under a folder of "+key)
	}
	return out
}

// Within says that an absolute path is a folder or lies below it, by whole components.
// Both must be free of links and of "..": one that is not lies nowhere.
func Within(folder, path string) bool {
	if !filepath.IsAbs(folder) || !filepath.IsAbs(path) || filepath.Clean(folder) != folder || filepath.Clean(path) != path {
		return false
	}
	return path == folder || folder == "/" || strings.HasPrefix(path, folder+"/")
}

// any says that every public host is allowed on 80 and 443.
func (c *Ceiling) any() bool {
	if c.AllowNetAny != nil {
		return *c.AllowNetAny
	}
	return c.AllowNet == nil
}

// netRules are what the ceiling admits of allowNet; nil is everything.
func (c *Ceiling) netRules() *[]NetRule {
	if c.AllowNet == nil {
		return nil
	}
	rules := []NetRule{}
	for _, text := range *c.AllowNet {
		if r, err := ParseNetRule(text); err == nil {
			rules = append(rules, r)
		}
	}
	if c.AllowNetAny != nil && *c.AllowNetAny {
		rules = append(rules, NetRule{Any: true})
	}
	return &rules
}

type number interface{ ~int | ~int64 | ~float64 }

// clamp lowers a value to its ceiling. A default that is lowered is no denial: nobody
// asked for it.
func clamp[N number](v *N, most *N, field string, asked bool, deny func(string, any, string)) {
	if most == nil || *v <= *most {
		return
	}
	if asked {
		deny(field, *v, fmt.Sprintf("at most %v is allowed", *most))
	}
	*v = *most
}

// cut replaces each rule by what the ceiling's rules leave of it.
func cut[R fmt.Stringer](field string, asked []string, ceiling *[]R, parse func(string) (R, error), intersect func(R, R) (R, bool), deny func(string, any, string)) []string {
	if ceiling == nil {
		return asked
	}
	out := []string{}
	for _, text := range asked {
		rule, err := parse(text)
		if err != nil {
			continue // Resolve has parsed it before
		}
		var left []string
		for _, top := range *ceiling {
			if r, ok := intersect(rule, top); ok && !slices.Contains(left, r.String()) {
				left = append(left, r.String())
			}
		}
		switch {
		case slices.Contains(left, text):
			left = []string{text} // all of it is allowed
		case len(left) == 0:
			deny(field, text, "is not allowed")
		default:
			deny(field, text, "only "+strings.Join(left, ", ")+" of it is allowed")
		}
		for _, r := range left {
			switch {
			case slices.Contains(out, r):
			case len(out) == MaxRules:
				deny(field, r, fmt.Sprintf("is beyond %d rules", MaxRules))
			default:
				out = append(out, r)
			}
		}
	}
	return out
}

// intersect is what two rules both allow.
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

// commonPort intersects ports; 0 is 80 and 443.
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

// intersect is what two rules both allow: exactly the same, or nothing.
// 127.0.0.1, localhost and [::1] are what they are.
func (r TCPRule) intersect(o TCPRule) (TCPRule, bool) { return r, r == o }
