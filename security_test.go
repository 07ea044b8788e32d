package unitask_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/security.md names for its promises the tests that try to break them. Each row of the table, and each paragraph
// and item about secrets, names such tests. They are called TestAttack…, so that make attack runs them, and are in a
// file that records rows. A paragraph without a promise has a comment that says so.
func TestSecurityPromises(t *testing.T) {
	text, err := os.ReadFile("docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	section := func(title string) string {
		_, rest, found := strings.Cut(string(text), "\n## "+title+"\n")
		if !found {
			t.Fatalf("docs/security.md has no section %q", title)
		}
		body, _, _ := strings.Cut(rest, "\n## ")
		return body
	}
	rows := 0
	for line := range strings.Lines(section("What is promised")) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) != 3 || strings.Contains(cells[0], "---") || cells[2] == "tests |" {
			continue
		}
		rows++
		named := 0
		for group := range strings.SplitSeq(cells[2], "; ") {
			rooms, tests, found := strings.Cut(group, ": ")
			if !found {
				rooms, tests = "`.`", group
			}
			for _, room := range quoted.FindAllStringSubmatch(rooms, -1) {
				for _, name := range quoted.FindAllStringSubmatch(tests, -1) {
					named++
					if !attacks(t, room[1], name[1]) {
						t.Errorf("%s: %s has no %s that records rows", cells[0], room[1], name[1])
					}
				}
			}
		}
		if named == 0 {
			t.Errorf("%s: no test", cells[0])
		}
	}
	if rows < 15 {
		t.Errorf("the table of promises has %d rows", rows)
	}
	items := regexp.MustCompile(`\n\n|\n- `).Split(strings.TrimSpace(section("Secrets")), -1)
	for _, item := range items {
		if !strings.Contains(item, "`TestAttack") && !strings.Contains(item, "<!-- no promise -->") {
			t.Errorf("no test and no comment: %.200s", item)
		}
	}
	if len(items) < 10 {
		t.Errorf("the page has %d paragraphs about secrets", len(items))
	}
}

// quoted matches code in a page.
var quoted = regexp.MustCompile("`([^`]+)`")

// attacks reports whether a package's test files have an attack with a name, which may end in …, and whether they
// record rows.
func attacks(t *testing.T, room, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(room, "*_test.go"))
	if err != nil || !strings.HasPrefix(name, "TestAttack") {
		return false
	}
	prefix, open := strings.CutSuffix(name, "…")
	if !open {
		prefix += "("
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+prefix) && strings.Contains(string(text), "attack.Check(t, ") {
			return true
		}
	}
	return false
}

// Each test with the name of an attack records rows, directly or in a function of its package, so that make attack has
// them.
func TestEachAttackHasRows(t *testing.T) {
	rooms := map[string]map[string]*ast.FuncDecl{}
	err := filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		room := filepath.Dir(name)
		if rooms[room] == nil {
			rooms[room] = map[string]*ast.FuncDecl{}
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				rooms[room][f.Name.Name] = f
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for room, functions := range rooms {
		for name, f := range functions {
			if strings.HasPrefix(name, "TestAttack") && !records(functions, f, map[string]bool{}) {
				t.Errorf("%s: %s records no rows: attack.Check", room, name)
			}
		}
	}
}

// records reports whether a function calls attack.Check, directly or through another function of its package.
func records(functions map[string]*ast.FuncDecl, f *ast.FuncDecl, seen map[string]bool) (does bool) {
	seen[f.Name.Name] = true
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "attack" && n.Sel.Name == "Check" {
				does = true
			}
		case *ast.Ident:
			if next := functions[n.Name]; next != nil && !seen[n.Name] && records(functions, next, seen) {
				does = true
			}
		}
		return !does
	})
	return does
}
