package contract

import (
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"strings"
	"testing"
	"unicode"
)

var update = flag.Bool("update", false, "write what is made from contract.go")

// fact is a constant of contract.go.
type fact struct {
	name  string
	value constant.Value
	char  bool
}

func facts(t *testing.T) []fact {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "contract.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	checked, err := (&types.Config{Importer: importer.Default()}).Check("contract", set, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []fact
	for _, decl := range file.Decls {
		for _, spec := range decl.(*ast.GenDecl).Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				c := checked.Scope().Lookup(name.Name).(*types.Const)
				list = append(list, fact{name.Name, c.Val(), c.Type() == types.Typ[types.UntypedRune]})
			}
		}
	}
	return list
}

// upper returns a Go name in C's form: GuestIP is GUEST_IP.
func upper(name string) string {
	var out strings.Builder
	r := []rune(name)
	for i, c := range r {
		if i > 0 && unicode.IsUpper(c) && (unicode.IsLower(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToUpper(c))
	}
	return out.String()
}

// literal returns a value in a form that C and JavaScript both read; char writes a letter in the language's form.
func (f fact) literal(char string) string {
	if f.char {
		n, _ := constant.Int64Val(f.value)
		return fmt.Sprintf(char, n)
	}
	return f.value.ExactString()
}

func header(list []fact) string {
	var out strings.Builder
	out.WriteString(
		"// Made from contract.go by `go test ./guest/contract -update`.\n#ifndef UNITASK_CONTRACT_H\n" +
			"#define UNITASK_CONTRACT_H\n\n")
	for _, f := range list {
		fmt.Fprintf(&out, "#define %s %s\n", upper(f.name), f.literal("'%c'"))
	}
	out.WriteString("\n#endif\n")
	return out.String()
}

// The constants that JavaScript needs, by file.
var inJavaScript = map[string][]string{
	"../node/preload.js": {"Preload", "Typescript", "MainLink", "Trusted", "EnvFresh", "Writable", "HeaderSize",
		"EntropySize", "ExitUnknown", "ControlReady", "ControlStarted", "ControlRehearsed"},
	"../node/typescript.js": {"Esbuild"},
}

const (
	jsBegin = "// From ../contract/contract.go by `go test ./guest/contract -update`.\n"
	jsEnd   = "// End of what is from there.\n"
)

func javaScript(t *testing.T, list []fact, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), jsBegin)
	_, after, ok2 := strings.Cut(rest, jsEnd)
	if !ok || !ok2 {
		t.Fatalf("%s does not mark what is from contract.go", file)
	}
	var out strings.Builder
	for _, name := range inJavaScript[file] {
		for _, f := range list {
			if f.name == name {
				fmt.Fprintf(&out, "const %s = %s;\n", upper(f.name), strings.ReplaceAll(f.literal("'%c'"), `"`, "'"))
			}
		}
	}
	if n := strings.Count(out.String(), "\n"); n != len(inJavaScript[file]) {
		t.Fatalf("%d of %d names are in contract.go", n, len(inJavaScript[file]))
	}
	return before + jsBegin + out.String() + jsEnd + after
}

// The generated files agree with contract.go.
func TestDrift(t *testing.T) {
	list := facts(t)
	if len(list) < 60 {
		t.Fatalf("only %d constants", len(list))
	}
	made := map[string]string{"contract.h": header(list)}
	for file := range inJavaScript {
		made[file] = javaScript(t, list, file)
	}
	for name, want := range made {
		if *update {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(name)
		if err != nil || string(have) != want {
			t.Errorf("%s is not what contract.go says: run go test ./guest/contract -update (%v)", name, err)
		}
	}
}

// No two letters of one direction are equal.
func TestLettersDiffer(t *testing.T) {
	for _, prefix := range []string{"Frame", "Kind", "Control", "Word"} {
		seen := map[string]string{}
		for _, f := range facts(t) {
			if !strings.HasPrefix(f.name, prefix) {
				continue
			}
			if other := seen[f.value.ExactString()]; other != "" {
				t.Errorf("%s and %s are both %s", other, f.name, f.value)
			}
			seen[f.value.ExactString()] = f.name
		}
		if len(seen) < 5 {
			t.Errorf("only %d constants begin with %s", len(seen), prefix)
		}
	}
}

func TestUpper(t *testing.T) {
	for in, want := range map[string]string{"GuestIP": "GUEST_IP", "FrameStdinEnd": "FRAME_STDIN_END",
		"HeapReserveMB": "HEAP_RESERVE_MB", "X": "X"} {
		if got := upper(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
