package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

var pinned = "pin = \"sha256:" + strings.Repeat("0", 64) + "\"\n"

func TestToolTables(t *testing.T) {
	const clause = "[tools.a]\ncommand = [\"x\"]\n[[tools.a.where]]\nargument = \"x\"\n"
	for text, want := range map[string]string{
		"[tools.a]\ncommand = [\"x\"]\n":               "",
		"[tools.a]\nurl = \"https://x.example/mcp\"\n": "",
		"[tools.a]\n": "needs either command or url",
		"[tools.a]\ncommand = [\"x\"]\nurl = \"http://x\"\n":   "needs either command or url",
		"[tools.class]\ncommand = [\"x\"]\n":                   "no word of JavaScript",
		"[tools.__proto__]\ncommand = [\"x\"]\n":               "begins with a letter",
		"[tools.a-b]\ncommand = [\"x\"]\n":                     "begins with a letter",
		"[tools.a]\ncommand = []\n":                            "command must be",
		"[tools.a]\nurl = \"file:///etc/passwd\"\n":            "url must be",
		"[tools.a]\nurl = \"https://user:pass@x.example\"\n":   "url must be",
		"[tools.a]\ncommand = [\"x\"]\nmaxCalls = 0\n":         "maxCalls must be",
		"[tools.a]\ncommand = [\"x\"]\nallow = [\"[\"]\n":      "allow must be",
		"[tools.a]\ncommand = [\"x\"]\npin = \"sha256:1\"\n":   "pin must be",
		"[tools.a]\ncommand = [\"x\"]\nApprove = true\n":       "unknown key",
		"[tools.a]\ncommand = [\"x\"]\n[tools.a]\nx = 1\n":     "already been defined",
		"[tools.a]\ncommand = [\"x\"]\n[[tools.a.where]]\n":    "where: use",
		clause + "matches = '\\Qabc'\n":                        "matches does not fit",
		clause + "matches = 'a)|(b'\n":                         "matches does not fit",
		"[[tools.a]]\ncommand = [\"x\"]\n":                     "use [tools.a]",
		"tools = [\"a\"]\n":                                    "",
		"tools = 1\n":                                          "use [tools.NAME]",
		"[tools.a]\nurl = \"http://x\"\nenv = { A = \"b\" }\n": "go with command",
	} {
		_, err := ParseCeiling("test", []byte(text))
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", text, got, want)
		}
	}
}

// A server has a machine's keys if it has a machine.
func TestToolTablesWrapped(t *testing.T) {
	for keys, want := range map[string]string{
		"url = \"http://x\"\nwrap = true":                          "wrap goes with command",
		"command = [\"x\"]\nwrap = true\ndir = \"/x\"":             "with wrap use dirs",
		"command = [\"x\"]\nwrap = 1":                              "wrap must be",
		"command = [\"x\"]\nallowNet = [\"x.example\"]":            "go with wrap = true",
		"command = [\"x\"]\ndirs = [\"/x\"]":                       "go with wrap = true",
		"command = [\"x\"]\npassEnv = [\"X@x.example\"]":           "NAME@HOST goes with wrap",
		"command = [\"x\"]\nwrap = true\npassEnv = [\"X@x y\"]":    "passEnv must be",
		"command = [\"x\"]\nwrap = true\npassEnv = [\"X@x.test\"]": "",
	} {
		_, err := ParseCeiling("test", []byte("[tools.a]\n"+keys+"\n"))
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", keys, got, want)
		}
	}
	c, err := ParseCeiling("/p/.unitask.toml", []byte(`[tools.a]
command = ["x"]
wrap = true
dirs = ["d:/w", "/e"]
`))
	if err != nil || !slices.Equal(c.ToolServer("a").Dirs, []string{"/p/d:/w", "/e"}) {
		t.Errorf("%v %v", err, c)
	}
}

func TestAttackToolClauses(t *testing.T) {
	c, err := ParseCeiling("test", []byte(`[tools.a]
command = ["x"]
allow = ["get_*"]
[[tools.a.where]]
tool = "get_*"
argument = "o.n"
in = ["x", 2, true]
[[tools.a.where]]
argument = "p"
matches = "a|b"
`))
	if err != nil {
		t.Fatal(err)
	}
	s := c.ToolServer("a")
	for _, row := range []struct {
		o, p any
		want bool
	}{{"x", "a", true}, {2.0, "b", true}, {true, "a", true}, {"y", "a", false}, {nil, "a", false}, {"x", "ab", false},
		{"x", nil, false}, {"x", "a\n", false}, {map[string]any{}, "a", false}, {[]any{"x"}, "a", false},
		{"x", []any{"a"}, false}, {"1", "a", false}, {1.0, "a", false}} {
		if got := s.Refuses("get_x", map[string]any{"o": map[string]any{"n": row.o}, "p": row.p}) == ""; got != row.want {
			t.Errorf("%v %v: %v", row.o, row.p, got)
		}
	}
	for _, key := range []string{"P", "p ", "\u212a"} { // the last is a K to Unicode
		got := s.Refuses("get_x", map[string]any{"o": map[string]any{"n": "x"}, "p": "a", key: "evil"}) == ""
		attack.Check(t, "an argument beside "+key, fmt.Sprint(key != "P"), fmt.Sprint(got))
	}
	if !s.Allows("get_x") || s.Allows("set_x") || !s.Allows("get_a/b") {
		t.Error("patterns")
	}
}

// Only a file that the user trusts has servers, and files below it only take them away.
func TestAttackToolTables(t *testing.T) {
	const table = "[tools.a]\ncommand = [\"x\"]\n"
	home, top := testdir.Private(t), testdir.Private(t)
	dir := filepath.Join(top, "repository")
	file := filepath.Join(top, CeilingFile)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	granted := func(where string) string {
		t.Helper()
		p, err := LoadForPeople(home, where, "")
		if err != nil {
			t.Fatal(err)
		}
		e, denials, err := Resolve(Request{Tools: []string{"a", "b"}}, p.Ceiling)
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for name := range p.Ceiling.ToolServers() {
			names = append(names, name)
		}
		slices.Sort(names)
		return fmt.Sprint(e.Tools, len(denials) > 0, names)
	}
	write(file, table+pinned+"[tools.b]\ncommand = [\"x\"]\n")
	attack.Check(t, "a file that nobody trusts", "[] true []", granted(top))
	c, err := ReadCeiling(file)
	if err == nil {
		err = OpenTrust(home).Add(c, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a trusted file, with one list that is not reviewed", "[a] true [a b]", granted(top))
	write(filepath.Join(dir, CeilingFile), "[tools.evil]\ncommand = [\"evil\"]\n"+pinned+table+pinned)
	attack.Check(t, "a repository's own table", "[] true []", granted(dir))
	write(filepath.Join(dir, CeilingFile), `tools = ["b"]`)
	attack.Check(t, "a repository that takes one away", "[] true [b]", granted(dir))
	attack.Check(t, "models without a file", "[]", func() string {
		e, _, err := Resolve(Request{Tools: []string{"a"}}, BuiltIn(top, home))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(e.Tools)
	}())
}

// A worker's own file gives no tools to runs of a fleet.
func TestAttackToolsOfFleet(t *testing.T) {
	file, err := ParseCeiling("test", []byte("[tools.a]\ncommand = [\"x\"]\n"+pinned))
	if err != nil {
		t.Fatal(err)
	}
	e, denials, err := Resolve(Request{Tools: []string{"a"}}, ForFleet(file))
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "tools on a worker", "[] 1 0",
		fmt.Sprint(e.Tools, len(denials), len(ForFleet(file).ToolServers())))
}

func TestWithPin(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, text := range []string{"[tools.a]\ncommand = [\"x\"]", "[tools.b]\nurl = \"http://x\"\n" + pinned +
		"[tools.a] # mine\n" + pinned + "command = [\"x\"]\n[[tools.a.where]]\nargument = \"x\"\nequals = 1\n"} {
		now, err := WithPin("test", []byte(text), "a", digest)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseCeiling("test", now)
		if err != nil || c.ToolServer("a").Pin != digest || strings.Count(string(now), digest) != 1 {
			t.Errorf("%s: %v", now, err)
		}
	}
	if _, err := WithPin("test", []byte("tools = { a = { command = [\"x\"] } }"), "a", digest); err == nil {
		t.Error("an inline table")
	}
}
