package cli

import (
	"bytes"
	"encoding/json"
	"go/token"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/spf13/cobra"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/internal/testdir"
)

// leaves returns every command that does something, by its path without "unitask".
func leaves() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		if !isGroup(cmd) && path != "" && path != "help" && !strings.HasPrefix(path, "completion") {
			all[path] = cmd
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(Command())
	return all
}

// said runs a command line in this process and returns its exit code and output.
func said(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(args, Streams{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs})
	return code, out.String(), errs.String()
}

// shownOn runs a command line on a terminal with that many columns and returns the screen's text.
func shownOn(t *testing.T, columns int, args ...string) string {
	t.Helper()
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := pty.Setsize(tty, &pty.Winsize{Cols: uint16(columns), Rows: 24}); err != nil {
		t.Fatal(err)
	}
	shown := make(chan string)
	go func() {
		text, _ := io.ReadAll(master) // ends with an error when the other end is closed
		shown <- string(text)
	}()
	Main(args, Streams{Stdin: strings.NewReader(""), Stdout: tty, Stderr: tty})
	tty.Close()
	return strings.ReplaceAll(<-shown, "\r\n", "\n")
}

// tables are the command lines whose output must fit the terminal. Every command is here, in flows, or in untabled.
var tables = map[string][]string{
	"approve": nil, "audit ls": nil, "audit verify": nil, "doctor": {"--accel", "tcg"},
	"apply": nil, "df": nil, "image prune": {"--dry-run"}, "image ls": nil, "languages": nil,
	"inspect": {"last"}, "kernel ls": nil,
	"policy show":  {"--memory", "1024", "--allow-net", "a.example.com,b.example.com", "--timeout", "5"},
	"policy trust": {"--list"}, "secret ls": nil, "verify": {"last"},
	"runs ls": nil, "runs prune": {"--older-than", "1d"}, "session ls": nil, "skill ls": nil,
	"stats": nil, "uninstall": nil,
}

// untabled are the commands that print the code's output, one word or nothing, or that need a machine, a server or a
// registry.
var untabled = []string{"run", "runs rm", "worker claude", "image build", "image import", "image pull", "image rm",
	"image vendor", "kernel install", "kernel rm", "mcp config", "init", "policy init", "policy set", "policy learn",
	"pool up", "pool down", "pool status", "secret set",
	"secret rm", "secret check", "session new", "session run", "session exec", "session cp", "session diff",
	"session status", "session put", "session get",
	"session pause", "session resume", "session extend", "session wait", "session fork", "session rm", "sign",
	"skill trust",
	"debug dump", "tools pin", "tools ls", "web fetch", "web search",
	"self update", "self rollback",
	"serve key", "fleet status", "fleet runs", "fleet drain", "fleet permissions"}

// A home with entries to list.
func listedHome(t *testing.T) {
	t.Helper()
	home := testdir.Private(t)
	t.Setenv("UNITASK_HOME", home)
	t.Setenv("TERM", "xterm")
	dir, err := realpath.Of(testdir.Private(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	// Without the parts of an image the run fails, and leaves a record.
	if code, _, errs := said(t, "run", "--offline", "--memory", "1024", "--allow-net", "registry.example.com", "--env",
		"A=b", "--code", "console.log('"+strings.Repeat("long ", 50)+"') // 日本語"); code != unitask.ExitHost {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	if _, _, err := changes.Open(home, &audit.Journal{Log: audit.In(home)}).Propose(dir, "",
		strings.Repeat("somebody ", 9), []changes.File{{Path: "a.txt", Open: func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("new")), nil
		}}}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := said(t, "policy", "init"); code != 0 {
		t.Fatal(errs)
	}
	if err := os.WriteFile(".unitask.toml", []byte("memoryMb = 256\nallowNet = [\"*.example.com\"]\n"+
		"allowTcp = [\"127.0.0.1:1\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := said(t, "policy", "trust"); code != 0 {
		t.Fatal(errs)
	}
}

// A command's output fits the terminal, and without colors has no control sequence.
func TestFitsTerminal(t *testing.T) {
	listedHome(t)
	for path := range leaves() {
		args, tabled := tables[path]
		if !tabled && !slices.Contains(flows, path) && !slices.Contains(untabled, path) {
			t.Errorf("%s is neither in tables, in flows nor in untabled", path)
		}
		if !tabled {
			continue
		}
		for _, columns := range []int{50, 80, 200} {
			for _, variable := range []string{"", "NO_COLOR=1", "TERM=dumb"} {
				name, value, _ := strings.Cut(variable, "=")
				if name != "" {
					t.Setenv(name, value)
				}
				shown := shownOn(t, columns, append(strings.Fields(path), args...)...)
				if name != "" {
					t.Setenv(name, map[string]string{"TERM": "xterm"}[name])
				}
				if shown == "" {
					t.Errorf("%s prints nothing", path)
				}
				shown, _, _ = strings.Cut(shown, "\n--- ") // the code and its output are unchanged
				for line := range strings.Lines(shown) {
					line, message := strings.TrimSuffix(line, "\n"), strings.Contains(line, "unitask: ")
					if width := textWidth(escapes.ReplaceAllString(line, "")); width > columns && !message {
						t.Errorf("%s on %d columns: %d in %q", path, columns, width, line)
					}
				}
				if name != "" && strings.Contains(shown, "\x1b") {
					t.Errorf("%s with %s: a control sequence in %q", path, variable, shown)
				}
			}
		}
	}
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[mK]")

// Output for people contains no JSON.
func TestTablesWithoutJSON(t *testing.T) {
	listedHome(t)
	for path, args := range tables {
		if _, out, _ := said(t, append(strings.Fields(path), args...)...); strings.ContainsAny(out, "{}") {
			t.Errorf("%s prints JSON: %s", path, out)
		}
	}
}

// Every command with output has --json, and with it an error is one JSON object on stdout.
func TestJSONEverywhere(t *testing.T) {
	t.Setenv("UNITASK_HOME", testdir.Private(t))
	for path, cmd := range leaves() {
		if slices.Contains(flows, path) {
			continue
		}
		if cmd.Flags().Lookup("json") == nil {
			t.Errorf("%s has no --json", path)
			continue
		}
		code, out, errs := said(t, append(strings.Fields(path), "--json", "--no-such-flag")...)
		var object struct {
			Outcome, Error string
			ExitCode       int
		}
		if err := json.Unmarshal([]byte(out), &object); err != nil || code != unitask.ExitUsage || errs != "" ||
			object.Error == "" || object.Outcome != "usage" || object.ExitCode != code {
			t.Errorf("%s: exit code %d, %q, %q: %v", path, code, out, errs, err)
		}
	}
	for path, args := range tables {
		args = append(append(strings.Fields(path), "--json"), args...)
		if _, out, errs := said(t, args...); !json.Valid([]byte(out)) {
			t.Errorf("%s prints no JSON: %s, %s", path, out, errs)
		}
	}
}

// Numbers with a unit or a noun go through seconds, mebibytes and count, which handle singulars.
func TestUnits(t *testing.T) {
	texts, bare := 0, regexp.MustCompile(`%d (ms|[a-z]+s)\b`)
	eachText(t, ".", func(where token.Position, text string) {
		if texts++; bare.MatchString(text) {
			t.Errorf("%s: %q: use seconds, mebibytes or count", where, text)
		}
	})
	if texts < 1000 {
		t.Errorf("%d texts were checked", texts)
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want []string
	}{
		{"", 5, []string{""}}, {"a b", 3, []string{"a b"}}, {"a b", 2, []string{"a", "b"}},
		{"abcdef gh", 4, []string{"abcd", "ef", "gh"}}, {"日本語", 4, []string{"日本", "語"}},
		{"日", 1, []string{"日"}},
	} {
		if got := wrap(c.text, c.most); !slices.Equal(got, c.want) {
			t.Errorf("%q in %d: got %q, want %q", c.text, c.most, got, c.want)
		}
	}
	for bytes, want := range map[int64]string{0: "0 bytes", 1: "1 byte", 999: "999 bytes", 1 << 20: "1 MiB",
		3<<20 + 1<<19: "3.5 MiB", 200 << 10: "0.2 MiB", 12<<20 + 5: "12 MiB"} {
		if got := mebibytes(bytes); got != want {
			t.Errorf("%d bytes: got %q, want %q", bytes, got, want)
		}
	}
}
