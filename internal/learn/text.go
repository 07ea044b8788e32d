package learn

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/internal/publicaddr"
	"github.com/unitask/unitask/policy"
)

func notPublic(rule policy.TCPRule) bool { return !publicaddr.Public(rule.Addr) }

// comment returns a text in printable ASCII, for a comment.
func comment(text string) string {
	q := strconv.QuoteToASCII(text)
	return q[1 : len(q)-1]
}

// named returns the first entries of a list.
func named(list []string, most int) string {
	text := strings.Join(list[:min(len(list), most)], ", ")
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// about returns a line's reason, for a comment.
func (line *Line) about() string {
	unit := map[string]string{"net.rule": "request", "tools": "call"}[line.Key]
	if unit == "" {
		unit = "connection"
	}
	text := plural(line.Requests, unit)
	if len(line.Covers) > 0 && line.Key != "tools" {
		text += " to " + named(line.Covers, maxCovers)
	}
	if len(line.Runs) == 1 {
		text += "; run " + line.Runs[0]
	} else {
		text += "; runs " + named(line.Runs, maxNamedRuns)
	}
	if line.Note != "" {
		text += "; " + line.Note
	}
	return comment(text)
}

// text returns the ceiling.
func (p *Proposal) text() string {
	var out strings.Builder
	fmt.Fprintf(&out, "# What %s needed, by unitask policy learn: %s.\n", plural(len(p.Runs), "run"),
		comment(named(p.Runs, maxNamedRuns)))
	out.WriteString("# The code of the runs chose these hosts, paths and tools: read each line before you trust " +
		"the file.\n# Keys that are not here, as memoryMb, have no limit.\n\n")
	for _, key := range []string{"allowNet", "ask", "allowTcp"} {
		lines := p.of(key)
		switch {
		case len(lines) > 0:
			fmt.Fprintf(&out, "%s = [\n", key)
			for _, line := range lines {
				fmt.Fprintf(&out, "  %s, # %s\n", value(line.Rule), line.about())
			}
			out.WriteString("]\n")
		case key != "ask": // an empty list allows nothing
			fmt.Fprintf(&out, "%s = []\n", key)
		}
	}
	for _, line := range p.of("net.rule") {
		rule, err := policy.ParseHTTPRule(line.Rule)
		if err != nil {
			continue // the check finds what is missing
		}
		fmt.Fprintf(&out, "\n# %s\n[[net.rule]]\nhost = %s\n", line.about(), value(rule.Host.String()))
		if list := rule.Listed(); len(list) > 0 {
			fmt.Fprintf(&out, "method = %s\n", value(list))
		}
		if rule.Path != "" {
			fmt.Fprintf(&out, "path = %s\n", value(rule.Path))
		}
	}
	for _, line := range p.of("tools") {
		fmt.Fprintf(&out, "\n# %s\n%s", line.about(), table(line.server))
	}
	p.remarks(&out)
	return out.String()
}

// remarks writes what the file does not allow, and what is not known.
func (p *Proposal) remarks(out *strings.Builder) {
	if len(p.Left) > 0 {
		out.WriteString("\n# Left out:\n")
	}
	for _, l := range p.Left {
		fmt.Fprintf(out, "#   %s: %s (%s; %s)\n", comment(l.What), comment(l.Why), plural(l.Requests, "time"),
			comment(named(l.Runs, maxNamedRuns)))
	}
	if len(p.Unknown) > 0 {
		out.WriteString("\n# Not known:\n")
	}
	for _, text := range p.Unknown {
		fmt.Fprintf(out, "#   %s\n", comment(text))
	}
}

func (p *Proposal) of(key string) []Line {
	return slices.DeleteFunc(slices.Clone(p.Lines), func(line Line) bool { return line.Key != key })
}

// value returns a value in TOML's form, on one line.
func value(v any) string {
	switch v := v.(type) {
	case []string:
		var texts []string
		for _, text := range v {
			texts = append(texts, value(text))
		}
		return "[" + strings.Join(texts, ", ") + "]"
	case []any:
		var texts []string
		for _, one := range v {
			texts = append(texts, value(one))
		}
		return "[" + strings.Join(texts, ", ") + "]"
	}
	var out bytes.Buffer
	if err := toml.NewEncoder(&out).Encode(map[string]any{"v": v}); err != nil {
		return `""` // of a type that no ceiling has
	}
	return strings.TrimSpace(strings.TrimPrefix(out.String(), "v ="))
}

// table returns a server's table.
func table(s *policy.ToolServer) string {
	var out strings.Builder
	put := func(key string, given bool, v any) {
		if given {
			fmt.Fprintf(&out, "%s = %s\n", key, value(v))
		}
	}
	fmt.Fprintf(&out, "[tools.%s]\n", s.Name)
	put("command", len(s.Command) > 0, s.Command)
	put("url", s.URL != "", s.URL)
	put("dir", s.Dir != "", s.Dir)
	put("wrap", s.Wrap, true)
	put("allowNet", len(s.AllowNet) > 0, s.AllowNet)
	put("dirs", len(s.Dirs) > 0, s.Dirs)
	if len(s.Env) > 0 {
		fmt.Fprintf(&out, "# env is not copied, since its values may be secret: %s\n",
			comment(strings.Join(slices.Sorted(maps.Keys(s.Env)), ", ")))
	}
	put("passEnv", len(s.PassEnv) > 0, s.PassEnv)
	put("tokenEnv", s.TokenEnv != "", s.TokenEnv)
	put("allow", len(s.Allow) > 0, s.Allow)
	put("approve", s.Approve, true)
	put("secrets", s.Secrets, true)
	put("maxCalls", true, s.MaxCalls)
	put("maxResultBytes", true, s.MaxResult)
	put("timeoutSeconds", true, int64(s.Timeout/time.Second))
	put("pin", s.Pin != "", s.Pin)
	for _, c := range s.Where {
		fmt.Fprintf(&out, "[[tools.%s.where]]\n", s.Name)
		put("tool", c.Tool != "", c.Tool)
		put("argument", true, c.Argument)
		switch {
		case c.Matches != nil:
			text := strings.TrimSuffix(strings.TrimPrefix(c.Matches.String(), `\A(?:`), `)\z`)
			put("matches", true, text)
		case c.In != nil:
			put("in", true, c.In)
		default:
			put("equals", true, c.Equals)
		}
	}
	return out.String()
}
