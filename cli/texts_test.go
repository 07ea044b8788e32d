package cli

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// eachText calls do for every text in the Go files below a folder, except tests.
func eachText(t *testing.T, root string, do func(at token.Position, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == "hack"):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				text, e := strconv.Unquote(lit.Value)
				err = errors.Join(err, e)
				do(set.Position(lit.Pos()), text)
			}
			return true
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The commands that our messages, hints and help name exist.
func TestTextsNameCommands(t *testing.T) {
	named, checked := regexp.MustCompile(`\bunitask ([a-z]+)(?: ([a-z][a-z-]*)\b)?`), 0
	root, sentences := Command(), []string{"runs code", "mcp follow", "session key", "worker on"}
	eachText(t, "..", func(where token.Position, text string) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			at := slices.IndexFunc(root.Commands(), func(c *cobra.Command) bool { return c.Name() == m[1] })
			if at < 0 {
				continue // a sentence about unitask
			}
			checked++
			if sub := root.Commands()[at].Commands(); m[2] != "" && len(sub) > 0 &&
				!slices.Contains(sentences, m[1]+" "+m[2]) &&
				!slices.ContainsFunc(sub, func(c *cobra.Command) bool { return c.Name() == m[2] }) {
				t.Errorf("%s: %q is no command", where, m[0])
			}
		}
	})
	if checked < 30 {
		t.Errorf("%d commands are named", checked)
	}
}
