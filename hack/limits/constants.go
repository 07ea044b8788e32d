package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
)

const module = "github.com/unitask/unitask"

// limitName matches the names that this project gives to limits and defaults.
var limitName = regexp.MustCompile(`^(max|min|default|Max|Min|Default)[A-Z]`)

// number is a numeric constant of the code.
type number struct {
	value    constant.Value
	duration bool
	comment  string
}

// loader type-checks packages of the module without the bodies of functions. Names that it can't resolve are not an
// error: constants need few imports.
type loader struct {
	root     string
	files    *token.FileSet
	standard types.Importer
	done     map[string]*types.Package
	numbers  map[string]number // by folder and name: "policy.MaxRules"
}

func newLoader(root string) *loader {
	files := token.NewFileSet()
	return &loader{root: root, files: files, standard: importer.ForCompiler(files, "source", nil),
		done: map[string]*types.Package{}, numbers: map[string]number{}}
}

// Import implements types.Importer.
func (l *loader) Import(path string) (*types.Package, error) {
	if path == "time" || path == "math" {
		return l.standard.Import(path)
	}
	dir, ours := strings.CutPrefix(path, module)
	if !ours {
		return nil, fmt.Errorf("%s is not needed", path)
	}
	return l.load(strings.TrimPrefix(dir, "/"))
}

// load reads the constants of a folder.
func (l *loader) load(dir string) (*types.Package, error) {
	if p := l.done[dir]; p != nil {
		return p, nil
	}
	host := build.Default
	host.GOOS, host.GOARCH = "linux", "amd64"
	names, err := filepath.Glob(filepath.Join(l.root, dir, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range names {
		match, err := host.MatchFile(filepath.Split(name))
		if err != nil {
			return nil, err
		}
		if !match || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(l.files, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: l, IgnoreFuncBodies: true, Error: func(error) {}}
	p, _ := config.Check(module+"/"+dir, l.files, files, info)
	l.done[dir] = p
	for _, file := range files {
		l.add(dir, file, info)
	}
	return p, nil
}

// add collects the numbers of a file.
func (l *loader) add(dir string, file *ast.File, info *types.Info) {
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST && group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			values := spec.(*ast.ValueSpec)
			for _, name := range values.Names {
				c, ok := info.Defs[name].(*types.Const)
				if !ok || c.Val().Kind() != constant.Int && c.Val().Kind() != constant.Float {
					continue
				}
				text := values.Comment.Text() + values.Doc.Text()
				if text == "" {
					text = group.Doc.Text()
				}
				key := dir + "." + name.Name
				l.numbers[key] = number{value: c.Val(), comment: strings.Join(strings.Fields(text), " "),
					duration: strings.HasSuffix(c.Type().String(), "time.Duration")}
			}
		}
	}
}

// loadAll reads the constants of all packages except those of hack and tests.
func (l *loader) loadAll() error {
	return filepath.WalkDir(l.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		dir, err := filepath.Rel(l.root, name)
		if err != nil {
			return err
		}
		if base := d.Name(); dir != "." && (base == "hack" || base == "testdata" || base == "node_modules" ||
			strings.HasPrefix(base, ".") || strings.HasPrefix(base, "test")) {
			return filepath.SkipDir
		}
		if dir == "." {
			dir = ""
		}
		_, err = l.load(dir)
		return err
	})
}
