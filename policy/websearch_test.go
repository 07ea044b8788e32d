package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// Models get only the search backends that a ceiling names, and that none above it forbids.
func TestAttackWebSearchKey(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	built := BuiltIn(dir, home)
	both := `webSearch = ["own", "brave"]`
	for _, c := range []struct {
		how     string
		ceiling *Ceiling
		want    string
	}{
		{"no ceiling", nil, "[]"},
		{"the built-in one", built, "[]"},
		{"a file without the key", built.With(ceiling(t, `allowNetAny = true`)), "[]"},
		{"a file that names two", built.With(ceiling(t, both)), "[own brave]"},
		{"a file that names none", built.With(ceiling(t, `webSearch = []`)), "[]"},
		{"a file that only narrows", built.NarrowedBy(ceiling(t, both)), "[]"},
		{"a narrowing file", built.With(ceiling(t, both)).NarrowedBy(ceiling(t, `webSearch = ["brave", "x"]`)), "[brave]"},
		{"a principal", built.With(ceiling(t, both+"\n[principals.a]\nwebSearch = [\"own\"]")).For("a"), "[own]"},
		{"a principal that asks for more", built.With(ceiling(t,
			"webSearch = [\"own\"]\n[principals.a]\nwebSearch = [\"brave\"]")).For("a"), "[]"},
	} {
		attack.Check(t, "search backends of "+c.how, c.want, fmt.Sprint(c.ceiling.SearchBackends()))
	}
	if beyond := ceiling(t, both).Beyond(built); fmt.Sprint(beyond) != "[webSearch own webSearch brave]" {
		t.Errorf("beyond the built-in ceiling: %v", beyond)
	}
	for _, text := range []string{`"own"`, `true`, `["Own"]`, `[1]`, `[""]`, `["-a"]`, `["a b"]`,
		`["` + strings.Repeat("a", 41) + `"]`} {
		if _, err := ParseCeiling("/x", []byte("webSearch = "+text)); err == nil {
			t.Errorf("webSearch = %s is accepted", text)
		}
	}
}
