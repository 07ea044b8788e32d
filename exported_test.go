package unitask_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/exported.txt and docs/layers.svg anew")

// publicPackages are the packages that other programs may import.
var publicPackages = []string{".", "run", "session", "policy", "record", "fleet"}

// The public packages export exactly what testdata/exported.txt lists. Whoever adds or removes a name updates the list
// (go test -run TestExportedNames . -update).
func TestExportedNames(t *testing.T) {
	const golden = "testdata/exported.txt"
	names := map[string]bool{}
	for _, dir := range publicPackages {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range file.Decls {
				addExported(names, file.Name.Name, decl)
			}
		}
	}
	got := strings.Join(slices.Sorted(maps.Keys(names)), "\n") + "\n"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if listed[line] = true; !names[line] {
			t.Errorf("%s lists %s, which is not exported", golden, line)
		}
	}
	for name := range names {
		if !listed[name] {
			t.Errorf("%s is exported, and %s does not list it", name, golden)
		}
	}
}

// addExported adds the exported names of a declaration, with their package. It adds a method or field with its type.
func addExported(names map[string]bool, pkg string, decl ast.Decl) {
	add := func(path ...string) {
		if !slices.ContainsFunc(path, func(one string) bool { return !ast.IsExported(one) }) {
			names[pkg+"."+strings.Join(path, ".")] = true
		}
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			add(d.Name.Name)
			return
		}
		add(receiver(d.Recv.List[0].Type), d.Name.Name)
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range s.Names {
					add(name.Name)
				}
			case *ast.TypeSpec:
				add(s.Name.Name)
				for _, member := range members(s.Type) {
					add(s.Name.Name, member)
				}
			}
		}
	}
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// members returns the names of a type's fields, or of an interface's methods.
func members(e ast.Expr) (list []string) {
	var fields *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		fields = e.Fields
	case *ast.InterfaceType:
		fields = e.Methods
	default:
		return nil
	}
	for _, f := range fields.List {
		for _, name := range f.Names {
			list = append(list, name.Name)
		}
	}
	return list
}
