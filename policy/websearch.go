package policy

import (
	"fmt"
	"regexp"
	"slices"
)

// searchName matches the name of a search backend: that of its [search.NAME] in a home's config.toml.
var searchName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)

// IsSearchName reports whether a text can name a search backend.
func IsSearchName(text string) bool { return searchName.MatchString(text) }

// Searches reports whether no ceiling forbids a search backend.
func (c *Ceiling) Searches(name string) bool {
	for ; c != nil; c = c.over {
		if names, said := c.most["webSearch"].([]string); said && !slices.Contains(names, name) {
			return false
		}
	}
	return true
}

// SearchBackends returns the search backends that a ceiling names and that none it narrows forbids, the preferred one
// first.
func (c *Ceiling) SearchBackends() []string {
	base := c.base()
	if base == nil {
		return nil
	}
	names, _ := base.most["webSearch"].([]string)
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !c.Searches(name) })
}

// searching are names of search backends. No run has them.
type searching struct{ none }

func (searching) form() Form { return List }

func (searching) resolve(*Field, *Request, *Effective) error { return nil }

func (searching) narrow(*Field, *Ceiling, *Request, *Effective, deny) {}

func (searching) read(_ *Field, value any, _ string) (any, error) {
	list, ok := value.([]any)
	if !ok || len(list) > MaxRules {
		return nil, fmt.Errorf("must be a list of names, %d at most", MaxRules)
	}
	names := []string{}
	for _, v := range list {
		name, ok := v.(string)
		if !ok || !IsSearchName(name) {
			return nil, fmt.Errorf("%.60q is no name of a search backend: small letters, digits, - and _", fmt.Sprint(v))
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func (searching) beyond(mine, base any) (beyond []string) {
	for _, name := range mine.([]string) {
		if !slices.Contains(base.([]string), name) {
			beyond = append(beyond, name)
		}
	}
	return beyond
}
