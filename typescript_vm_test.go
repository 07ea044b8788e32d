package unitask_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unitask/unitask"
)

// TypeScript that is more than JavaScript with types runs, and stack traces have its lines. What Node runs by itself is
// as Node has it.
func TestTypeScript(t *testing.T) {
	needVM(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"k.ts":    "export enum K { Y, Z }\n",
		"old.cts": "import fs = require('fs');\nenum A { X = 3 }\nexport = { a: A.X, f: typeof fs.readFileSync };\n",
	} {
		mustDo(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, kernel := range kernels(t) {
		rt := openRuntime(t, unitask.Options{Home: newHome(t)})
		for _, c := range []struct{ name, file, code, stdout, stderr string }{
			{"an enum", "code.ts", "enum Color { Red, Green = 'g' }\nconsole.log(Color.Red, Color.Green, Color[0])", "0 g Red\n", ""},
			{"a const enum", "code.ts", "const enum E { A = 1 << 3 }\nconsole.log(E.A)", "8\n", ""},
			{"a namespace", "code.ts", "namespace N.M { export const x = 5; export function f(): number { return x } }\nconsole.log(N.M.f())", "5\n", ""},
			{"a parameter property", "code.ts", "class P { constructor(private readonly a: number, public b = 2) {} sum() { return this.a + this.b } }\nconsole.log(new P(40).sum())", "42\n", ""},
			{"an assertion in angle brackets", "code.ts", "console.log(<any>undefined, (<string>'x').length)", "undefined 1\n", ""},
			{"import of a module that has an enum", "code.ts", "import { K } from './k.ts'\nenum C { A, B }\nconsole.log(K.Z, C.B, typeof require, import.meta.filename.slice(-8))", "1 1 undefined /code.ts\n", ""},
			{"import of CommonJS", "code.mts", "import old from './old.cts'\nconsole.log(old.a, old.f, await Promise.resolve(7))", "3 function 7\n", ""},
			{"require of one", "code.cts", "const { K } = require('./k.ts')\nconsole.log(K.Y)", "0\n", ""},
			{"dynamic import", "code.ts", "import('./k.ts').then((m) => console.log(m.K.Z))", "1\n", ""},
			{"a stack trace", "code.ts", "enum A { X }\n\ninterface I { a: A }\nfunction f(i: I): never {\n  throw new Error('deep ' + i.a)\n}\nf({ a: A.X })", "", "code.ts:5:9)"},
			{"a stack trace where types are removed only", "code.ts", "interface I { a: number }\nfunction f(i: I): never {\n  throw new Error('deep ' + i.a)\n}\nf({ a: 1 })", "", "code.ts:3:9)"},
			{"what is no TypeScript", "code.ts", "enum A { X\nlet", "", "ERR_INVALID_TYPESCRIPT_SYNTAX"},
			{"nothing said of transforming", "code.ts", "enum A { X }\nconsole.error(process.sourceMapsEnabled, process.execArgv.length)", "", "true 0\n"},
			{"nothing changed elsewhere", "code.ts", "const a: number = 1\nconsole.log(a, process.sourceMapsEnabled, new Error('').stack.split('\\n')[1].replace(/^.*\\//, ''))", "1 false code.ts:2:43)\n", ""},
		} {
			req := unitask.Request{Kernel: kernel, Code: c.code, Path: filepath.Join(dir, c.file), Dirs: []unitask.Mount{{Host: dir}}}
			res, err := rt.Run(t.Context(), req, unitask.IO{})
			if err != nil || string(res.Stdout) != c.stdout || !strings.Contains(string(res.Stderr), c.stderr) || c.stderr == "" && len(res.Stderr) > 0 {
				t.Errorf("%s on %s: %v, stdout %q, stderr %q", c.name, kernel, err, res.Stdout, res.Stderr)
			}
			if strings.Contains(string(res.Stderr), "preload") {
				t.Errorf("%s on %s: our own file is in %q", c.name, kernel, res.Stderr)
			}
		}
		if kernel == unitask.Linux {
			res, err := rt.Run(t.Context(), unitask.Request{Kernel: kernel, Code: "enum A { X }", Path: "/work/code.ts", Check: true}, unitask.IO{})
			if err != nil || res.ExitCode != 0 {
				t.Errorf("check: %+v %v", res, err)
			}
		}
	}
}
