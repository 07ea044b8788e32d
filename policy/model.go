package policy

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// A model is not its user: where a user's own command line may ask for anything that no
// ceiling forbids, a model's call gets what a key allows, and nothing that no key speaks
// of. This file makes the ceiling of such calls.

// builtInRule is what denials of the built-in ceiling name as their rule.
const builtInRule = "the built-in ceiling"

// BuiltIn holds for models where no file has a key. It gives no secret, no raw TCP, and
// files of the folder alone; of "", the root and a home folder, none.
func BuiltIn(dir string) *Ceiling {
	none, under := []string{}, []string{}
	real, err := filepath.EvalSymlinks(dir)
	if dir == "" {
		err = fs.ErrNotExist
	}
	home, _ := os.UserHomeDir()
	if realHome, err := filepath.EvalSymlinks(home); err == nil {
		home = realHome
	}
	if err == nil && filepath.IsAbs(real) && real != "/" && real != home {
		under = []string{real}
	}
	return &Ceiling{Path: builtInRule, Secrets: &none, AllowTCP: &none, FilesUnder: &under, DirsUnder: &under}
}

// With is this ceiling with each key that a file has in the place of its own. A nil
// file changes nothing. A principal's table narrows what comes of it, as ever.
func (c *Ceiling) With(file *Ceiling) *Ceiling {
	if file == nil {
		return c
	}
	both := *file
	both.inherited = maps.Clone(file.inherited)
	if both.inherited == nil {
		both.inherited = map[string]string{}
	}
	for _, k := range keys {
		if k.inherit(&both, c) {
			both.inherited[k.name] = c.rule(k.name)
		}
	}
	return &both
}

// NarrowedBy is this ceiling, narrowed by a file: what the file has beyond it is not
// given. A nil file changes nothing.
func (c *Ceiling) NarrowedBy(file *Ceiling) *Ceiling {
	if file == nil {
		return c
	}
	both := *file
	both.over = c
	return &both
}

// Widening is a value of a ceiling that another one does not reach.
type Widening struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

func (w Widening) String() string { return w.Key + " " + w.Value }

// Beyond lists what of a ceiling goes beyond another one, by meaning: a folder below
// an admitted one, or a rule that a wildcard covers, does not. Tables of principals
// only ever narrow.
func (c *Ceiling) Beyond(base *Ceiling) (beyond []Widening) {
	for _, k := range keys {
		for _, value := range k.beyond(c, base) {
			beyond = append(beyond, Widening{k.name, value})
		}
	}
	return beyond
}

// Secret says whether a ceiling lets runs have a secret.
func (c *Ceiling) Secret(name string) bool {
	for ; c != nil; c = c.over {
		if c.Secrets != nil && !slices.Contains(*c.Secrets, name) {
			return false
		}
	}
	return true
}

// rule names the file, or what else, that a key of this ceiling comes from.
func (c *Ceiling) rule(key string) string {
	if from := c.inherited[key]; from != "" {
		return from
	}
	return c.Path
}

// key is one of a ceiling's: how it is taken over, and what of it widens.
type key struct {
	name    string
	inherit func(to, from *Ceiling) bool             // takes from's value where to has none
	beyond  func(c, base *Ceiling) (values []string) // what base does not reach
}

func keyOf[T any](name string, at func(*Ceiling) **T, beyond func(mine, base T) []string) key {
	return key{
		name: name,
		inherit: func(to, from *Ceiling) bool {
			if *at(to) != nil || *at(from) == nil {
				return false
			}
			*at(to) = *at(from)
			return true
		},
		beyond: func(c, base *Ceiling) []string {
			mine, most := *at(c), *at(base)
			if mine == nil || most == nil {
				return nil
			}
			return beyond(*mine, *most)
		},
	}
}

var keys = []key{
	keyOf("kernel", func(c *Ceiling) **string { return &c.Kernel }, another[string]),
	keyOf("memoryMb", func(c *Ceiling) **int { return &c.MemoryMB }, more[int]),
	keyOf("timeoutSeconds", func(c *Ceiling) **float64 { return &c.TimeoutSeconds }, more[float64]),
	keyOf("outputBytes", func(c *Ceiling) **int64 { return &c.OutputBytes }, more[int64]),
	keyOf("allowNet", func(c *Ceiling) **[]string { return &c.AllowNet }, uncovered(ParseNetRule, NetRule.intersect)),
	keyOf("allowNetAny", func(c *Ceiling) **bool { return &c.AllowNetAny }, func(mine, base bool) []string {
		if mine && !base {
			return []string{"true"}
		}
		return nil
	}),
	keyOf("allowTcp", func(c *Ceiling) **[]string { return &c.AllowTCP }, uncovered(ParseTCPRule, TCPRule.intersect)),
	keyOf("maxConnections", func(c *Ceiling) **int { return &c.MaxConnections }, more[int]),
	keyOf("maxUploadBytes", func(c *Ceiling) **int64 { return &c.MaxUpload }, more[int64]),
	keyOf("maxDownloadBytes", func(c *Ceiling) **int64 { return &c.MaxDownload }, more[int64]),
	keyOf("secrets", func(c *Ceiling) **[]string { return &c.Secrets }, uncovered(parseName, name.intersect)),
	keyOf("filesUnder", func(c *Ceiling) **[]string { return &c.FilesUnder }, outside),
	keyOf("dirsUnder", func(c *Ceiling) **[]string { return &c.DirsUnder }, outside),
	keyOf("artifacts", func(c *Ceiling) **int64 { return &c.Artifacts }, more[int64]),
}

func another[T comparable](mine, base T) []string {
	if mine == base {
		return nil
	}
	return []string{fmt.Sprint(mine)}
}

func more[N number](mine, base N) []string {
	if mine <= base {
		return nil
	}
	return []string{fmt.Sprint(mine)}
}

// uncovered lists the rules that no rule of the base covers whole.
func uncovered[R interface {
	comparable
	fmt.Stringer
}](parse func(string) (R, error), intersect func(R, R) (R, bool)) func(mine, base []string) []string {
	return func(mine, base []string) (beyond []string) {
		for _, text := range mine {
			rule, err := parse(text)
			if err != nil || !slices.ContainsFunc(base, func(top string) bool {
				most, err := parse(top)
				both, ok := intersect(rule, most)
				return err == nil && ok && both == rule
			}) {
				beyond = append(beyond, text)
			}
		}
		return beyond
	}
}

// outside lists the folders that lie in no folder of the base.
func outside(mine, base []string) (beyond []string) {
	for _, dir := range mine {
		if !slices.ContainsFunc(base, func(top string) bool { return Within(top, dir) }) {
			beyond = append(beyond, dir)
		}
	}
	return beyond
}
