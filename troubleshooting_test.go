package unitask_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// source is the code's texts, as troubleshooting.md quotes them.
type source struct {
	texts   []string            // constant texts; the parts of a sum are joined
	typed   map[string][]string // texts of constants, by their type's name
	called  map[string][]string // texts among the arguments of a call, by "folder function"
	members map[string][]string // texts of a literal's fields, by name
}

// folded returns the text of a constant, or of a sum of constants; other parts of a sum become "…".
func folded(e ast.Expr) (text string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		left, one := folded(e.X)
		right, other := folded(e.Y)
		if !one {
			left = "…"
		}
		if !other {
			right = "…"
		}
		return left + right, e.Op == token.ADD && (one || other)
	case *ast.CallExpr: // fmt.Sprintf
		if len(e.Args) > 0 {
			return folded(e.Args[0])
		}
	}
	return "", false
}

// note collects the texts of a node.
func (s *source) note(dir string, n ast.Node) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if text, ok := folded(n); ok {
			s.texts = append(s.texts, text)
		}
	case *ast.BasicLit:
		if text, ok := folded(n); ok {
			s.texts = append(s.texts, text)
		}
	case *ast.ValueSpec:
		if name, ok := n.Type.(*ast.Ident); ok && len(n.Values) == 1 {
			if text, ok := folded(n.Values[0]); ok {
				s.typed[name.Name] = append(s.typed[name.Name], text)
			}
		}
	case *ast.CallExpr:
		name := ""
		switch f := n.Fun.(type) {
		case *ast.Ident:
			name = f.Name
		case *ast.SelectorExpr:
			name = f.Sel.Name
		}
		for _, arg := range n.Args {
			if text, ok := folded(arg); ok {
				s.called[dir+" "+name] = append(s.called[dir+" "+name], text)
			}
		}
	case *ast.KeyValueExpr:
		if name, ok := n.Key.(*ast.Ident); ok {
			if text, ok := folded(n.Value); ok {
				s.members[dir+" "+name.Name] = append(s.members[dir+" "+name.Name], text)
			}
		}
	}
}

func readSource(t *testing.T) *source {
	t.Helper()
	s := &source{typed: map[string][]string{}, called: map[string][]string{}, members: map[string][]string{}}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "hack" || d.Name() == "testdata"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool { s.note(filepath.Dir(name), n); return true })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// says reports whether one text of the code contains the fixed words of a quoted message, in order.
func (s *source) says(message string) bool {
	parts := strings.Split(message, "…")
	return slices.ContainsFunc(s.texts, func(text string) bool {
		for _, part := range parts {
			at := strings.Index(text, part)
			if at < 0 {
				return false
			}
			text = text[at+len(part):]
		}
		return true
	})
}

// firstCells returns the quotes in the first cells of a page's tables, by the name of their column.
func firstCells(page string) map[string][]string {
	cells, column, above := map[string][]string{}, "", ""
	quoted := regexp.MustCompile("^\\| `([^`]*)`")
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "| ---") {
			column = strings.TrimSpace(strings.Split(above, "|")[1])
		}
		if m := quoted.FindStringSubmatch(line); m != nil {
			cells[column] = append(cells[column], m[1])
		}
		above = line
	}
	return cells
}

// The code contains each message that docs/troubleshooting.md quotes.
func TestTroubleshootingQuotes(t *testing.T) {
	page, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	code, cells := readSource(t), firstCells(string(page))
	quoted := slices.Concat(cells["message"], cells["reason"])
	if len(quoted) < 50 {
		t.Errorf("got %d messages, want 50 or more", len(quoted))
	}
	for _, message := range quoted {
		if len(strings.Trim(message, "… ")) < 7 {
			t.Errorf("%q is too short to be found", message)
		}
		if !code.says(message) {
			t.Errorf("docs/troubleshooting.md quotes %q, which the code does not say", message)
		}
	}
	if code.says("no such… message at all") {
		t.Error("got a message that the code does not have")
	}
}

var verb = regexp.MustCompile(`%[-+.#0-9]*[a-z]`)

// Each outcome, exit code, kind and cause of a hint, denial, limit of MCP, and line of the doctor has an entry.
func TestTroubleshootingIsComplete(t *testing.T) {
	text, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	page, code := string(text), readSource(t)
	cells := firstCells(page)
	for _, class := range []struct {
		name, column string
		want         []string
		least        int
	}{
		{"kinds of hints", "kind", code.typed["HintKind"], 9},
		{"causes of failed connections", "cause", code.typed["Failure"], 4},
		{"limits of MCP", "limit", code.members["mcp Limit"], 12},
		{"reasons of denials", "reason", code.called["policy deny"], 8},
	} {
		if len(class.want) < class.least {
			t.Errorf("%s: got %q, want %d or more", class.name, class.want, class.least)
		}
		for _, want := range class.want {
			want = strings.ReplaceAll(verb.ReplaceAllString(want, "…"), "……", "…")
			if !slices.Contains(cells[class.column], want) {
				t.Errorf("%s: docs/troubleshooting.md has no row of %q", class.name, want)
			}
		}
	}
	for _, outcome := range append(code.typed["Outcome"], "usage") {
		if !strings.Contains(page, " | `"+outcome+"` | ") {
			t.Errorf("docs/troubleshooting.md has no outcome %s", outcome)
		}
	}
	if n := len(code.typed["Outcome"]); n < 10 {
		t.Errorf("got %d outcomes, want 10 or more", n)
	}
	for _, exit := range []int{run.ExitUsage, run.ExitUndelivered, run.ExitTimeout, run.ExitHost, run.ExitCancelled,
		run.ExitOOM, run.ExitSignal} {
		if !strings.Contains(page, fmt.Sprintf("\n| %d | ", exit)) {
			t.Errorf("docs/troubleshooting.md has no exit code %d", exit)
		}
	}
	for _, name := range policy.JailNames {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/troubleshooting.md does not name the jail's %s", name)
		}
	}
}

// Each line that the doctor may print has a row.
func TestTroubleshootingDoctor(t *testing.T) {
	text, err := os.ReadFile("docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("internal/doctor/*.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := firstCells(string(text))["line"]
	seen := 0
	for _, name := range files {
		code, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\br\.add\("([a-z]+)"`).FindAllStringSubmatch(string(code), -1) {
			if seen++; !slices.Contains(rows, m[1]) {
				t.Errorf("docs/troubleshooting.md has no row of the doctor's line %s", m[1])
			}
		}
	}
	if seen < 10 {
		t.Errorf("got %d lines of the doctor, want 10 or more", seen)
	}
}
