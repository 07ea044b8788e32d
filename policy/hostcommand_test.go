package policy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
)

// hostFolder returns a folder that commands may name: a repository with a file, and links inside and out of it.
func hostFolder(t *testing.T) string {
	t.Helper()
	dir := testdir.Private(t)
	for _, sub := range []string{"src/one/.git", "outside", "src/-o", "src/a\nb", "src/a\xffb"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"src/out": "../outside", "src/in": "one", "src/git": "one/.git",
		"src/line": "a\nb", "src/bytes": "a\xffb"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const hostFile = `
[host.pull]
argv = ["git", "-C", "{repo}", "pull", "--depth={depth}"]
repo = { under = "src" }
depth = { from = 1, to = 20 }

[host.tag]
argv = ["git", "tag", "{name}", "{kind}", "{{literal}}"]
name = { pattern = "[-a-z0-9\\n]+" }
kind = { of = ["-a", "main"] }
`

// A value must fit its type. It never becomes an option, another argument, or a path out of its folder.
func TestAttackHostValues(t *testing.T) {
	dir := hostFolder(t)
	c, err := ParseCeiling(filepath.Join(dir, CeilingFile), []byte(hostFile))
	if err != nil {
		t.Fatal(err)
	}
	src := filepath.Join(dir, "src")
	pull := func(repo, depth string) map[string]string { return map[string]string{"repo": repo, "depth": depth} }
	tag := func(name, kind string) map[string]string { return map[string]string{"name": name, "kind": kind} }
	for _, row := range []struct {
		name, command string
		values        map[string]string
		want          string
	}{
		{"a folder", "pull", pull("one", "3"), "git -C " + src + "/one pull --depth=3"},
		{"an absolute path", "pull", pull(src+"/one", "3"), "git -C " + src + "/one pull --depth=3"},
		{"a link inside", "pull", pull("in", "3"), "git -C " + src + "/one pull --depth=3"},
		{"a folder that begins with a dash", "pull", pull("-o", "3"), "git -C " + src + "/-o pull --depth=3"},
		{"a link out of the folder", "pull", pull("out", "3"), "is no existing file or folder below"},
		{"another folder", "pull", pull(dir+"/outside", "3"), "is no existing file or folder below"},
		{"the folder above", "pull", pull("..", "3"), "has .. in it"},
		{"a way up and down", "pull", pull("one/../one", "3"), "has .. in it"},
		{"a dot name", "pull", pull("one/.git", "3"), "begins with a dot"},
		{"a link to a dot name", "pull", pull("git", "3"), "begins with a dot"},
		{"a link to a name with a line's end", "pull", pull("line", "3"), "leads to a path that has a character"},
		{"a link to a name that is no UTF-8", "pull", pull("bytes", "3"), "leads to a path that is not UTF-8"},
		{"nothing there", "pull", pull("none", "3"), "is no existing file or folder below"},
		{"a line's end", "pull", pull("one\n", "3"), "can't be printed"},
		{"a letter without a shape", "pull", pull("one\u3164", "3"), "can't be printed"},
		{"a NUL", "pull", pull("one\x00", "3"), "can't be printed"},
		{"a turned direction", "pull", pull("one\u202e", "3"), "can't be printed"},
		{"no UTF-8", "pull", pull("one\xff", "3"), "is not UTF-8 text"},
		{"an empty value", "pull", pull("", "3"), "is empty"},
		{"a long value", "pull", pull(strings.Repeat("a", 5000), "3"), "has more than 4096 bytes"},
		{"a number out of range", "pull", pull("one", "21"), "an integer from 1 to 20"},
		{"a number with a sign", "pull", pull("one", "+3"), "an integer from 1 to 20"},
		{"a number and more", "pull", pull("one", "3 --upload-pack=x"), "an integer from 1 to 20"},
		{"a number in another base", "pull", pull("one", "0x3"), "an integer from 1 to 20"},
		{"a missing value", "pull", map[string]string{"repo": "one"}, "values.depth is missing"},
		{"an unknown value", "pull", map[string]string{"repo": "one", "depth": "1", "x": "1"}, "pull has no such value"},
		{"a pattern", "tag", tag("v1", "main"), "git tag v1 main {literal}"},
		{"an option that the file lists", "tag", tag("v1", "-a"), "git tag v1 -a {literal}"},
		{"an option that a pattern lets through", "tag", tag("-d", "main"), "would be an option"},
		{"a long command line", "tag", tag(strings.Repeat("a", 4090), "main"), "4096 are the most"},
		{"a pattern in the middle", "tag", tag("v1 --force", "main"), "text that matches"},
		{"a placeholder in a value", "tag", tag("{kind}", "main"), "text that matches"},
		{"a value that is not listed", "tag", tag("v1", "main2"), "one of -a, main"},
	} {
		argv, err := c.HostCommands()[row.command].Resolve(row.values)
		got := strings.Join(argv, " ")
		if err != nil && strings.Contains(err.Error(), row.want) {
			got = row.want
		} else if err != nil {
			got = err.Error()
		}
		attack.Check(t, "a value of a host command: "+row.name, row.want, got)
	}
}

// A table that is not exactly right stops every run.
func TestHostTables(t *testing.T) {
	for text, want := range map[string]string{
		`host = 3`:                      "host: is a number: use [host.NAME]",
		"[host.A]\nargv = [\"x\"]":      `host: "A": a name has lower-case letters`,
		"[host.a]":                      "argv has 0 entries",
		"[host.a]\nargv = \"git pull\"": "argv must be a list of texts",
		"[host.a]\nargv = [\"{x}\"]\nx = { of = [\"sh\"] }":                        "the program is a name or an",
		"[host.a]\nargv = [\"./run\"]":                                             "the program is a name or an",
		"[host.a]\nargv = [\"git\", \"{x}\"]":                                      "the placeholder x has no type",
		"[host.a]\nargv = [\"git\", \"{ x\"]":                                      "a brace is no placeholder",
		"[host.a]\nargv = [\"git\"]\nx = { of = [\"a\"] }":                         `the placeholder "x" is not in argv`,
		"[host.a]\nargv = [\"sh\", \"-c\", \"{x}\"]\nx={of=[\"a\"]}":               "no placeholder may stand in code",
		"[host.a]\nargv = [\"node\", \"--eval={x}\"]\nx={of=[\"a\"]}":              "no placeholder may stand in code",
		"[host.a]\nargv = [\"perl\", \"-e{x}\"]\nx={of=[\"a\"]}":                   "no placeholder may stand in code",
		"[host.a]\nargv = [\"git\"]\nshell = true":                                 `unknown key "shell"`,
		"[host.a]\nargv = [\"git\"]\nASK = false":                                  `unknown key "ASK"`,
		"[host.a]\nargv = [\"git\"]\nask = \"no\"":                                 "ask must be true or false",
		"[host.a]\nargv = [\"git\"]\ntimeoutSeconds = 0":                           "timeoutSeconds must be from 1 to 3600",
		"[host.a]\nargv = [\"git\"]\ntimeoutSeconds = 3601":                        "timeoutSeconds must be from 1 to 3600",
		"[host.a]\nargv = [\"git\"]\nenv = { A = 1 }":                              "env must be a table of texts",
		"[host.a]\nargv = [\"git\", \"{x}\"]\nx = {}":                              "x needs one type",
		"[host.a]\nargv = [\"git\", \"{x}\"]\nx = { from = 1 }":                    "x needs one type",
		"[host.a]\nargv = [\"git\", \"{x}\"]\nx = { from = 2, to = 1 }":            "x needs one type",
		"[host.a]\nargv = [\"git\", \"{x}\"]\nx = { of = [] }":                     "of does not fit",
		"[host.a]\nargv = [\"git\", \"{x}\"]\nx = { pattern = \"(\" }":             "error parsing regexp",
		"[host.a]\nargv = [\"git\", \"{x}\"]\nx = { pattern = \"a)|(?:b\" }":       "error parsing regexp",
		"[host.a]\nargv = [\"git\", \"{x}\"]\nx = { of = [\"a\"], under = \"/\" }": "x needs one type",
		"[principals.al]\n[principals.al.host.a]\nargv = [\"git\"]":                "principals.al has host of its own",
	} {
		_, err := ParseCeiling("/x/"+CeilingFile, []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

// Only the ceiling at the top declares commands. A file that nobody trusts adds none, and whoever trusts a file is
// shown each of its commands.
func TestAttackHostTrust(t *testing.T) {
	home, dir := testdir.Private(t), testdir.Private(t)
	file := filepath.Join(dir, CeilingFile)
	text := "[host.evil]\nargv = [\"rm\", \"-rf\", \"/\"]\nask = false\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := LoadForModels(home, dir, "", false)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "commands of a file that nobody trusts", "0", fmt.Sprint(len(m.Ceiling.HostCommands())))
	attack.Check(t, "what is ignored of it", "[host.evil rm -rf /, without a question]", fmt.Sprint(m.Ignored))
	if m, err = LoadForModels(home, dir, file, false); err != nil || len(m.Ceiling.HostCommands()) != 1 {
		t.Fatal(err, m.Ceiling.HostCommands())
	}
	attack.Check(t, "what trusting the file allows", "[host.evil rm -rf /, without a question]",
		fmt.Sprint(m.Ceiling.Beyond(BuiltIn(dir, home))))
	if got := (*Ceiling)(nil).HostCommands(); got != nil {
		t.Errorf("no ceiling has %v", got)
	}
}

// A folder of a table that leads elsewhere later ends the trust in its file. A server that has read the file before
// still uses the former folder.
func TestAttackHostFolders(t *testing.T) {
	home, dir := testdir.Private(t), testdir.Private(t)
	for _, sub := range []string{"one/x", "two/x"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := "[host.a]\nargv = [\"ls\", \"{p}\"]\ndir = \"at\"\np = { under = \"in\" }\n"
	file := filepath.Join(dir, CeilingFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, moved := range []string{"at", "in"} {
		for _, link := range []string{"at", "in"} {
			_ = os.Remove(filepath.Join(dir, link))
			if err := os.Symlink("one", filepath.Join(dir, link)); err != nil {
				t.Fatal(err)
			}
		}
		c, err := ReadCeiling(file)
		if err != nil {
			t.Fatal(err)
		}
		trust := OpenTrust(home)
		if err := trust.Add(c, time.Now()); err != nil {
			t.Fatal(err)
		}
		values := map[string]string{"p": "x"}
		argv, err := c.HostCommands()["a"].Resolve(values)
		if want := filepath.Join(dir, "one", "x"); err != nil || argv[1] != want {
			t.Fatal(argv, err)
		}
		if err := os.Remove(filepath.Join(dir, moved)); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("two", filepath.Join(dir, moved)); err != nil {
			t.Fatal(err)
		}
		again, err := ReadCeiling(file)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "trust behind a moved link: "+moved, "true", fmt.Sprint(errors.Is(trust.Of(again), ErrNotTrusted)))
		argv, err = c.HostCommands()["a"].Resolve(values) // of the server that has read the file before
		if want := filepath.Join(dir, "one", "x"); err != nil || argv[1] != want {
			t.Error(argv, err)
		}
	}
	c, err := ReadCeiling(file)
	if err != nil {
		t.Fatal(err)
	}
	real := c.HostCommands()["a"].Dir
	if err := errors.Join(os.Rename(real, real+"-old"), os.Symlink("/", real)); err != nil {
		t.Fatal(err)
	}
	_, err = c.HostCommands()["a"].Resolve(map[string]string{"p": "etc"})
	attack.Check(t, "a folder that became a link", "true", fmt.Sprint(err != nil))
}
