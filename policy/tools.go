package policy

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Limits of tools.
const (
	maxToolServers  = 32   // of one ceiling
	MaxToolTexts    = 64   // entries of each list of a server
	maxToolText     = 4096 // bytes of each text
	toolTime        = time.Minute
	maxToolTime     = time.Hour // the longest time limit of a call
	toolCalls       = 1000
	maxToolCalls    = 100_000 // the most that maxCalls may be
	toolResult      = 4 << 20
	maxToolResult   = 64 << 20 // the most that maxResultBytes may be
	toolPinPrefix   = "sha256:"
	toolPinHexDigit = 64
)

// ToolServer is an MCP server whose tools the code of runs may call: a [tools.NAME] table of a ceiling. It works on the
// host, or with Wrap in a machine.
type ToolServer struct {
	Name    string
	Command []string // the server's program and arguments, on the host; no shell reads them
	URL     string   // or where it listens
	Dir     string   // where the command runs; "" means an empty folder
	// Env and PassEnv are the command's environment, in addition to PATH, HOME, LANG and TMPDIR: values, and names of
	// unitask's own variables. With Wrap, PassEnv has secrets of the machine as ParseSecret reads them.
	Env     map[string]string
	PassEnv []string
	// Wrap runs the command in a machine of its own, under the ceiling that has the table. AllowNet and Dirs are what the
	// machine gets, as in a Request.
	Wrap     bool
	AllowNet []string
	Dirs     []string // PATH, or PATH:/GUESTPATH; absolute
	// TokenEnv names unitask's variable with a bearer token for the URL.
	TokenEnv string
	// Allow are patterns of tools' names; "*" is any text. Without any, all tools of the list are allowed.
	Allow     []string
	Where     []ToolClause
	MaxCalls  int   // of a run
	MaxResult int64 // bytes of a result
	Timeout   time.Duration
	Approve   bool   // somebody is asked about each call
	Secrets   bool   // secrets that the code has may stand in arguments
	Pin       string // the digest of the list of tools that was reviewed
}

// OwnToolServer returns the limits of an embedding program's own tools: those of a table that says nothing.
func OwnToolServer(name string) *ToolServer {
	return &ToolServer{Name: name, Timeout: toolTime, MaxCalls: toolCalls, MaxResult: toolResult}
}

// ToolClause restricts an argument of some tools. Exactly one of Equals, In and Matches is set.
type ToolClause struct {
	Tool     string // a pattern; "" is all tools
	Argument string // its name; "a.b" is a member of an object
	Equals   any
	In       []any
	Matches  *regexp.Regexp // the whole text
}

const toolsKey = "tools"

// toolLimit is a ceiling's value: the tables of a file, or a list of names that narrows others.
type toolLimit struct {
	servers map[string]*ToolServer
	names   []string
	why     string // why the tables do not count; "" if they do
}

// ToolServer returns the server with a name; nil if no ceiling has one, or a ceiling forbids it. A file that only
// narrows another ceiling adds none.
func (c *Ceiling) ToolServer(name string) *ToolServer {
	return c.ToolServers()[name]
}

// ToolServers returns all servers that runs may be granted.
func (c *Ceiling) ToolServers() map[string]*ToolServer {
	base := c.base()
	if base == nil {
		return nil
	}
	limit, _ := base.most[toolsKey].(toolLimit)
	if limit.why != "" {
		return nil
	}
	list := maps.Clone(limit.servers)
	for ; c != base; c = c.over {
		own, said := c.most[toolsKey].(toolLimit)
		maps.DeleteFunc(list, func(name string, _ *ToolServer) bool { return said && !slices.Contains(own.names, name) })
	}
	return list
}

// ToolCeiling returns the ceiling that has the tables of tools, which bounds the machines of their servers.
func (c *Ceiling) ToolCeiling() *Ceiling { return c.base() }

// withoutTools returns the ceiling without its tools, for a file that nobody trusts.
func (c *Ceiling) withoutTools() *Ceiling {
	limit, said := c.most[toolsKey].(toolLimit)
	if !said {
		return c
	}
	own := *c
	own.most = maps.Clone(c.most)
	limit.why = "the file is not trusted: unitask policy trust " + c.Path
	own.most[toolsKey] = limit
	return &own
}

// Allows reports whether the server's patterns allow a tool.
func (s *ToolServer) Allows(tool string) bool {
	return len(s.Allow) == 0 || slices.ContainsFunc(s.Allow, func(p string) bool { return toolMatches(p, tool) })
}

// Refuses returns the clause that arguments violate, "" if there is none.
func (s *ToolServer) Refuses(tool string, arguments map[string]any) string {
	for _, c := range s.Where {
		if (c.Tool == "" || toolMatches(c.Tool, tool)) && !c.holds(arguments) {
			return c.String()
		}
	}
	return ""
}

// toolMatches matches a pattern. A name has no slashes that * could not match.
func toolMatches(pattern, name string) bool {
	flat := strings.NewReplacer("/", "\x00")
	ok, err := path.Match(flat.Replace(pattern), flat.Replace(name))
	return err == nil && ok
}

func (c ToolClause) holds(arguments map[string]any) bool {
	var value any = arguments
	for _, name := range strings.Split(c.Argument, ".") {
		object, _ := value.(map[string]any)
		for key := range object { // servers of Go take a key in another case, too
			if key != name && strings.EqualFold(key, name) {
				return false
			}
		}
		var there bool
		if value, there = object[name]; !there {
			return false
		}
	}
	if c.Matches != nil {
		text, ok := value.(string)
		return ok && c.Matches.MatchString(text)
	}
	return slices.ContainsFunc(append(slices.Clone(c.In), c.Equals), func(want any) bool {
		switch n := want.(type) {
		case nil:
			return false
		case int64:
			have, ok := value.(float64)
			return ok && have == float64(n)
		}
		return want == value
	})
}

// String shows the clause as a rule.
func (c ToolClause) String() string {
	switch {
	case c.Matches != nil:
		return fmt.Sprintf("%s matches %q", c.Argument, c.Matches.String())
	case c.In != nil:
		return fmt.Sprintf("%s in %v", c.Argument, c.In)
	}
	return fmt.Sprintf("%s equals %v", c.Argument, c.Equals)
}

// toolServerName matches names that JavaScript and Python can import.
var toolServerName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

// notToolNames are words of JavaScript and Python, and names that the clients have themselves.
var notToolNames = strings.Fields("and as assert async await break case catch class const continue def default del " +
	"delete do elif else enum eval except export extends false finally for from function global if implements import in " +
	"instanceof interface is lambda let new nonlocal not null or package pass private protected public raise return " +
	"static super switch this throw tools true try typeof var void while with yield")

// IsToolServerName reports whether a text can name a server.
func IsToolServerName(text string) bool {
	return toolServerName.MatchString(text) && !slices.Contains(notToolNames, text)
}

// toolNames are names of servers.
type toolNames struct{ none }

func (toolNames) form() Form { return List }

func (toolNames) resolve(f *Field, r *Request, e *Effective) error {
	if len(r.Tools) > maxToolServers {
		return f.wrong(len(r.Tools), fmt.Sprintf("are too many: at most %d", maxToolServers))
	}
	e.Tools = []string{}
	for _, name := range r.Tools {
		if !IsToolServerName(name) {
			return f.wrong(fmt.Sprintf("%.100q", name), "is no name of a [tools.NAME] table: lower-case letters, digits and _")
		}
		if !slices.Contains(e.Tools, name) {
			e.Tools = append(e.Tools, name)
		}
	}
	return nil
}

func (toolNames) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	limit, said := c.most[f.ceiling()].(toolLimit)
	if !said && c.over != nil {
		return
	}
	e.Tools = slices.DeleteFunc(e.Tools, func(name string) bool {
		why := limit.why
		if limit.servers != nil && c.over != nil && why == "" {
			why = "a file that narrows another one has a list of names, and no tables of tools"
		}
		if server := limit.servers[name]; why == "" && server == nil && !slices.Contains(limit.names, name) {
			why = "no table [tools." + name + "] allows it"
		} else if why == "" && server != nil && server.Pin == "" {
			why = "its list of tools is not reviewed: unitask tools pin " + name
		}
		if why != "" {
			deny(name, why)
		}
		return why != ""
	})
}

func (toolNames) beyond(mine, base any) (beyond []string) {
	for _, name := range mine.(toolLimit).all() {
		if own := mine.(toolLimit).servers[name]; own != base.(toolLimit).servers[name] ||
			own == nil && !slices.Contains(base.(toolLimit).all(), name) {
			beyond = append(beyond, name)
		}
	}
	return beyond
}

func (l toolLimit) all() []string {
	return append(slices.Sorted(maps.Keys(l.servers)), l.names...)
}

func (toolNames) plain(value any) any { return append([]string{}, value.(toolLimit).all()...) }

func (toolNames) read(_ *Field, value any, dir string) (any, error) {
	if names, ok := textsOf(value); ok {
		for _, name := range names {
			if !IsToolServerName(name) {
				return nil, fmt.Errorf("%.60q is no name of a [tools.NAME] table", name)
			}
		}
		return toolLimit{names: append([]string{}, names...)}, nil
	}
	table, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is a %s: use [tools.NAME], or a list of names", tomlType(value))
	}
	if len(table) > maxToolServers {
		return nil, fmt.Errorf("has %d servers, and %d is the most", len(table), maxToolServers)
	}
	limit := toolLimit{servers: map[string]*ToolServer{}}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		own, ok := table[name].(map[string]any)
		switch {
		case !IsToolServerName(name):
			return nil, fmt.Errorf("%.60q: a name has lower-case letters, digits and _, begins with a letter, and is no word "+
				"of JavaScript or Python", name)
		case !ok:
			return nil, fmt.Errorf("%s is a %s: use [tools.%s]", name, tomlType(table[name]), name)
		}
		s := OwnToolServer(name)
		if err := s.read(own, dir); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		limit.servers[name] = s
	}
	return limit, nil
}

// toolKeys are the keys of a [tools.NAME] table, and what their values must be.
var toolKeys = map[string]string{
	"command": "a list of texts", "url": "an http:// or https:// URL", "dir": "a folder's path",
	"env": `a table of texts: { NAME = "value" }`, "passEnv": "a list of variables' names; with wrap also NAME@HOST",
	"wrap": "true or false", "allowNet": "a list of hosts", "dirs": "a list of folders' paths: PATH, or PATH:/GUESTPATH",
	"tokenEnv": "a variable's name", "allow": `a list of patterns: ["search", "get_*"]`,
	"where": "[[tools.NAME.where]] tables", "maxCalls": fmt.Sprintf("from 1 to %d", maxToolCalls),
	"maxResultBytes": fmt.Sprintf("from 1 to %d", maxToolResult), "timeoutSeconds": "from 1 to 3600",
	"approve": "true or false", "secrets": "true or false", "pin": "sha256:… as unitask tools pin prints it",
}

func (s *ToolServer) read(table map[string]any, dir string) (err error) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if toolKeys[key] == "" {
			return fmt.Errorf("unknown key %.40q: use %s", key, strings.Join(slices.Sorted(maps.Keys(toolKeys)), ", "))
		}
		fits := true
		if key == "where" {
			err = s.readWhere(table[key])
		} else {
			fits = s.readKey(key, table[key], dir)
		}
		if err != nil {
			return fmt.Errorf("where: %w", err)
		}
		if !fits {
			return fmt.Errorf("%s must be %s", key, toolKeys[key])
		}
	}
	if (len(s.Command) == 0) == (s.URL == "") {
		return errors.New("needs either command or url")
	}
	if s.URL == "" && s.TokenEnv != "" || s.URL != "" && (s.Dir != "" || len(s.Env)+len(s.PassEnv) > 0) {
		return errors.New("dir, env and passEnv go with command, tokenEnv with url")
	}
	switch {
	case s.Wrap && s.URL != "":
		return errors.New("wrap goes with command, not with url")
	case s.Wrap && s.Dir != "":
		return errors.New("dir is for a command on the host: with wrap use dirs")
	case !s.Wrap && len(s.AllowNet)+len(s.Dirs) > 0:
		return errors.New("allowNet and dirs go with wrap = true")
	case !s.Wrap && slices.ContainsFunc(s.PassEnv, func(text string) bool { return !envName.MatchString(text) }):
		return errors.New("passEnv has names of variables: NAME@HOST goes with wrap = true")
	}
	return nil
}

var (
	toolURL = regexp.MustCompile(`^https?://[^\s/?#@]+(/[^\s#]*)?$`)
	toolPin = regexp.MustCompile(`^` + toolPinPrefix + fmt.Sprintf(`[0-9a-f]{%d}$`, toolPinHexDigit))
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
)

func (s *ToolServer) readKey(key string, value any, dir string) (fits bool) {
	bound := func(most int64) (int64, bool) {
		n, ok := value.(int64)
		return n, ok && n > 0 && n <= most
	}
	var n int64
	switch key {
	case "command":
		s.Command, fits = toolTexts(value, func(text string) bool { return !strings.Contains(text, "\x00") })
		fits = fits && len(s.Command) > 0 && s.Command[0] != ""
	case "url":
		s.URL, fits = value.(string)
		fits = fits && len(s.URL) <= maxToolText && toolURL.MatchString(s.URL)
	case "dir":
		if s.Dir, fits = value.(string); fits {
			s.Dir = leads(below(dir, s.Dir))
		}
	case "env":
		var env map[string]any
		env, fits = value.(map[string]any)
		s.Env = map[string]string{}
		for name, v := range env {
			text, ok := v.(string)
			fits = fits && ok && envName.MatchString(name) && !strings.Contains(text, "\x00")
			s.Env[name] = text
		}
	case "passEnv":
		s.PassEnv, fits = toolTexts(value, isToolSecret)
	case "wrap":
		s.Wrap, fits = value.(bool)
	case "allowNet":
		s.AllowNet, fits = toolTexts(value, func(text string) bool { return text != "" })
	case "dirs":
		var dirs []string
		dirs, fits = toolTexts(value, func(text string) bool { return text != "" && !strings.Contains(text, "\x00") })
		for _, text := range dirs {
			s.Dirs = append(s.Dirs, below(dir, text))
		}
	case "tokenEnv":
		s.TokenEnv, fits = value.(string)
		fits = fits && envName.MatchString(s.TokenEnv)
	case "allow":
		s.Allow, fits = toolTexts(value, isToolPattern)
		fits = fits && len(s.Allow) > 0
	case "maxCalls":
		n, fits = bound(maxToolCalls)
		s.MaxCalls = int(n)
	case "maxResultBytes":
		s.MaxResult, fits = bound(maxToolResult)
	case "timeoutSeconds":
		n, fits = bound(int64(maxToolTime / time.Second))
		s.Timeout = time.Duration(n) * time.Second
	case "approve":
		s.Approve, fits = value.(bool)
	case "secrets":
		s.Secrets, fits = value.(bool)
	case "pin":
		s.Pin, fits = value.(string)
		fits = fits && toolPin.MatchString(s.Pin)
	}
	return fits
}

func isToolSecret(text string) bool {
	secret, err := ParseSecret(text)
	return err == nil && envName.MatchString(secret.Name)
}

func isToolPattern(text string) bool {
	_, err := path.Match(text, "")
	return err == nil && text != ""
}

func toolTexts(value any, valid func(string) bool) (list []string, ok bool) {
	list, ok = textsOf(value)
	return list, ok && len(list) <= MaxToolTexts &&
		!slices.ContainsFunc(list, func(text string) bool { return len(text) > maxToolText || !valid(text) })
}

// readWhere reads [[tools.NAME.where]] tables.
func (s *ToolServer) readWhere(value any) error {
	const use = `use tool = "PATTERN", argument = "NAME", and one of equals, in = […] and matches = "REGEXP"`
	list, ok := value.([]map[string]any)
	if !ok || len(list) > MaxToolTexts {
		return errors.New(use)
	}
	for _, table := range list {
		var c ToolClause
		kinds := 0
		for key, v := range table {
			fits := true
			switch key {
			case "tool":
				c.Tool, fits = v.(string)
				fits = fits && isToolPattern(c.Tool)
			case "argument":
				c.Argument, fits = v.(string)
			case "equals":
				c.Equals, fits = v, isToolValue(v)
				kinds++
			case "in":
				c.In, fits = v.([]any)
				fits = fits && len(c.In) <= MaxToolTexts && !slices.ContainsFunc(c.In, func(v any) bool { return !isToolValue(v) })
				kinds++
			case "matches":
				var text string
				if text, fits = v.(string); fits {
					_, err := regexp.Compile(text) // alone, since a bracket could close ours
					if fits = err == nil && len(text) <= maxToolText; fits {
						c.Matches, err = regexp.Compile(`\A(?:` + text + `)\z`) // \Q without \E does not fit
						fits = err == nil
					}
				}
				kinds++
			default:
				fits = false
			}
			if !fits {
				return fmt.Errorf("%.40s does not fit: %s", key, use)
			}
		}
		if c.Argument == "" || kinds != 1 {
			return errors.New(use)
		}
		s.Where = append(s.Where, c)
	}
	return nil
}

func isToolValue(v any) bool {
	switch v.(type) {
	case string, int64, float64, bool:
		return true
	}
	return false
}
