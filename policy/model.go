package policy

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/internal/userdir"
)

// A model has fewer rights than its user. A user's own command line may ask for anything that no ceiling forbids. A
// model's call gets what a key allows, and nothing without a key. This file makes the ceiling of such calls.

// builtInRule is the rule that denials of the built-in ceiling name.
const builtInRule = "the built-in ceiling"

// BuiltIn returns the ceiling on models' runs, key by key, unless a file says otherwise. It allows no container images,
// no packages, no secrets, no raw TCP, no web_fetch, no web_search and no tools for the host's files. It allows only
// files of dir. It allows none if dir is "", or is or contains the user's home, or home, unitask's own, which has the
// records of all runs.
func BuiltIn(dir, home string) *Ceiling {
	under := []string{}
	real, err := realpath.Of(dir)
	if dir == "" {
		err = fs.ErrNotExist
	}
	user, _ := userdir.Home()
	if user != "" && !filepath.IsAbs(user) { // nobody can tell which folder contains it
		err = fs.ErrInvalid
	}
	if err == nil && filepath.IsAbs(real) && real != "/" && !holds(real, user) && !holds(real, home) {
		under = []string{real}
	}
	return &Ceiling{Path: builtInRule, most: map[string]any{"images": slices.Concat(ImageNames, TemplateImages),
		"packages": []PackageRule{}, "secrets": []SecretRule{}, "allowTcp": []TCPRule{}, "filesUnder": under,
		"dirsUnder": under, "hostFiles": false, "writeUnder": []string{}, "webFetch": false,
		"webSearch": []string{}, toolsKey: toolLimit{}}}
}

// holds reports whether a folder is another one, or above it, even if a mount gives it another path.
func holds(dir, path string) bool {
	path = leads(path)
	if Within(dir, path) {
		return true
	}
	above, err := os.Stat(dir)
	for err == nil {
		if at, err := os.Stat(path); err == nil && os.SameFile(at, above) {
			return true
		}
		if filepath.Dir(path) == path {
			break
		}
		path = filepath.Dir(path)
	}
	return false
}

// leads returns a path with its links resolved, as far as it exists.
func leads(path string) string {
	real, err := realpath.Of(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(leads(parent), filepath.Base(path))
	} else if err != nil {
		return path
	}
	return real
}

// With returns this ceiling with a file's keys in place of its own. A nil file changes nothing. A principal's table
// still narrows the result.
func (c *Ceiling) With(file *Ceiling) *Ceiling {
	if file == nil {
		return c
	}
	both := *file
	if both.origin != nil && !both.origin.Models { // which has the built-in ceiling's keys already
		both.origin = nil
	}
	both.most, both.inherited = map[string]any{}, map[string]string{}
	for _, f := range every {
		key := f.ceiling()
		if value, ok := file.most[key]; ok {
			both.most[key], both.inherited[key] = value, file.rule(key)
		} else if value, ok := c.most[key]; ok && !file.over.Bounds(key) {
			both.most[key], both.inherited[key] = value, c.rule(key)
		}
	}
	return &both
}

// NarrowedBy returns this ceiling narrowed by a file, which can't widen it. A nil file changes
// nothing.
func (c *Ceiling) NarrowedBy(file *Ceiling) *Ceiling {
	if file == nil {
		return c
	}
	both := *file
	both.over, both.origin = c, nil
	return &both
}

// Bounds reports whether a ceiling, or one that it narrows, has a key.
func (c *Ceiling) Bounds(key string) bool {
	for ; c != nil; c = c.over {
		if _, ok := c.most[key]; ok {
			return true
		}
	}
	return false
}

// base returns the ceiling that this one narrows in the end, or itself; nil for nil.
func (c *Ceiling) base() *Ceiling {
	for c != nil && c.over != nil {
		c = c.over
	}
	return c
}

// DecidesHosts reports whether the ceiling's author says which hosts need a question. Then the ceiling, or the one that
// it narrows, has allowNet, ask, or allowNetAny = true. A file that only narrows another ceiling decides nothing.
func (c *Ceiling) DecidesHosts() bool {
	if c = c.base(); c == nil {
		return false
	}
	every, _ := c.most["allowNetAny"].(bool)
	return every || c.Bounds("allowNet") || c.Bounds("ask")
}

// Widening is a value that one ceiling allows beyond another.
type Widening struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (w Widening) String() string { return w.Key + " " + w.Value }

// Beyond lists what a ceiling allows beyond another one, by meaning. A folder below an allowed one, or a rule that a
// wildcard covers, is not beyond it. Each command of the host is. Principals' tables do not count, since they only
// narrow.
func (c *Ceiling) Beyond(base *Ceiling) (beyond []Widening) {
	for _, f := range every {
		mine, has := c.most[f.ceiling()]
		for at := base; has && at != nil; at = at.over {
			most, bounded := at.most[f.ceiling()]
			if !bounded {
				continue
			}
			for _, value := range f.kind.beyond(mine, most) {
				if w := (Widening{f.ceiling(), value}); !slices.Contains(beyond, w) {
					beyond = append(beyond, w)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.host)) {
		if own, there := base.HostCommands()[name]; !there || own != c.host[name] {
			beyond = append(beyond, Widening{hostKey + "." + name, c.host[name].String()})
		}
	}
	return beyond
}

// Secret reports whether a ceiling lets runs have a secret, if only for some hosts.
func (c *Ceiling) Secret(name string) bool {
	for ; c != nil; c = c.over {
		if rules, ok := c.most["secrets"].([]SecretRule); ok &&
			!slices.ContainsFunc(rules, func(r SecretRule) bool { return r.Name == name }) {
			return false
		}
	}
	return true
}

// Image reports whether a ceiling lets runs have an image.
func (c *Ceiling) Image(name string) bool {
	for ; c != nil; c = c.over {
		if allowed, said := c.most["images"].([]string); said && !allowsImage(allowed, name) {
			return false
		}
	}
	return true
}

// Debug reports whether a ceiling lets debuggers join machines.
func (c *Ceiling) Debug() bool { return c.permits("debug") }

// WebFetch reports whether a ceiling lets web_fetch run.
func (c *Ceiling) WebFetch() bool { return c.permits("webFetch") }

// ClientTools reports whether a ceiling lets code call functions of its caller.
func (c *Ceiling) ClientTools() bool { return c.permits("clientTools") }

// permits reports whether no ceiling says false for a key.
func (c *Ceiling) permits(key string) bool {
	for ; c != nil; c = c.over {
		if allowed, said := c.most[key].(bool); said && !allowed {
			return false
		}
	}
	return true
}

// ruleLine returns the line of a key in the file that rule returns, 0 if it is not known.
func (c *Ceiling) ruleLine(key string) int {
	if c.rule(key) != c.Path || c.Path == "" {
		return 0
	}
	return c.line(key)
}

// rule names the source of a key of this ceiling: a file, or something else.
func (c *Ceiling) rule(key string) string {
	if from := c.inherited[key]; from != "" {
		return from
	}
	return c.Path
}
