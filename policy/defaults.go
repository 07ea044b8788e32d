package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Defaults are values of the command line's flags for runs that don't give them: a [defaults] table of a CeilingFile,
// or of a home's configuration.
type Defaults struct {
	File    string              // the table's file
	Flags   map[string][]string // by the flag's name without dashes; a list has any number of values, others have one
	Trusted bool                // the user trusts the file, or it is the home's; otherwise none of it applies
}

// noDefaults are the forms of fields that a table can't set: each run names its own files and folders.
var noDefaults = map[Form]bool{Mounts: true}

// ParseDefaults reads a [defaults] table. Its keys are flags of `unitask run` without dashes: those that a ceiling
// limits, except for files and folders.
func ParseDefaults(value any) (map[string][]string, error) {
	table, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is a %s: use [defaults]", tomlType(value))
	}
	flags := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		i := slices.IndexFunc(Fields, func(f Field) bool { return f.Flag == name && name != "" && !noDefaults[f.Form()] })
		if i < 0 {
			return nil, fmt.Errorf("unknown key %.40q: use %s", name, strings.Join(defaultNames(), ", "))
		}
		texts, err := defaultTexts(table[name], Fields[i].Form())
		if err != nil {
			return nil, fmt.Errorf("%s %w", name, err)
		}
		flags[name] = texts
	}
	return flags, nil
}

// defaultNames returns the keys of a [defaults] table.
func defaultNames() (names []string) {
	for _, f := range Fields {
		if f.Flag != "" && !noDefaults[f.Form()] {
			names = append(names, f.Flag)
		}
	}
	return names
}

// defaultTexts returns a value in the form that a flag accepts.
func defaultTexts(value any, form Form) ([]string, error) {
	isList := form == List || form == Names
	switch v := value.(type) {
	case []any:
		if !isList {
			return nil, errors.New("is a list, and has one value")
		}
		return stringList(v)
	case string, int64, float64, bool:
		if _, text := v.(string); isList && !text {
			return nil, fmt.Errorf("is a %s: use a list of strings", tomlType(value))
		}
		return []string{fmt.Sprint(v)}, nil
	}
	return nil, fmt.Errorf("is a %s", tomlType(value))
}
