package policy

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/bounded"
)

// anyLogin matches a login before a host, with or without a scheme.
var anyLogin = regexp.MustCompile(`[^\s,/@:]*:[^\s,]*@`)

// refused returns the error about a rule's text. If the text has a login, the error quotes only the part after the last
// @, because a password may contain any character.
func refused(text string, err error) *FieldError {
	if errors.Is(err, errLogin) {
		text = withoutLogin(text)
	}
	return &FieldError{Value: quoted(text), Reason: err.Error()}
}

// withoutLogin returns the part of a text after the last @.
func withoutLogin(text string) string { return text[strings.LastIndexByte(text, '@')+1:] }

// quoted returns the beginning of a user's text for an error, without a login and a URL's query.
func quoted(text string) string {
	if strings.Contains(text, "://") {
		text = bounded.Said(text, 200)
	}
	return fmt.Sprintf("%.100q", anyLogin.ReplaceAllString(text, ""))
}

// rules is a list of rules, each parsed once. meet returns what two rules both allow.
type rules[R comparable] struct {
	none
	parse func(string) (R, error)
	meet  func(R, R) (R, bool)
	also  func(c *Ceiling) []R                   // what a ceiling admits in addition to its list
	merge func([]R) []R                          // joins rules about the same thing, if not nil
	table func(map[string]any) ([]string, error) // reads rules from a TOML table, if not nil
}

func (k rules[R]) form() Form {
	if _, names := any(*new(R)).(SecretRule); names {
		return Names
	}
	return List
}

// list parses rules, each once, in the order given.
func (k rules[R]) list(texts []string) ([]R, *FieldError) {
	out := []R{}
	if len(texts) > MaxRules {
		return nil, &FieldError{Value: fmt.Sprintf("of %d entries", len(texts)),
			Reason: fmt.Sprintf("must have at most %d", MaxRules)}
	}
	for _, text := range texts {
		rule, err := k.parse(text)
		if err != nil {
			return nil, refused(text, err)
		}
		if !slices.Contains(out, rule) {
			out = append(out, rule)
		}
	}
	if k.merge != nil {
		out = k.merge(out)
	}
	return out, nil
}

func (k rules[R]) resolve(f *Field, r *Request, e *Effective) error {
	list, bad := k.list(*at[[]string](r, f.Key))
	if bad != nil {
		bad.Field = f.name()
		return bad
	}
	*at[[]R](e, f.Key) = list
	return nil
}

func (k rules[R]) read(f *Field, value any, _ string) (any, error) {
	texts, err := []string(nil), error(nil)
	if table, ok := value.(map[string]any); ok && k.table != nil {
		texts, err = k.table(table)
	} else {
		texts, err = stringList(value)
	}
	if err != nil {
		return nil, err
	}
	list, bad := k.list(texts)
	if bad != nil {
		return nil, fmt.Errorf("%s: %s", bad.Value, bad.Reason)
	}
	return list, nil
}

// narrow replaces each rule by the part that the ceiling's rules allow.
func (k rules[R]) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	top, ok := c.most[f.ceiling()].([]R)
	if !ok {
		return
	}
	if k.also != nil {
		top = slices.Concat(top, k.also(c))
	}
	granted := at[[]R](e, f.Key)
	out := []R{}
	for _, rule := range *granted {
		var left []R
		for _, most := range top {
			if both, ok := k.meet(rule, most); ok && !slices.Contains(left, both) {
				left = append(left, both)
			}
		}
		switch {
		case slices.Contains(left, rule):
			left = []R{rule} // all of it is allowed
		case len(left) == 0:
			deny(rule, "is not allowed")
		default:
			deny(rule, "only "+join(left)+" of it is allowed")
		}
		for _, r := range left {
			switch {
			case slices.Contains(out, r):
			case len(out) == MaxRules:
				deny(r, fmt.Sprintf("is beyond %d rules", MaxRules))
			default:
				out = append(out, r)
			}
		}
	}
	if k.merge != nil {
		out = k.merge(out)
	}
	*granted = out
}

func join[R any](list []R) string {
	var texts []string
	for _, r := range list {
		texts = append(texts, fmt.Sprint(r))
	}
	return strings.Join(texts, ", ")
}

// beyond lists the rules that no rule of the base covers completely.
func (k rules[R]) beyond(mine, base any) (beyond []string) {
	for _, rule := range mine.([]R) {
		if !slices.ContainsFunc(base.([]R), func(most R) bool {
			both, ok := k.meet(rule, most)
			return ok && both == rule
		}) {
			beyond = append(beyond, fmt.Sprint(rule))
		}
	}
	return beyond
}

// Jail joins lists of names, each name once, in the order given. An error names an entry that is not in JailNames.
func Jail(lists ...[]string) ([]string, error) { return demands{}.list(slices.Concat(lists...)) }

// demands are names of conditions for a run. A ceiling adds its own to the run's: it narrows by demanding more.
type demands struct{ none }

func (demands) form() Form { return List }

// list checks names, each once, in the order given.
func (demands) list(names []string) ([]string, error) {
	out := []string{}
	for _, name := range names {
		if !slices.Contains(JailNames, name) {
			return nil, fmt.Errorf("%.100q: is none of %s", name, strings.Join(JailNames, ", "))
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out, nil
}

func (k demands) resolve(f *Field, r *Request, e *Effective) error {
	names, err := k.list(*at[[]string](r, f.Key))
	if err != nil {
		return Bad(f.name(), "", "%v", err)
	}
	*at[[]string](e, f.Key) = names
	return nil
}

func (k demands) read(_ *Field, value any, _ string) (any, error) {
	names, err := stringList(value)
	if err != nil {
		return nil, err
	}
	return k.list(names)
}

func (k demands) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, _ deny) {
	more, _ := c.most[f.ceiling()].([]string)
	all := at[[]string](e, f.Key)
	*all, _ = Jail(*all, more) // both were checked
}

// beyond lists what the base demands and this ceiling does not.
func (demands) beyond(mine, base any) (beyond []string) {
	for _, name := range base.([]string) {
		if !slices.Contains(mine.([]string), name) {
			beyond = append(beyond, "without "+name)
		}
	}
	return beyond
}

// stringList reads a list of strings from TOML.
func stringList(value any) ([]string, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("is a %s, and must be a list of strings", tomlType(value))
	}
	var texts []string
	for _, v := range list {
		text, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("holds a %s, and must be a list of strings", tomlType(v))
		}
		texts = append(texts, text)
	}
	return texts, nil
}
