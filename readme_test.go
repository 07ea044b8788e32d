package unitask_test

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// blocks returns the fenced blocks of a language in the README.
func blocks(t *testing.T, language string) []string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("README.md has no %s block", language)
	}
	return found
}

var exitNote = regexp.MustCompile(`#.*exit code (\d+)`)

// TestReadmeCommands runs every command that the README shows, in their order,
// with the files that they name.
func TestReadmeCommands(t *testing.T) {
	needVM(t)
	bin := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "unitask"), "./cli/unitask").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir, home := t.TempDir(), newHome(t)
	for name, text := range map[string]string{
		"report.ts": `const month: string = process.argv[3]; console.log(month)`,
		"count.mjs": `let n = 0; for await (const c of process.stdin) n += c.length; console.log(n)`,
		"data.csv":  "a,b\n1,2\n",
		"sales.csv": "month,sum\n2026-10,7\n", "data/a.json": "{}",
		"tokens":     "alice a-token-of-sixteen\n",
		"analyze.js": `if (!require("fs").readFileSync("sales.csv", "utf8").includes("2026-10,7")) throw new Error("no sales")`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range blocks(t, "sh") {
		for _, line := range strings.Split(strings.TrimSpace(strings.ReplaceAll(block, "\\\n", " ")), "\n") {
			if target, ok := strings.CutPrefix(line, "make "); ok { // CI runs those
				if !strings.Contains(string(makefile), "\n"+target+":") {
					t.Errorf("the Makefile has no target %s", target)
				}
				continue
			}
			cmd := exec.Command("sh", "-c", line)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "UNITASK_HOME="+home, "HOME="+dir)
			if strings.Contains(line, "mcp --http") {
				serves(t, line, cmd)
				continue
			}
			out, err := cmd.CombinedOutput()
			code, want := 0, 0
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				code = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if m := exitNote.FindStringSubmatch(line); m != nil {
				want, _ = strconv.Atoi(m[1])
			}
			if code != want {
				t.Errorf("%s: exit code %d, want %d\n%s", line, code, want, out)
			}
		}
	}
}

// serves checks that a command serves until it is told to go.
func serves(t *testing.T, line string, cmd *exec.Cmd) {
	t.Helper()
	cmd.Args[2] = "exec " + line // the signal is for it, not for the shell
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

// TestReadmeGo compiles every Go program that the README shows.
func TestReadmeGo(t *testing.T) {
	for _, text := range blocks(t, "go") {
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "build", "-o", os.DevNull, file).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// TestReadmeExitCodes: the table and --help say the same.
func TestReadmeExitCodes(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.Command("go", "run", "./cli/unitask", "run", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []string{"2", "124", "125", "130", "137", "128+n"} {
		if !strings.Contains(string(text), "\n| "+code+" |") || !regexp.MustCompile(`\b`+regexp.QuoteMeta(code)).Match(help) {
			t.Errorf("exit code %s is not in README.md and --help both", code)
		}
	}
}
