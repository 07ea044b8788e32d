package unitask_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testprogram"
)

// pages are the documents whose commands and programs are tested.
func pages(t *testing.T) []string {
	t.Helper()
	list, err := filepath.Glob("docs/*.md")
	if err != nil || len(list) == 0 {
		t.Fatal("docs/ has no pages")
	}
	return append([]string{"README.md"}, list...)
}

// block is a fenced block of a page.
type block struct{ language, text string }

var fence = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```")

// blocks returns a page's fenced blocks in these languages.
func blocks(t *testing.T, page string, languages ...string) (found []block) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
		if slices.Contains(languages, m[1]) {
			found = append(found, block{m[1], m[2]})
		}
	}
	return found
}

// shown is a command on a page, and its output if the page shows it.
type shown struct {
	command string
	output  string // of a console block, otherwise ""; "..." stands for anything
}

// commands returns the commands of a page in order: each line of its sh blocks, and the text after "$ " in its console
// blocks.
func commands(t *testing.T, page string) (list []shown) {
	t.Helper()
	for _, b := range blocks(t, page, "sh", "console") {
		for line := range strings.Lines(strings.ReplaceAll(b.text, "\\\n", " ")) {
			line = strings.TrimSuffix(line, "\n")
			command, isCommand := strings.CutPrefix(line, "$ ")
			switch {
			case b.language == "sh":
				list = append(list, shown{command: line})
			case isCommand:
				list = append(list, shown{command: command})
			case len(list) == 0:
				t.Fatalf("%s: a console block begins without a command", page)
			default:
				list[len(list)-1].output += line + "\n"
			}
		}
	}
	return list
}

// matches reports whether an output is the one shown.
func (s shown) matches(output string) bool {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(s.output), regexp.QuoteMeta("..."), "(?s:.*)")
	return s.output == "" || regexp.MustCompile("^"+pattern+"$").MatchString(output)
}

var exitNote = regexp.MustCompile(`#.*exit code (\d+)`)

// TestDocsCommands runs every command in the README and the pages, in order, with the files that they name. Each page
// has its own home and folder.
func TestDocsCommands(t *testing.T) {
	needVM(t)
	bin := docsProgram(t)
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages(t) {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			slot(t)
			dir, home := docsFolder(t), newHome(t)
			for _, c := range commands(t, page) {
				if target, ok := strings.CutPrefix(c.command, "make "); ok { // CI runs those
					if !strings.Contains(string(makefile), "\n"+target+":") {
						t.Errorf("the Makefile has no target %s", target)
					}
					continue
				}
				cmd := exec.Command("sh", "-c", c.command)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "UNITASK_HOME="+home, "HOME="+dir)
				if strings.Contains(c.command, "mcp --http") || strings.Contains(c.command, "serve --listen") ||
					c.command == "unitask ui" {
					serves(t, c.command, cmd)
					continue
				}
				var out, both bytes.Buffer
				cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, &both), &both
				code, want, begin := 0, 0, time.Now()
				var exit *exec.ExitError
				err := cmd.Run()
				t.Logf("%.1f s: %s", time.Since(begin).Seconds(), c.command)
				if errors.As(err, &exit) {
					code = exit.ExitCode()
				} else if err != nil {
					t.Fatal(err)
				}
				if m := exitNote.FindStringSubmatch(c.command); m != nil {
					want, _ = strconv.Atoi(m[1])
				}
				if code != want || !c.matches(out.String()) {
					t.Errorf("%s: exit code %d, want %d\n%s", c.command, code, want, &both)
				}
			}
		})
	}
}

// docsProgram builds unitask, and returns its folder.
func docsProgram(t *testing.T) (bin string) {
	t.Helper()
	bin = t.TempDir()
	if _, err := testprogram.Build(bin); err != nil {
		t.Fatal(err)
	}
	return bin
}

// TestDocsTasks runs each task of VS Code that a page shows, with a program of a project as the open file.
func TestDocsTasks(t *testing.T) {
	needVM(t)
	bin, dir, ran := docsProgram(t), docsFolder(t), 0
	for _, b := range blocks(t, "docs/agents.md", "json") {
		var file struct {
			Tasks []struct {
				Type, Command string
				Args          []string
			}
		}
		if err := json.Unmarshal([]byte(b.text), &file); err != nil {
			t.Fatal(err)
		}
		for _, task := range file.Tasks {
			ran++
			open := strings.NewReplacer("${file}", filepath.Join(dir, "app", "src", "main.ts"))
			for i, arg := range task.Args {
				task.Args[i] = open.Replace(arg)
			}
			cmd := exec.Command(filepath.Join(bin, task.Command), task.Args...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "UNITASK_HOME="+newHome(t))
			if out, err := cmd.CombinedOutput(); err != nil || task.Type != "process" || string(out) != "app\n" {
				t.Errorf("%q, a %s: %v %q", task.Args, task.Type, err, out)
			}
		}
	}
	if ran == 0 {
		t.Error("no page shows a task")
	}
}

// docsFolder returns a folder with the files that the pages' commands name.
func docsFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"report.ts":   `const month: string = process.argv[3]; console.log(month)`,
		"page.tsx":    `const React = { createElement: (tag: string) => tag }; console.log(<b/>)`,
		"chart.ipynb": `{"cells": [{"cell_type": "code", "metadata": {}, "source": "6 * 7"}], "metadata": {}, "nbformat": 4}`,
		"query.sql":   "create table t (a);\nselect count(*) from t;\n",
		"count.mjs":   `let n = 0; for await (const c of process.stdin) n += c.length; console.log(n)`,
		"data.csv":    "a,b\n1,2\n",
		"words.py":    "import sys\nprint(len(sys.argv[1:]))\n",
		"hello.go":    "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(os.Args[1:]) }\n",
		"count.sh":    "set -eu\necho \"lines of $1: $#\"\n",
		"sales.csv":   "month,sum\n2026-10,7\n", "data/a.json": "{}",
		"app/package.json": `{"type": "module"}`, "app/src/main.ts": `import { name } from "./name.ts"; console.log(name)`,
		"app/src/name.ts": `export const name = "app"`,
		"words.toml":      "from = \"node\"\nfiles = { \"/opt/words\" = \"data\" }\nenv = { WORDS = \"/opt/words\" }\n",
		"tokens":          "alice a-token-of-sixteen\n",
		"boot.txt":        "query-status\nassert .running == false\ncont\nwait stdout \"hello\" 60s\nwait end 30s\n",
		"analyze.js": `if (!require("fs").readFileSync("sales.csv", ` +
			`"utf8").includes("2026-10,7")) throw new Error("no sales")`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	archive, err := os.ReadFile(boxImage(t, "example/tools:1", map[string]any{"Env": []string{"PATH=/bin"}}))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "tools.tar"), archive, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// serves checks that a command serves until a signal ends it.
func serves(t *testing.T, line string, cmd *exec.Cmd) {
	t.Helper()
	cmd.Args[2] = "exec " + line // so the signal goes to the command, not to the shell
	errs, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	for lines := bufio.NewScanner(errs); lines.Scan(); {
		said = append(said, lines.Text())
		if strings.Contains(lines.Text(), "unitask: serving http://") {
			_ = cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	if err := cmd.Wait(); err != nil || len(said) == 0 {
		t.Errorf("%s: %v\n%s", line, err, strings.Join(said, "\n"))
	}
}

// TestDocsGo compiles every Go program in the README and the pages.
func TestDocsGo(t *testing.T) {
	n := 0
	for _, page := range pages(t) {
		for _, b := range blocks(t, page, "go") {
			n++
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(b.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("go", "build", "-o", os.DevNull, file).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", page, err, out)
			}
		}
	}
	if n < 2 {
		t.Errorf("%d Go programs in the documents", n)
	}
}

// TestDocsExitCodes checks that the table and --help agree.
func TestDocsExitCodes(t *testing.T) {
	text, err := os.ReadFile("docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command("go", "run", "./cli/unitask", "run", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []string{"2", "124", "125", "130", "137", "128+n"} {
		if !strings.Contains(string(text), "\n| "+code+" |") || !regexp.MustCompile(`\b`+regexp.QuoteMeta(code)).Match(help) {
			t.Errorf("exit code %s is not in docs/cli.md and --help both", code)
		}
	}
}

// TestDocsLinks checks that each linked page exists.
func TestDocsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	design, err := filepath.Glob("docs/design/*.md")
	if err != nil || len(design) == 0 {
		t.Fatal("docs/design/ has no pages")
	}
	for _, page := range append(append(pages(t), "ARCHITECTURE.md"), design...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
}

// The server's unit is hardened; how systemd rates it depends on its version.
func TestUnit(t *testing.T) {
	out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=35",
		"hack/deploy/unitask-mcp.service").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no systemd-analyze here")
	}
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
