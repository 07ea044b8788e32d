package guest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The replacement for the go command that starts a Go program (golang/program/build.c), on this host. It is compiled
// with the sanitizers. Shell scripts replace compiler and linker.

// building compiles a program that builds the file in its first argument. It prints the program's path, or "go".
func building(t *testing.T, root, work string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("needs gcc")
	}
	program, source := filepath.Join(t.TempDir(), "build"), filepath.Join(t.TempDir(), "main.c")
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	text := `#define _GNU_SOURCE
#include "` + here + `/golang/program/build.h"
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char *none[] = {NULL}, cwd[4096];
	struct start s = {.argv = argv + 1, .env = environ, .flags = none, .cwd = getcwd(cwd, sizeof cwd)};
	char *made = argc > 1 ? build(&s) : NULL;
	puts(made ? made : "go");
	if (made)
		build_drop(made);
	return 0;
}
`
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
		"-fno-sanitize-recover=all", `-DGO_ROOT="`+root+`"`, `-DGO_WORK="`+work+`/go-build"`, "-o", program,
		source, "golang/program/build.c", "start/start.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

type goBuildRow struct {
	file, text string
	env, args  []string
	plain      bool
}

// goBuildRows are the cases of TestGoBuild.
func goBuildRows(main, tools, dir string) map[string]goBuildRow {
	return map[string]goBuildRow{
		"a program":                     {text: main, plain: true},
		"with arguments":                {text: main, args: []string{"x", "y.go"}, plain: true},
		"with variables":                {text: main, env: []string{"X=1", "LANG=C"}, plain: true},
		"comments first":                {text: "// package x\n/* package y */ package /**/ main // z", plain: true},
		"a semicolon":                   {text: "package main;func main() {}", plain: true},
		"a generator":                   {text: main + "//go:generate x\n", plain: true},
		"another package":               {text: "package other\n"},
		"a longer name":                 {text: "package mainly\n"},
		"no package":                    {text: "func main() {}\n"},
		"only a comment":                {text: "/* package main"},
		"nothing":                       {text: "\n"},
		"a NUL byte":                    {text: main + "\x00"},
		"a byte order mark":             {text: "\xef\xbb\xbf" + main},
		"embedded files":                {text: main + "//go:embed x\n"},
		"a setting":                     {text: "//go:debug panicnil=1\n" + main},
		"a constraint":                  {text: "//go:build linux\n\n" + main},
		"an old one":                    {text: "// +build linux\n\n" + main},
		"C":                             {text: main + "import \"C\"\n"},
		"C in raw":                      {text: main + "import `C`\n"},
		"no such file":                  {},
		"another file's":                {text: main, args: []string{"second.go"}},
		"a test":                        {file: "x_test.go", text: main},
		"a hidden one":                  {file: "_x.go", text: main},
		"a dot":                         {file: ".x.go", text: main},
		"no source":                     {file: "x.txt", text: main},
		"a setting of go":               {text: main, env: []string{"GOFLAGS=-race"}},
		"one of cgo":                    {text: main, env: []string{"CGO_ENABLED=1"}},
		"another home":                  {text: main, env: []string{"HOME=/root"}},
		"a C compiler":                  {text: main, env: []string{"PATH=/no/such:" + tools}},
		"another name of the folder":    {text: main, env: []string{"PWD=/proc/self/cwd"}},
		"the folder's own name":         {text: main, env: []string{"PWD=" + dir}, plain: true},
		"packages without sources":      {text: "//go:binary-only-package\n\n" + main},
		"a dash":                        {file: "-x.go", text: main},
		"a space":                       {file: " x.go", text: main},
		"a line in its name":            {file: "x\n.go", text: main},
		"a letter of others":            {file: "é.go", text: main, plain: true},
		"another folder for work":       {text: main, env: []string{"TMPDIR=/var/tmp"}},
		"another folder for its config": {text: main, env: []string{"XDG_CONFIG_HOME=/x"}},
	}
}

type goToolsRow struct{ compile, link, printed, errs string }

// goToolsRows are outputs of compiler and linker, and the results.
func goToolsRows(at, links, dir, work string) map[string]goToolsRow {
	return map[string]goToolsRow{
		"an error": {"echo " + at + ":3:1: undefined: x; exit 2", links, "",
			"# command-line-arguments\n./x.go:3:1: undefined: x\n"},
		"more of one": {fmt.Sprintf(
			`printf '%[1]s:3:1: x redeclared in this block\n\t%[1]s:2:1: other\n\thave int\n'; exit 2`, at), links, "",
			"# command-line-arguments\n./x.go:3:1: x redeclared in this block\n\t./x.go:2:1: other\n\thave int\n"},
		"not imported": {`echo '` + at + `:3:1: "os" imported and not used' >&2; exit 1`, links, "",
			"# command-line-arguments\n./x.go:3:1: \"os\" imported and not used\n"},
		"a parser's words": {"echo " + at + ":3:1: invalid UTF-8 encoding; exit 2", links, "go", ""},
		"an open comment":  {"echo " + at + ":3:1: comment not terminated; exit 2", links, "go", ""},
		"a line number":    {"echo " + at + ":3:1: invalid line number: 0; exit 2", links, "go", ""},
		"cgo's position":   {"echo '" + at + ":3:1: cannot use \"[a.cgo1.go:1]\"'; exit 2", links, "go", ""},
		"one column":       {"echo " + at + ":3: undefined: x; exit 2", links, "go", ""},
		"nothing":          {"exit 2", links, "go", ""},
		"an import":        {"echo " + at + ":3:1: could not import x; exit 2", links, "go", ""},
		"syntax":           {"echo " + at + ":3:1: syntax error: x; exit 2", links, "go", ""},
		"a quoted one": {"echo '" + at + `:3:1: syntax error: unexpected literal "a is not used"'; exit 2`, links, "go",
			""},
		"too many": {"echo " + at + ":3:1: undefined: x; echo " + at + ":3:1: too many errors; exit 2", links, "go",
			""},
		"another file":       {"echo other.go:3:1: undefined: x; exit 2", links, "go", ""},
		"no place":           {"echo " + at + ": undefined: x; exit 2", links, "go", ""},
		"a longer name":      {"echo " + at + "x:3:1: undefined: x; exit 2", links, "go", ""},
		"a path in it":       {"echo " + at + ":3:1: undefined: " + dir + "; exit 2", links, "go", ""},
		"the work folder":    {"echo " + at + ":3:1: undefined: /tmp/go-build; exit 2", links, "go", ""},
		"no end of the line": {"printf %s '" + at + ":3:1: undefined: x'; exit 2", links, "go", ""},
		"a NUL byte":         {`printf '` + at + `:3:1: undefined: \0x\n'; exit 2`, links, "go", ""},
		"a lot":              {"head -c 2000000 /dev/zero | tr '\\0' x; exit 2", links, "go", ""},
		"a signal":           {"echo " + at + ":3:1: undefined: x; kill -9 $$", links, "go", ""},
		"a warning":          {"echo " + at + ":3:1: odd", links, "go", ""},
		"its own end":        {"rm -rf $(dirname $2)/exe", links, "go", ""},
		"a linker's error":   {"exit 0", "#!/bin/sh\necho missing; exit 1\n", "go", ""},
		"one's warning":      {"exit 0", links + "echo odd\n", "go", ""},
		"one's silence":      {"exit 0", "#!/bin/sh\nexit 1\n", "go", ""},
		"input and channel":  {"cat; [ -e /proc/$$/fd/3 ] && exit 3; exit 0", links, work, ""},
	}
}

func TestGoBuild(t *testing.T) {
	root, dir, work := t.TempDir(), t.TempDir(), t.TempDir()
	program := building(t, root, work)
	if err := os.Mkdir(filepath.Join(root, "direct"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	compile, link := filepath.Join(root, "compile"), filepath.Join(root, "link")
	const works = "#!/bin/sh\nexit 0\n"
	write(filepath.Join(root, "direct/commands"), strings.Join([]string{compile, "-o", "$WORK/b001/_pkg_.a", "-buildid",
		"$ID", "$FILE", "", link, "-o", "$WORK/b001/exe/$NAME", "-buildid=$ID", "$WORK/b001/_pkg_.a", ""}, "\n"), 0o644)
	const links = "#!/bin/sh\necho program > $2; chmod 755 $2\n"
	channel, err := os.Open(os.DevNull) // instead of the control channel, which no tool may have
	if err != nil {
		t.Fatal(err)
	}
	defer channel.Close()

	// run builds a file with that text, and returns the result.
	in := dir
	run := func(t *testing.T, name, text string, env []string, args ...string) (printed, errs string, code int) {
		t.Helper()
		file := filepath.Join(dir, name)
		if text != "" {
			write(file, text, 0o644)
			defer os.Remove(file)
		}
		cmd := exec.Command(program, append([]string{file}, args...)...)
		var out, said bytes.Buffer
		cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = in, strings.NewReader("input"), &out, &said
		cmd.ExtraFiles = []*os.File{channel}
		cmd.Env = append([]string{"HOME=/home/user", "PATH=/no/such", "ASAN_OPTIONS=detect_leaks=0:exitcode=99"}, env...)
		err := cmd.Run()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(work); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v %v", left, err)
		}
		return strings.TrimSuffix(out.String(), "\n"), said.String(), cmd.ProcessState.ExitCode()
	}
	const main = "package main\n\nfunc main() {}\n"

	refuseBuilds(t, write, compile, works, link, links, main, dir, run, work)

	// Messages of compiler and linker.
	at := filepath.Join(dir, "x.go")
	for name, c := range goToolsRows(at, links, dir, work) {
		t.Run(name, func(t *testing.T) {
			write(compile, "#!/bin/sh\n"+c.compile+"\n", 0o755)
			write(link, c.link, 0o755)
			printed, errs, code := run(t, "x.go", main, nil)
			if !strings.HasPrefix(printed, c.printed) || (c.printed == "") != (printed == "") || errs != c.errs ||
				(code == 1) != (c.errs != "") || code > 1 {
				t.Errorf("%q %q %d", printed, errs, code)
			}
		})
	}

	// A path from elsewhere stays as it is, unless go would shorten it.
	write(compile, "#!/bin/sh\necho "+at+":3:1: undefined: x; exit 2\n", 0o755)
	for folder, want := range map[string]string{"/usr/bin": "# command-line-arguments\n" + at + ":3:1: undefined: x\n",
		"/": "", filepath.Dir(dir): ""} {
		in = folder
		if printed, errs, code := run(t, "x.go", main, nil); errs != want || (printed == "go") != (want == "") ||
			(code == 1) != (want != "") {
			t.Errorf("in %s: %q %q %d", folder, printed, errs, code)
		}
	}
	in = dir

	// Invalid descriptions.
	refuseGoFiles(t, write, compile, works, link, links, root, run, main)
}

// refuseGoFiles checks files that are not a program of one file.
func refuseGoFiles(
	t *testing.T, write func(name string, text string, mode os.FileMode), compile, works, link, links,
	root string,
	run func(t *testing.T, name string, text string, env []string, args ...string) (printed string, errs string, code int),
	main string,
) {
	t.Helper()
	write(compile, works, 0o755)
	write(link, links, 0o755)
	for name, text := range map[string]string{
		"empty": "", "no linker": compile + "\n-o\n", "no compiler": "\n" + link + "\n",
		"no such program": "/no/such\n\n" + link + "\n", "NUL": compile + "\x00\n\n" + link + "\n",
		"too long": strings.Repeat("x", 1<<20), "no end": compile, "only ends": "\n\n\n\n",
	} {
		write(filepath.Join(root, "direct/commands"), text, 0o644)
		if printed, errs, code := run(t, "x.go", main, nil); printed != "go" || errs != "" || code != 0 {
			t.Errorf("%s: %q %q %d", name, printed, errs, code)
		}
	}
}

// refuseBuilds checks builds that are not a plain build of one program.
func refuseBuilds(
	t *testing.T, write func(name string, text string, mode os.FileMode), compile, works, link, links, main,
	dir string,
	run func(t *testing.T, name string, text string, env []string, args ...string) (printed string, errs string, code int),
	work string,
) {
	t.Helper()
	tools := t.TempDir()
	write(filepath.Join(tools, "gcc"), "", 0o755)

	// Which programs the replacement builds.
	write(compile, works, 0o755)
	write(link, links, 0o755)
	for name, c := range goBuildRows(main, tools, dir) {
		t.Run(name, func(t *testing.T) {
			env := c.env
			if c.file == "" {
				c.file = "x.go"
			}
			printed, errs, code := run(t, c.file, c.text, env, c.args...)
			if plain := strings.HasPrefix(printed, work+"/go-build") &&
				strings.HasSuffix(printed, "/b001/exe/"+strings.TrimSuffix(c.file, ".go")); plain != c.plain ||
				!plain && printed != "go" || errs != "" || code != 0 {
				t.Errorf("%q %q %d", printed, errs, code)
			}
		})
	}
	for _, name := range []string{"go.mod", "go.work"} {
		for _, in := range []string{dir, filepath.Dir(dir)} {
			write(filepath.Join(in, name), "", 0o644)
			if printed, _, _ := run(t, "x.go", main, nil); printed != "go" {
				t.Errorf("with %s in %s: %q", name, in, printed)
			}
			os.Remove(filepath.Join(in, name))
		}
	}
}
