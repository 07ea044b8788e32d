package history

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"
)

// Each existing outcome may be requested.
func TestStatesAreAll(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../run/outcome.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if of, ok := v.Type.(*ast.Ident); ok && of.Name == "Outcome" {
			text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			if found++; err != nil || !slices.Contains(states, text) {
				t.Errorf("%s (%q) is no state: %v", v.Names[0].Name, text, err)
			}
		}
		return true
	})
	if found < 9 {
		t.Errorf("%d outcomes", found)
	}
}
