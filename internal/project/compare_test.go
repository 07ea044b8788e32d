package project

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// Patterns of a stranger's repository beyond the limits name nothing, and cost nothing.
func TestAttackPatterns(t *testing.T) {
	for name, text := range map[string]string{
		"very many patterns": strings.Repeat("a\n", 40*maxPatterns),
		"a very long one":    strings.Repeat("*a", maxPattern) + "b\n",
	} {
		b := brought(t, "/host", map[string]string{".gitignore": text})
		rules := b.ignoring()
		got := "bounded"
		if rules.bytes > 2*maxPatterns*maxPattern/100 {
			got = "not bounded"
		}
		attack.Check(t, "project: a .gitignore with "+name, "bounded", got)
	}
	b := brought(t, "/host", map[string]string{".gitignore": strings.Repeat("*a*a*a*a*b\n", maxPatterns)})
	rules, err := b.ignoring(), error(nil)
	rules.left /= 100
	for range 1000 {
		if _, err = rules.match(strings.Repeat("a", 255)); err != nil {
			break
		}
	}
	attack.Check(t, "project: patterns that take hours to compare", "refused", outcome(err))
}

// A name that is not UTF-8 is left out and counted; the rest of the project is compared.
func TestCompareOddNames(t *testing.T) {
	b := brought(t, "/host", map[string]string{"a": "1\n", "old\xff": "2\n"})
	r := compared(t, b, map[string]string{"a": "new\n"}, "f644 4 3000.0 a", "f644 2 1.0 old\xff", "f644 1 3000.0 n\xfe")
	if got := brief(r.Changes); r.Ignored != 2 || !strings.Contains(got, "a;") || strings.Count(got, ";") != 1 {
		t.Errorf("%s, %d ignored", got, r.Ignored)
	}
}

// A renamed file whose new name can't be written here keeps its old one.
func TestAttackRename(t *testing.T) {
	files := map[string]string{"old": "text\n", "other": "o\n"}
	dir := write(t, map[string]string{"old": "text\n", "other": "o\n", "new": "-> other"})
	b := brought(t, dir, files)
	r := compared(t, b, map[string]string{"new": "text\n"}, "f644 5 1999.0 new", "f644 2 1.0 other")
	if got := brief(r.Changes); got != "renamed old new;" {
		t.Fatal(got)
	}
	p, err := r.Propose(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "project: files changed by a rename onto a link", "0", fmt.Sprint(len(p.Files)))
}
