package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testhome"
)

// nodeProgram is the Node of the guests, if this host can start it.
func nodeProgram(t *testing.T) string {
	t.Helper()
	base, err := testhome.Base()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(base, "vendor", runtime.GOARCH, "node", "node")
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) || runtime.GOOS != "linux" {
		t.Skip("there is no Node of guests that starts here: `unitask image vendor` fetches it")
	}
	return name
}

// run returns Node's output for a program in a folder. With hooked, typescript.js resolves and loads its modules.
func run(t *testing.T, node, program string, hooked bool) string {
	t.Helper()
	typescript, err := filepath.Abs("typescript.js")
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("require(%q)", program)
	if hooked {
		text = fmt.Sprintf("const m = require(%q); if (m.isTyped(%q)) m.hook(); %s", typescript, program, text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, node, "--no-warnings", "--max-old-space-size=512", "-e", text).CombinedOutput()
	if ctx.Err() != nil {
		return "it takes more than 20 seconds"
	}
	if err != nil {
		return fmt.Sprintf("%v: %.300s", err, out)
	}
	return string(out)
}

// A tsconfig.json that differs from tsc's format changes nothing in a program of plain JavaScript, and takes no time.
func TestAttackSettings(t *testing.T) {
	t.Parallel()
	node := nodeProgram(t)
	const program = `const told = (name) => { try { return require(name) } catch (e) { return e.name + ' ' + e.code } };
console.log(require('./a'), ['pkg', '#x', './none\0x', 'x'.repeat(5000), './' + 'x'.repeat(5000)].map(told).join());`
	const extends = `{"extends":["./%[1]da.json","./%[1]db.json"]}`
	commented := func(text string) string { return `{"a":1,` + strings.Repeat(text, 100) + "\n\"b\":2}" }
	options := func(text string) string { return `{"compilerOptions":` + text + `}` }
	for name, settings := range map[string]string{
		"nothing": "", "null": "null", "a number": "5", "a text": `"x"`, "a list": "[]", "half of JSON": "{",
		"options that are null": options("null"), "options that are a text": options(`"abc"`),
		"a baseUrl that is a number": options(`{"baseUrl":5}`), "a baseUrl that is null": options(`{"baseUrl":null}`),
		"a baseUrl with NUL": options(`{"baseUrl":"a\u0000b"}`), "a baseUrl": options(`{"baseUrl":"."}`),
		"paths that are a text": options(`{"paths":"abc"}`), "paths that are lists": options(`{"paths":[["x"]]}`),
		"a path that is a text": options(`{"paths":{"*":"x"}}`), "a path that is null": options(`{"paths":{"*":null}}`),
		"a path that is an object": options(`{"paths":{"pkg":{"a":1}}}`),
		"paths of all kinds":       options(`{"paths":{"*":[5,null,{},"a\u0000"]}}`),
		"options of __proto__":     options(`{"__proto__":{"paths":{"*":"x"},"baseUrl":5}}`),
		"a number to extend":       `{"extends":5}`, "a list in a list to extend": `{"extends":[["./x"]]}`,
		"itself to extend": `{"extends":"./tsconfig.json"}`, "folders to extend": `{"extends":["/",".",".."]}`,
		"a name with NUL to extend": `{"extends":"./a\u0000b"}`, "a graph to extend": fmt.Sprintf(extends, 0),
		"comments as tsc --init has them": commented("\n// \"x\": true, /* what it does */"),
		"comments of slashes":             commented("//////////////////////////////////////////////////\n"),
		"comments behind each other":      commented("/* x */"),
		"a text without an end":           `{"a":"` + strings.Repeat(`\"`, 300_000),
		"comments without an end":         "{" + strings.Repeat("/* ", 300_000),
		"commas":                          "[" + strings.Repeat(", ", 300_000),
		"nested lists":                    strings.Repeat("[", 300_000),
	} {
		dir := t.TempDir()
		files := map[string]string{"main.js": program, "a.js": "module.exports = 1"}
		for i := range 24 { // enough files for 2^24 ways
			text := fmt.Sprintf(extends, i+1)
			files[fmt.Sprintf("%da.json", i)], files[fmt.Sprintf("%db.json", i)] = text, text
		}
		files["tsconfig.json"] = settings
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		main := filepath.Join(dir, "main.js")
		want, got := run(t, node, main, false), run(t, node, main, true)
		attack.Check(t, "a program of JavaScript beside a tsconfig.json with "+name, want, got)
	}
}

// Settings are read as tsc reads them: with comments, and with a comma after the last member.
func TestSettings(t *testing.T) {
	t.Parallel()
	node := nodeProgram(t)
	const program = "import { x } from '@/x';\n/*\nimport Gone from './gone';\n*/\n" +
		"const text = `\nimport More from './more';\n`;\nconsole.log(x, text.length);"
	target, err := json.Marshal([]string{"./src/*"})
	if err != nil {
		t.Fatal(err)
	}
	for name, settings := range map[string]string{
		"plain":        `{"compilerOptions":{"paths":{"@/*":%s}}}`,
		"comments":     "\uFEFF// a\n{/* b, */\"compilerOptions\": {\"paths\": { // ]}\n \"@/*\": %s /* d */, // e\n },\n},}",
		"texts of it":  `{"a":"//","b":"/*","c":",]","d":"\\\",}","compilerOptions":{"paths":{"@/*":%s}}}`,
		"by extending": `{"extends":["./none.json","./other.json"],"compilerOptions":{"baseUrl":5,"paths":null},"files":%s}`,
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{
			"tsconfig.json": fmt.Sprintf(settings, target),
			"other.json":    fmt.Sprintf(`{"compilerOptions":{"paths":{"@/*":%s,"@/x":5}}}`, target),
			"package.json":  `{"type":"constructor"}`,
			"src/x.ts":      "export const x: number = 5;",
			"main.ts":       program,
		} {
			file = filepath.Join(dir, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := run(t, node, filepath.Join(dir, "main.ts"), true); got != "5 28\n" {
			t.Errorf("%s: got %q", name, got)
		}
	}
}
