package policy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// In which points a file exceeds a ceiling, by meaning.
func TestBeyond(t *testing.T) {
	dir := t.TempDir()
	for _, sub := range []string{"data/deep", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../other", filepath.Join(dir, "data", "link")); err != nil {
		t.Fatal(err)
	}
	parse := func(text string) *Ceiling {
		t.Helper()
		c, err := ParseCeiling(filepath.Join(dir, CeilingFile), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for _, row := range []struct{ base, file, want string }{
		{"", "memoryMb = 4096\nsecrets = [\"A\"]\nallowNetAny = true", ""},
		{"memoryMb = 512", "memoryMb = 512", ""},
		{"memoryMb = 512", "memoryMb = 513", "memoryMb 513"},
		{"timeoutSeconds = 2", "timeoutSeconds = 1.5", ""},
		{"timeoutSeconds = 2", "timeoutSeconds = 2.5", "timeoutSeconds 2.5"},
		{"maxArtifactBytes = 0", "maxArtifactBytes = 1", "maxArtifactBytes 1"},
		{"maxConnections = 1\nmaxUploadBytes = 1\nmaxDownloadBytes = 1\noutputBytes = 1",
			"maxConnections = 2\nmaxUploadBytes = 2\nmaxDownloadBytes = 2\noutputBytes = 2",
			"maxConnections 2, maxUploadBytes 2, maxDownloadBytes 2, outputBytes 2"},
		{"kernel = \"linux\"", "kernel = \"linux\"", ""},
		{"kernel = \"linux\"", "kernel = \"nanos\"", "kernel nanos"},
		{"allowNet = [\"*.a.com\"]", "allowNet = [\"X.A.com.\", \"*.y.a.com\", \"x.a.com:443\"]", ""},
		{"allowNet = [\"*.a.com\"]", "allowNet = [\"a.com\", \"x.a.com:8443\", \"*.com.example\"]",
			"allowNet a.com, allowNet x.a.com:8443, allowNet *.com.example"},
		{"allowNetAny = false", "allowNetAny = true", "allowNetAny true"},
		{"allowTcp = [\"127.0.0.1:1\"]", "allowTcp = [\"127.0.0.1:1\", \"[::ffff:127.0.0.1]:1\"]", ""},
		{"allowTcp = []", "allowTcp = [\"127.0.0.1:1\"]", "allowTcp 127.0.0.1:1"},
		{"secrets = [\"A\"]", "secrets = [\"A\", \"B\"]", "secrets B"},
		{"filesUnder = [\"data\"]", "filesUnder = [\"data/deep\", \"data\", \"nowhere\"]", ""},
		{"filesUnder = [\"data\"]", "filesUnder = [\"data/link\"]",
			"filesUnder " + parse("filesUnder = [\"other\"]").first()},
		{"dirsUnder = []", "dirsUnder = [\"/\"]", "dirsUnder /"},
		{"secrets = []", "[principals.a]\nsecrets = [\"A\"]", ""},
	} {
		if got := fmt.Sprint(parse(row.file).Beyond(parse(row.base))); got != "["+strings.ReplaceAll(row.want, ", ", " ")+
			"]" {
			t.Errorf("%q beyond %q: %s, want %s", row.file, row.base, got, row.want)
		}
	}
}

func (c *Ceiling) first() string { return c.most["filesUnder"].([]string)[0] }

// A key of the file replaces the built-in key; the others stay, also for principals.
func TestWith(t *testing.T) {
	ask := Request{MemoryMB: 1024, AllowTCP: []string{"127.0.0.1:1"}, Secrets: []string{"A", "B"},
		Files: []Mount{{Host: "/etc/hosts", Real: "/etc/hosts", Guest: "/g"}}}
	for _, row := range []struct{ file, principal, want string }{
		{
			want: "[] [] 0 allowTcp:allowTcp@the built-in ceiling secrets:secrets@the built-in ceiling secrets:secrets@the " +
				"built-in ceiling files:filesUnder@the built-in ceiling",
		},
		{
			file: "outputBytes = 1048576",
			want: "[] [] 0 allowTcp:allowTcp@the built-in ceiling secrets:secrets@the built-in ceiling secrets:secrets@the " +
				"built-in ceiling files:filesUnder@the built-in ceiling",
		},
		{"secrets = [\"A\"]", "",
			"[] [A] 0 allowTcp:allowTcp@the built-in ceiling secrets:secrets@test.toml files:filesUnder@the built-in ceiling"},
		{"allowTcp = [\"127.0.0.1:1\"]\nfilesUnder = [\"/etc\"]\nsecrets = [\"A\", \"B\"]", "", "[127.0.0.1:1] [A B] 1"},
		{
			file:      "secrets = [\"A\", \"B\"]\n[principals.a]\nsecrets = [\"B\"]\nmemoryMb = 256",
			principal: "a",
			want: "[] [B] 0 allowTcp:allowTcp@the built-in ceiling files:filesUnder@the built-in ceiling " +
				"memoryMb:principals.a.memoryMb@test.toml [principals.a] secrets:principals.a.secrets@test.toml [principals.a]",
		},
		{
			file:      "[principals.a]\nsecrets = [\"A\"]\nfilesUnder = [\"/\"]\nallowTcp = [\"127.0.0.1:1\"]",
			principal: "a",
			want: "[] [] 0 allowTcp:allowTcp@the built-in ceiling secrets:secrets@the built-in ceiling " +
				"secrets:secrets@the built-in ceiling files:filesUnder@the built-in ceiling",
		},
		{
			file:      "[principals.a]\nmemoryMb = 512",
			principal: "other",
			want: "[] [] 0 allowTcp:allowTcp@the built-in ceiling secrets:secrets@the built-in ceiling " +
				"secrets:secrets@the built-in ceiling files:filesUnder@the built-in ceiling",
		},
	} {
		c := BuiltIn("", "").With(ceiling(t, row.file)).For(row.principal)
		e, denials, err := Resolve(ask, c)
		if err != nil {
			t.Fatal(err)
		}
		got := fmt.Sprint(e.AllowTCP, e.Secrets, len(e.Files))
		for _, d := range denials {
			got += " " + d.Field + ":" + d.Key + "@" + d.Rule
		}
		if got != row.want {
			t.Errorf("%q for %q:\n%s, want\n%s", row.file, row.principal, got, row.want)
		}
	}
	if c := BuiltIn("", "").With(nil); c.Secret("A") || c.For("x").Secret("A") {
		t.Error("a secret that no key names")
	}
	both := BuiltIn("", "").NarrowedBy(ceiling(t, "secrets = [\"A\"]\nmemoryMb = 256"))
	if e, _, err := Resolve(ask, both); err != nil || both.Secret("A") || len(e.Secrets) > 0 || e.MemoryMB != 256 {
		t.Errorf("narrowed: %+v %v", e, err)
	}
	if !ceiling(t, "secrets = [\"A\"]").Secret("A") || !ceiling(t, "").Secret("A") {
		t.Error("a ceiling's own secret")
	}
}

// The built-in ceiling grants files of a folder, but not of a home or of everything.
func TestBuiltIn(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{dir: dir, link: dir, "": "", "/": "", dir + "/nowhere": "", ".": ""} {
		c := BuiltIn(at, "")
		if got := fmt.Sprint(c.most["filesUnder"]); got != "["+want+"]" || fmt.Sprint(c.most["dirsUnder"]) != got ||
			c.Secret("A") || len(c.most["allowTcp"].([]TCPRule)) > 0 {
			t.Errorf("%q: %q, want %q", at, got, want)
		}
	}
	sub := filepath.Join(dir, "users", "me")
	if err := os.MkdirAll(filepath.Join(sub, "project"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", filepath.Join(link, "users", "me"))
	for what, at := range map[string]string{"the home": sub, "the folder of homes": filepath.Dir(sub),
		"what holds that": link} {
		attack.Check(t, "the built-in ceiling's files: "+what, "[]", fmt.Sprint(BuiltIn(at, "").most["filesUnder"]))
	}
	project := filepath.Join(sub, "project")
	attack.Check(t, "the built-in ceiling's files: what holds the records of runs", "[]",
		fmt.Sprint(BuiltIn(project, filepath.Join(link, "users", "me", "project", "state")).most["filesUnder"]))
	attack.Check(t, "the built-in ceiling's files: the records of runs", "[]",
		fmt.Sprint(BuiltIn(project, filepath.Join(link, "users", "me", "project")).most["filesUnder"]))
	if got := fmt.Sprint(BuiltIn(sub+"/project", "").most["dirsUnder"]); got != "["+sub+"/project]" {
		t.Error(got)
	}
}

// A file nearer than the user's own, for example from a repository, removes none of the user's denials, and grants
// nothing.
func TestAttackNearerCeiling(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	repo := filepath.Join(dir, "repo", "sub")
	if err := os.MkdirAll(repo, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(dir, text string) *Ceiling {
		t.Helper()
		name := filepath.Join(dir, CeilingFile)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := ReadCeiling(name)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ask := Request{MemoryMB: 1024, AllowNet: []string{"evil.com", "good.com"},
		AllowTCP: []string{"127.0.0.1:1", "127.0.0.1:2"}, Secrets: []string{"A", "B"}}
	const (
		outer = "allowNet = [\"good.com\"]\nallowTcp = [\"127.0.0.1:1\"]\nsecrets = [\"A\"]\nmemoryMb = 512\n" +
			"[principals.alice]\nsecrets = []\n[principals.\"iss#bob\"]\nsecrets = []"
		own = "[good.com] [127.0.0.1:1] [A] 512"
	)
	for _, row := range []struct{ name, between, nearer, who, want string }{
		{"an empty file", "", "", "", own},
		{"all keys, wide", "",
			"allowNet = [\"evil.com\", \"good.com\"]\nallowNetAny = true\nallowTcp = [\"127.0.0.1:2\", \"127.0.0.1:1\"]\n" +
				"secrets = [\"A\", \"B\"]\nmemoryMb = 4096", "", own},
		{"an empty table of the caller's", "", "[principals.alice]", "alice", "[good.com] [127.0.0.1:1] [] 512"},
		{"a table of another of the caller's names", "", "[principals.bob]\nmemoryMb = 512", "iss#bob bob",
			"[good.com] [127.0.0.1:1] [] 512"},
		{"two files", "memoryMb = 256", "allowNetAny = true", "", "[good.com] [127.0.0.1:1] [A] 256"},
		{"two files and a caller", "memoryMb = 256", "[principals.alice]\nmemoryMb = 200", "alice",
			"[good.com] [127.0.0.1:1] [] 200"},
		{"a file that narrows", "", "allowNet = []\nsecrets = []", "", "[] [127.0.0.1:1] [] 512"},
	} {
		if err := OpenTrust(home).Add(write(dir, outer), time.Now()); err != nil {
			t.Fatal(err)
		}
		write(filepath.Dir(repo), row.between)
		write(repo, row.nearer)
		m, err := LoadForModels(home, repo, "", false)
		if err != nil {
			t.Fatal(err)
		}
		held := BuiltIn(repo, "").With(m.Ceiling).For(strings.Fields(row.who)...) // as a server does
		e, _, err := Resolve(ask, held)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a ceiling's file before the trusted one: "+row.name, row.want,
			fmt.Sprint(e.AllowNet, e.AllowTCP, e.Secrets, e.MemoryMB))
		if held.Secret("B") || held.Secret("A") != (len(e.Secrets) == 1) {
			t.Errorf("%s: secrets %v %v", row.name, held.Secret("A"), held.Secret("B"))
		}
	}
	write(repo, "secrets = [\"A\", \"B\"]")
	m, err := LoadForModels(home, repo, "", false)
	if err != nil || m.Above == nil || fmt.Sprint(m.Ignored) != "[secrets B]" ||
		!strings.Contains(m.String(), filepath.Join(dir, CeilingFile)) {
		t.Errorf("%v %v", m, err)
	}
}

// An untrusted file narrows and never widens; a trusted file counts as long as its meaning is unchanged.
func TestLoadForModels(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	name := filepath.Join(dir, CeilingFile)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/ssl", filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	load := func(named string, wantTrusted bool, wantIgnored ...string) *ForModels {
		t.Helper()
		m, err := LoadForModels(home, dir, named, false)
		if err != nil {
			t.Fatal(err)
		}
		var ignored []string
		for _, w := range m.Ignored {
			ignored = append(ignored, w.Key)
			if !strings.Contains(m.String(), w.String()) || m.Remedy() == "" || m.Why == "" {
				t.Errorf("%s is not told of: %s; %s", w, m, m.Remedy())
			}
		}
		if m.Trusted != wantTrusted || !slices.Equal(ignored, wantIgnored) {
			t.Errorf("trusted %v, ignored %v; want %v %v", m.Trusted, ignored, wantTrusted, wantIgnored)
		}
		if m.Ceiling.Secret("TOKEN") != wantTrusted {
			t.Errorf("the secret: %v", m.Ceiling.Secret("TOKEN"))
		}
		return m
	}
	if m := load("", false); m.File != "" || m.Remedy() != "" || !strings.Contains(m.String(), "built-in") {
		t.Errorf("%+v", m)
	}
	write("memoryMb = 256\nsecrets = [\"TOKEN\"]\nfilesUnder = [\"data\", \"a\"]\n[principals.x]\nsecrets = [\"TOKEN\"]")
	m := load("", false, "secrets", "filesUnder")
	if e, _, err := Resolve(Request{Files: []Mount{{Host: "/etc/ssl/x", Real: "/etc/ssl/x", Guest: "/g"}}},
		m.Ceiling); err != nil || e.MemoryMB != 256 || len(e.Files) > 0 {
		t.Errorf("%+v %v", e, err)
	}
	load(name, true) // named by the user

	trust := OpenTrust(home)
	file, err := FindCeiling(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := trust.Add(file, time.Now()); err != nil {
		t.Fatal(err)
	}
	load("", true)
	if st, err := os.Stat(filepath.Join(home, TrustFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	// Through another name of the same folder.
	checkCopies(t, dir, home, file)
	// A link to another place changes the file's meaning.
	changeTrusted(t, dir, load, write, file, name, trust)
}

// checkCopies checks that a link to a trusted folder is trusted, and a copy is not.
func checkCopies(t *testing.T, dir, home string, file *Ceiling) {
	t.Helper()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if m, err := LoadForModels(home, link, "", false); err != nil || !m.Trusted {
		t.Errorf("%+v %v", m, err)
	}
	// The same text in another place is another file.
	copied := t.TempDir()
	if err := os.WriteFile(filepath.Join(copied, CeilingFile), file.text, 0o644); err != nil {
		t.Fatal(err)
	}
	if m, err := LoadForModels(home, copied, "", false); err != nil || m.Trusted {
		t.Errorf("%+v %v", m, err)
	}
}

// changeTrusted checks that a changed ceiling is no longer trusted.
func changeTrusted(
	t *testing.T, dir string, load func(named string, wantTrusted bool, wantIgnored ...string) *ForModels,
	write func(text string), file *Ceiling, name string, trust Trust,
) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	if m := load("", false, "secrets", "filesUnder"); !strings.Contains(m.Why, "changed since") {
		t.Errorf("%+v", m)
	}
	write("secrets = [\"TOKEN\"]")
	load("", false, "secrets")
	write(string(file.text))
	load("", false, "secrets", "filesUnder")
	if err := errors.Join(os.Remove(filepath.Join(dir, "data")),
		os.Symlink("/etc/ssl", filepath.Join(dir, "data"))); err != nil {
		t.Fatal(err)
	}
	load("", true)
	if err := errors.Join(os.Rename(name, name+".away"), trust.Forget(name), os.Rename(name+".away", name)); err != nil {
		t.Fatal(err)
	}
	load("", false, "secrets", "filesUnder")
	if err := trust.Forget(name); !errors.Is(err, ErrNotTrusted) {
		t.Error(err)
	}
}

// A list that others may have written, or that can't be read, trusts nothing and says so.
func TestTrustFile(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	name := filepath.Join(dir, CeilingFile)
	if err := os.WriteFile(name, []byte("secrets = [\"A\"]"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := ReadCeiling(name)
	if err != nil {
		t.Fatal(err)
	}
	trust, list := OpenTrust(home), filepath.Join(home, TrustFile)
	if err := trust.Add(c, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := trust.Add(c, time.Now()); err != nil {
		t.Fatal(err)
	}
	if all, err := trust.List(); err != nil || len(all) != 1 || !strings.HasSuffix(all[0].Path, name) {
		t.Errorf("%+v %v", all, err)
	}
	good, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func() error{
		"open to other users": func() error { return os.Chmod(list, 0o644) },
		"can't be read":       func() error { return os.WriteFile(list, []byte("{"), 0o600) },
		"more than":           func() error { return os.WriteFile(list, make([]byte, maxTrust+1), 0o600) },
		"not a regular file":  func() error { return errors.Join(os.Remove(list), os.Mkdir(list, 0o700)) },
		"too many levels":     func() error { return errors.Join(os.Remove(list), os.Symlink(name, list)) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{trust.Of(c), trust.Add(c, time.Now()), trust.Forget(name)} {
			if err == nil || errors.Is(err, ErrNotTrusted) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := LoadForModels(home, dir, "", false); err == nil {
			t.Errorf("%s: a ceiling all the same", what)
		}
		if err := errors.Join(os.RemoveAll(list), os.WriteFile(list, good, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := trust.Of(c); err != nil {
		t.Error(err)
	}
}

// The remedy is a valid shell command, whatever the names of the file's folders are.
func TestRemedyIsACommand(t *testing.T) {
	for _, path := range []string{"/repo/.unitask.toml", "/my repo/.unitask.toml", "/a'b $HOME `id` \"c\"; *\\/x",
		"/ünï/x", "/line\nbreak"} {
		m := ForModels{File: path, Ignored: make([]Widening, 1)}
		word, ok := strings.CutPrefix(m.Remedy(), "read the file, then: unitask policy trust ")
		if !ok {
			t.Fatalf("%q", m.Remedy())
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+word).Output()
		if err != nil || string(out) != path {
			t.Errorf("of %q a shell makes %q: %v", path, out, err)
		}
	}
}
