package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/internal/exact"
)

// CeilingFile is the file name to look for, from the working directory upwards.
const CeilingFile = ".unitask.toml"

// Ceiling sets the upper limits of runs. A missing key leaves its field unlimited; an empty list allows nothing.
type Ceiling struct {
	// Path is the file that the ceiling was read from.
	Path string

	// Defaults are the values of the file's [defaults] table; nil without the table.
	Defaults map[string][]string

	// Principals are the ceilings of a shared server's callers, by name: each narrows this
	// ceiling further and can't widen it.
	Principals map[string]*Ceiling

	host      map[string]*HostCommand // nil without a [host] table
	most      map[string]any          // the value of each key, as read by its field's kind
	over      *Ceiling                // what this one narrows
	inherited map[string]string       // inherited keys, and the file each comes from
	prefix    string                  // of its keys in the file
	text      []byte                  // of the file, to name lines
	origin    *Origin                 // nil if nobody else can make it
	notices   []string                // old names that the file uses
}

// Notices returns a line for each old name that the ceiling's files use, with its file, line and new name.
func (c *Ceiling) Notices() (list []string) {
	for ; c != nil; c = c.over {
		list = append(list, c.notices...)
	}
	return list
}

// MarshalJSON encodes the path and the values, as in a file.
func (c *Ceiling) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	member := func(key string, value any) error {
		text, err := json.Marshal(value)
		if out.Len() > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, "%q:%s", key, text)
		return err
	}
	errs := []error{member("path", c.Path)}
	for _, f := range every {
		if value, ok := c.most[f.ceiling()]; ok {
			errs = append(errs, member(f.ceiling(), f.kind.plain(value)))
		}
	}
	if len(c.Principals) > 0 {
		errs = append(errs, member("principals", c.Principals))
	}
	return fmt.Appendf(nil, "{%s}", out.Bytes()), errors.Join(errs...)
}

// For returns the ceiling of a principal. In this ceiling, and in each one that it narrows, the table of the
// first name that has one applies.
func (c *Ceiling) For(names ...string) *Ceiling {
	if c == nil {
		return nil
	}
	if over := c.over.For(names...); over != c.over {
		both := *c
		both.over, both.origin = over, c.origin.tabled(names)
		c = &both
	}
	for _, name := range names {
		if table := c.Principals[name]; table != nil {
			own := *table
			own.over, own.origin = c, c.origin.tabled(names)
			return &own
		}
	}
	return c
}

// Tables returns the principals with tables, in this ceiling and those that it narrows, and the place of each
// table.
func (c *Ceiling) Tables() map[string]string {
	if c == nil {
		return nil
	}
	tables := map[string]string{}
	maps.Copy(tables, c.over.Tables())
	for name, own := range c.Principals {
		tables[name] = own.Path
	}
	return tables
}

// CeilingError explains what is wrong with a ceiling file; no run may start under such a file.
type CeilingError struct {
	Path string
	Line int // 0 if it concerns the whole file
	Err  error
}

func (e *CeilingError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.Path, e.Err)
}

func (e *CeilingError) Unwrap() error { return e.Err }

// maxCeiling bounds the file.
const maxCeiling = 1 << 20

// ReadCeiling reads a ceiling file.
func ReadCeiling(name string) (*Ceiling, error) {
	text, err := readTrusted(name)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, &CeilingError{Path: name, Err: err}
	}
	c, err := ParseCeiling(name, text)
	if err != nil {
		return nil, err
	}
	return c.fromFile(name)
}

// readTrusted reads a file that only its owner, the current user or root, may write. The file must not be a link out of
// its own folder.
func readTrusted(name string) ([]byte, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	if rel, err := filepath.Rel(dir, real); err != nil || !filepath.IsLocal(rel) {
		return nil, fmt.Errorf("is a link to %s, outside of its folder", real)
	}
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case st.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("may be written by everybody (mode %04o): chmod o-w", st.Mode().Perm())
	case st.Size() > maxCeiling:
		return nil, fmt.Errorf("has more than %d bytes", maxCeiling)
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != 0 && owner != os.Getuid() {
		return nil, fmt.Errorf("belongs to another user (uid %d)", owner)
	}
	return io.ReadAll(io.LimitReader(f, maxCeiling+1))
}

// ParseCeiling parses a ceiling. Messages use name, and relative paths begin at its folder.
func ParseCeiling(name string, text []byte) (*Ceiling, error) {
	c := &Ceiling{Path: name, text: text}
	if !utf8.Valid(text) {
		return nil, &CeilingError{name, 1, errors.New("is not UTF-8 text")}
	}
	var table map[string]any
	if _, err := exact.Decode(string(text), &table); err != nil {
		var key *exact.KeyError
		if errors.As(err, &key) {
			return nil, c.wrong(key.Key[0], err)
		}
		var parse toml.ParseError
		line := 0
		if errors.As(err, &parse) {
			line, err = parse.Position.Line, errors.New(parse.Message)
		}
		return nil, &CeilingError{name, line, errors.New(strings.TrimPrefix(err.Error(), "toml: "))}
	}
	dir, err := filepath.Abs(filepath.Dir(name))
	if err != nil {
		return nil, &CeilingError{name, 0, err}
	}
	principals, ok := table["principals"].(map[string]any)
	if table["principals"] != nil && !ok {
		return nil, c.wrong("principals", fmt.Errorf("principals is a %s: use [principals.NAME]",
			tomlType(table["principals"])))
	}
	delete(table, "principals")
	if value, ok := table[defaultsKey]; ok {
		if c.Defaults, err = ParseDefaults(value); err != nil {
			return nil, c.wrong(defaultsKey, fmt.Errorf("%s: %w", defaultsKey, err))
		}
		delete(table, defaultsKey)
	}
	if value, ok := table[hostKey]; ok {
		if c.host, err = parseHostCommands(value, dir); err != nil {
			return nil, c.wrong(hostKey, fmt.Errorf("%s: %w", hostKey, err))
		}
		delete(table, hostKey)
	}
	if key, err := c.take(table, dir); err != nil {
		return nil, c.wrong(key, err)
	}
	for _, name := range slices.Sorted(maps.Keys(principals)) {
		table, ok := principals[name].(map[string]any)
		if !ok {
			return nil, c.wrong("principals", fmt.Errorf("principals.%s is a %s: use [principals.%s]", name,
				tomlType(principals[name]), name))
		}
		own := &Ceiling{Path: c.Path + " [principals." + name + "]", prefix: "principals." + name + "."}
		for _, key := range []string{"principals", defaultsKey, hostKey} {
			if table[key] != nil {
				return nil, c.wrong("principals", fmt.Errorf("principals.%s has %s of its own", name, key))
			}
		}
		if _, err := own.take(table, dir); err != nil {
			return nil, c.wrong("principals", err)
		}
		if c.Principals == nil {
			c.Principals = map[string]*Ceiling{}
		}
		c.Principals[name] = own
		c.notices = append(c.notices, own.notices...)
	}
	return c, nil
}

// defaultsKey is the table of Defaults.
const defaultsKey = "defaults"

// renamed lists keys of old files.
var renamed = map[string]string{"artifacts": "maxArtifactBytes"}

// take reads the keys of a table; an error is returned with its key.
func (c *Ceiling) take(table map[string]any, dir string) (string, error) {
	known := []string{"principals", defaultsKey, hostKey}
	for _, f := range every {
		known = append(known, f.ceiling())
	}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		near := renamed[key]
		for _, k := range known {
			if strings.EqualFold(k, key) {
				near = k
			}
		}
		switch {
		case near == key:
		case near != "":
			return key, fmt.Errorf("unknown key %q: keys are exact, write %s", c.prefix+key, near)
		default:
			return key, fmt.Errorf("unknown key %q", c.prefix+key)
		}
	}
	c.most = map[string]any{}
	for i := range every {
		f := &every[i]
		key := f.ceiling()
		value, ok := table[key]
		if !ok {
			continue
		}
		most, err := f.kind.read(f, value, dir)
		if err != nil {
			return key, fmt.Errorf("%s%s %s: %w", c.prefix, key, brief(value), err)
		}
		if list, is := most.([]string); is && key == "images" {
			if notice := renameImages(list); notice != "" {
				c.notices = append(c.notices, (&CeilingError{c.Path, c.line(key), errors.New(notice)}).Error())
			}
		}
		c.most[key] = most
	}
	return "", nil
}

// brief shows a value of TOML in an error; for a list, the error itself names the entry.
func brief(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%.100q", v)
	case []any, map[string]any, []map[string]any:
		return "has"
	}
	return fmt.Sprint(value)
}

// wrong returns an error about a key.
func (c *Ceiling) wrong(key string, err error) error {
	return &CeilingError{c.Path, c.line(key), err}
}

// line returns the line of a key of the top level; 0 if it can't be found.
func (c *Ceiling) line(key string) int {
	at := regexp.MustCompile(`(?m)^[ \t]*\[*[ \t]*["']?` + regexp.QuoteMeta(key) + `["']?[ \t]*[=.\]]`).FindIndex(c.text)
	if at == nil {
		return 0
	}
	return 1 + bytes.Count(c.text[:at[0]], []byte{'\n'})
}

// Example is a commented ceiling file with every key, all of them disabled.
const Example = `# The most that unitask may give to a run started in this folder or below.
# A key that is left out is no ceiling on that field; for models (unitask mcp) it has
# its built-in value. Whatever a run asks for beyond it is cut, and said so in the
# result and in the record.

# images = ["node", "python", "shell"]  # what machines may boot, and so the languages
# kernel = "linux"          # the only guest kernel: linux or nanos
# memoryMb = 1024           # memory of the machine
# cpus = 1                  # its processors; 0.5 is half of one's time
# maxProcesses = 64         # processes and threads of the code at once (linux)
# timeoutSeconds = 120      # time limit of the code
# outputBytes = 16777216    # kept of each of stdout and stderr

# Network. An empty list allows nothing; a wildcard admits every name below it.
# allowNet = ["api.example.com", "*.example.org", "example.net:8443"]
# allowNetAny = false
# ask = ["*.example.net"]   # somebody is asked when the code connects
# allowTcp = ["127.0.0.1:5432"]
# Requests by method and path are [[net.rule]], at the end of the file.
# maxConnections = 128
# maxUploadBytes = 1073741824
# maxDownloadBytes = 8589934592

# Secrets that a run may be given (--secret). One with hosts is never in the machine: its
# value goes into requests to these hosts only.
# secrets = ["GITHUB_TOKEN@api.github.com:header.authorization"]
# In place of the list each may have a table of its own, at the end of the file.

# Folders below which a run may be given files (--file) and folders (--dir). Relative
# ones are taken from this file's folder; links are resolved.
# filesUnder = ["./data"]
# dirsUnder = ["./data", "/srv/shared"]

# The host's own files, for models over MCP (not over HTTP), once you trust this file: whether they
# may list and read what is below the folders above, and below which they may propose changes.
# hostFiles = true
# writeUnder = ["./notes"]

# true: models may fetch pages of the hosts above (web_fetch); false: nobody fetches pages.
# webFetch = true

# Search backends that may be asked (web_search), by their names in config.toml of unitask's home.
# webSearch = ["searxng"]

# false: code calls no functions of its caller (clientTools, IO.Tools).
# clientTools = false

# MCP servers of this host whose tools code may call are [tools.NAME] tables, at the end of the file.

# false: no debugger may join a run's machine (unitask debug).
# debug = false

# Bytes that may come back from /out; 0 is none.
# maxArtifactBytes = 67108864

# Sessions: at once in one process, of all callers and of each; how long one lives, and does nothing before
# it is paused; ports of one that are forwarded, and its commands in the background; memory of those that are
# paused, in bytes.
# sessions = 8
# callerSessions = 4
# sessionLifeSeconds = 86400
# sessionIdleSeconds = 600
# forwardedPorts = 8
# backgroundCommands = 8
# pausedBytes = 8589934592

# Layers of QEMU's jail, as unitask doctor names them, without which nothing runs.
# requireJail = ["network", "filesystem", "seccomp"]

# true: nothing runs without hardware virtualization (KVM, HVF).
# requireHardware = true

# Nothing runs whose entries of the audit log can't be written, as on a full disk.
# audit = "required"

# Commands of this host that models may run over MCP (not over HTTP), once you trust this file.
# You are asked before each one.
# [host.pull]
# argv = ["git", "-C", "{repo}", "pull", "--ff-only"]  # no shell; a placeholder needs a type
# repo = { under = "/home/me/src" }                    # or of = ["…"], from = 1, to = 9, pattern = "…"

# An MCP server whose tools code may call (--tools github), once you trust this file. unitask tools pin github
# shows its tools and writes the pin.
# [tools.github]
# command = ["github-mcp-server", "stdio"]    # or url = "https://…"
# passEnv = ["GITHUB_TOKEN"]                  # variables of unitask's that the server gets
# allow = ["get_*", "search_*"]
# approve = true                              # you are asked about each call
# maxCalls = 100
# [[tools.github.where]]
# argument = "owner"
# equals = "acme"                             # or in = […], matches = "REGEXP"

# [secrets.GITHUB_TOKEN]
# hosts = ["api.github.com"]
# in = ["header"]             # header, query, path, body, sigv4; left out: header
# header = ["authorization"]  # left out: every field
# onMisdirect = "deny"        # "pass": a placeholder elsewhere may go out

# A host that a rule is about is sent what one allows and none denies, and nothing else.
# [[net.rule]]
# host = "api.github.com"     # or "*.example.com"
# method = ["GET", "POST"]    # left out: every one
# path = "/repos/acme/**"     # * is text within one segment, a last ** all below
# action = "allow"            # or "deny", which goes before
# mode = "enforce"            # "audit" only logs

# What a run gets that does not say otherwise, by the flags of unitask run. It applies once you
# trust this file (unitask policy trust).
# [defaults]
# memory = "1G"
# with = ["pip:requests"]
# allow-net = ["api.example.com"]

# What callers of a shared server (unitask mcp --http) get, by the name of their token:
# all of the above, narrowed further.
# [principals.alice]
# memoryMb = 512
`
