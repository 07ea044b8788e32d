package language

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// guessed are folders with programs of others: in this repository, and on a host with Go and Debian.
func guessed(t *testing.T) []struct{ dir, ext, want string } {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	goroot := strings.TrimSpace(string(out))
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	npm := filepath.Join(home, ".unitask/cache/npm-inspector")
	return []struct{ dir, ext, want string }{
		{goroot + "/src/cmd", ".go", "go"}, {goroot + "/test", ".go", "go"},
		{"/usr/lib/python3", ".py", "python"}, {"/usr/lib/python3.11", ".py", "python"},
		{"/usr/lib/python3.13", ".py", "python"}, {"../../testdata", ".py", "python"},
		{npm, ".js", "js"}, {npm, ".ts", "ts"}, {"../../testdata", ".js", "js"}, {"../../testdata", ".mjs", "js"},
		{"../../testdata", ".ts", "ts"}, {"/usr/bin", "", "shell"}, {"/var/lib/dpkg/info", ".postinst", "shell"},
	}
}

// Guess is never wrong about programs of others; it may return no result.
func TestGuess(t *testing.T) {
	most := 300 // of a folder
	if testing.Short() {
		most = 60
	}
	known, all := map[string]int{}, map[string]int{}
	for _, from := range guessed(t) {
		n, ok := 0, 0
		err := filepath.WalkDir(from.dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || filepath.Ext(name) != from.ext || n == most {
				return nil
			}
			text, err := os.ReadFile(name)
			code := string(text)
			if err != nil || code == "" || from.want == "shell" && OfScript(code) != "shell" {
				return nil
			}
			if strings.HasPrefix(code, "#!") { // it would decide
				_, code, _ = strings.Cut(code, "\n")
			}
			n++
			switch got := Guess(code); {
			case got == from.want, from.want == "ts" && got == "js": // without types
				ok++
			case got != "":
				t.Errorf("%s: guessed %s, is %s", name, got, from.want)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s, %s: %d of %d known", from.dir, from.ext, ok, n)
		known[from.want] += ok
		all[from.want] += n
	}
	for _, language := range []string{"go", "js", "python", "shell"} { // a host may have no TypeScript
		if all[language] < 20 || known[language]*10 < all[language]*8 {
			t.Errorf("%s: %d of %d programs are known, want 80 %% of 20 or more", language, known[language], all[language])
		}
	}
}

// Short code as models send it is recognized, or refused; never guessed wrong.
func TestGuessShort(t *testing.T) {
	for code, want := range map[string]string{
		"": "",
		"#include <x>\nint main() {\n return 0;\n}": "",
		"1 + 1":         "",
		"<?php echo 1;": "",
		"SELECT 1;":     "",
		"[1, 2]":        "",
		"const md = `\ncd foo\nls -la\ngit status\n`\nmd.length": "",
		"document.title = 'None'":                                "",
		"export class A {}":                                      "",
		"export const x = 1":                                     "",
		"export default 42":                                      "",
		"foo()":                                                  "",
		"if (n := len(a)) > 10: print(n)":                        "",
		"interface A { x: number }\nconsole.log(1)":              "",
		"let x = 1":                                              "",
		"parse(`\npackage foo\nmessage A {}\n`)":                 "",
		"print 'old'":                                            "",
		"puts 'ruby'":                                            "",
		"return 1":                                               "",
		"self.x = 1\nself.x":                                     "",
		"x = 1":                                                  "",
		"x=1; y=2":                                               "",
		"y = \"\"\"\npackage main\n\"\"\"":                       "",
		"{}":                                                     "",
		"package main\n\nfunc main() { println(1) }": "go",
		"console.log(1)":             "js",
		"const f = (x) => x;\nf(1);": "js",
		"fetch('https://a.example').then(r => r.text()).then(console.log)": "js",
		"import fs from 'fs'": "js",
		"import { a } from 'b'\nconst s = `\nset -e\ncd /x\nif [ -f a ]; then\necho b\nfi\n`":       "js",
		"require('fs').writeFileSync('a.py', `\nimport os\nimport sys\ndef f(x):\n    print(x)\n`)": "js",
		"def f(x):\n    return x\nf(1)":                                               "python",
		"for i in range(3):\n    print(i)":                                            "python",
		"html = \"\"\"\n<script>\nconst x = 1;\nconsole.log(x);\n\"\"\"\nprint(html)": "python",
		"import numpy as np\nnp.zeros(3)":                                             "python",
		"import os\nprint(os.getcwd())":                                               "python",
		"print('hello', 1 + 1)":                                                       "python",
		"print(1)":                                                                    "python",
		"sh = \"\"\"\nset -eu\nfor f in *; do\n\"\"\"\nprint(sh)":                     "python",
		"#!/bin/sh\nls":                                                               "shell",
		"cat > a.py <<EOF\nimport os\nprint(1)\nEOF\n":                                "shell",
		"echo hello":                        "shell",
		"export PATH=/bin":                  "shell",
		"for i in 1 2 3; do\necho $i\ndone": "shell",
		"git status":                        "shell",
		"ls -l":                             "shell",
		"const x: number = 1;\nlet y: string = 'a';": "ts",
	} {
		if got := Guess(code); got != want {
			t.Errorf("%q: got %q, want %q", code, got, want)
		}
	}
	if !slices.Contains(Names(), Guess("console.log(1)")) {
		t.Error("a guess is no language's name")
	}
}
