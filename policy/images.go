package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// oneOf is one image, of those that a ceiling lists. A run whose image is denied has no other:
// it does not run.
type oneOf struct{ none }

func (oneOf) form() Form { return Text }

func (oneOf) resolve(f *Field, r *Request, e *Effective) error {
	*at[string](e, f.Key) = *at[string](r, f.Key)
	return nil
}

func (oneOf) read(_ *Field, value any, _ string) (any, error) {
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("is a %s, and must be a list", tomlType(value))
	}
	names := []string{}
	for _, v := range list {
		name, ok := v.(string)
		switch {
		case !ok:
			return nil, fmt.Errorf("a %s, and must be a list of strings", tomlType(v))
		case !slices.Contains(ImageNames, name):
			return nil, fmt.Errorf("%.40q: use %s", name, strings.Join(ImageNames, ", "))
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, errors.New("no image, so that nothing could run: name some, or leave the key out")
	}
	return names, nil
}

func (oneOf) narrow(f *Field, c *Ceiling, _ *Request, e *Effective, deny deny) {
	allowed, said := c.most[f.ceiling()].([]string)
	name := at[string](e, f.Key)
	if said && *name != "" && !slices.Contains(allowed, *name) {
		deny(*name, "only "+strings.Join(allowed, ", ")+" is allowed")
		*name = ""
	}
}

func (oneOf) beyond(mine, base any) (beyond []string) {
	for _, name := range mine.([]string) {
		if !slices.Contains(base.([]string), name) {
			beyond = append(beyond, name)
		}
	}
	return beyond
}
