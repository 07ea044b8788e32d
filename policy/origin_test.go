package policy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

type originRow struct {
	name, file, after string
	trusted, named    bool
	want, then        string
}

// originRows are the cases of TestOrigin.
func originRows(text string) []originRow {
	return []originRow{
		{"no file", "", "", false, false, "[good.com evil.com] [] [] 1024", "[good.com evil.com] [] [] 1024"},
		{"a file", text, "allowNet = []", false, false, "[good.com] [] [] 512", "[] [] [] 1024"},
		{"one that is trusted, and then another", text, "allowNet = []\nallowTcp = [\"127.0.0.1:1\"]", true, false,
			"[good.com] [127.0.0.1:1] [A] 512", "[] [] [] 1024"},
		{"one that is named", text, "secrets = [\"A\"]", false, true, "[good.com] [127.0.0.1:1] [A] 512",
			"[good.com evil.com] [] [A] 1024"},
	}
}

// A ceiling can be made again from its origin, with the current files; a ceiling for which that is impossible has no
// origin.
func TestOrigin(t *testing.T) {
	ask := Request{MemoryMB: 1024, AllowNet: []string{"good.com", "evil.com"}, AllowTCP: []string{"127.0.0.1:1"},
		Secrets: []string{"A"}}
	granted := func(c *Ceiling) string {
		t.Helper()
		e, _, err := Resolve(ask, c)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(e.AllowNet, e.AllowTCP, e.Secrets, e.MemoryMB)
	}
	again := func(c *Ceiling, home string) string {
		t.Helper()
		text, err := json.Marshal(c.Origin())
		var o *Origin
		if err == nil {
			err = json.Unmarshal(text, &o)
		}
		if err != nil || o == nil {
			t.Fatalf("%s %v", text, err)
		}
		made, err := o.Ceiling(home, "alice")
		if err != nil {
			t.Fatal(err)
		}
		if made.Origin() == nil || *made.Origin() != *c.Origin() {
			t.Errorf("%+v became %+v", c.Origin(), made.Origin())
		}
		return granted(made)
	}
	const text = "allowNet = [\"good.com\"]\nallowTcp = [\"127.0.0.1:1\"]\nsecrets = [\"A\"]\n[principals.alice]\n" +
		"memoryMb = 512\n"
	for _, row := range originRows(text) {
		t.Run(row.name, func(t *testing.T) {
			home, dir, named := t.TempDir(), t.TempDir(), ""
			name := filepath.Join(dir, CeilingFile)
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if row.file != "" {
				write(row.file)
			}
			if row.trusted {
				file, err := ReadCeiling(name)
				if err == nil {
					err = OpenTrust(home).Add(file, time.Now())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if row.named {
				named = name
			}
			m, err := LoadForModels(home, dir, named, false)
			if err != nil {
				t.Fatal(err)
			}
			held := BuiltIn(dir, home).With(m.Ceiling).For("alice") // as a server does
			if a, b := granted(held), again(held, home); a != row.want || b != row.want {
				t.Errorf("%s, made again %s, want %s", a, b, row.want)
			}
			if o := m.Ceiling.For("issuer#alice", "alice").Origin(); row.file != "" && (row.trusted || row.named) && o != nil {
				t.Errorf("of a table by the second name: %+v", o)
			}
			if row.after != "" {
				write(row.after)
			}
			if b := again(held, home); b != row.then {
				t.Errorf("made again of the file of now: %s, want %s", b, row.then)
			}
		})
	}

	checkOriginKinds(t, text, again)
}

// checkOriginKinds checks the origins of ceilings that were not made for a model.
func checkOriginKinds(t *testing.T, text string, again func(c *Ceiling, home string) string) {
	t.Helper()
	name := filepath.Join(t.TempDir(), CeilingFile)
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := ReadCeiling(name)
	if err != nil {
		t.Fatal(err)
	}
	if o := file.Origin(); o == nil || *o != (Origin{File: name}) ||
		again(file, t.TempDir()) != "[good.com] [127.0.0.1:1] [A] 1024" {
		t.Errorf("a file: %+v", o)
	}
	parsed, err := ParseCeiling(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	builtIn := BuiltIn(t.TempDir(), "")
	for what, c := range map[string]*Ceiling{"none": nil, "a text": parsed, "the built-in one": builtIn,
		"it with a file": builtIn.With(file), "it narrowed": builtIn.NarrowedBy(file), "a file's table": file.For("alice"),
		"what it narrows": builtIn.NarrowedBy(file).For("alice"), "a fleet's": ForFleet(file),
		"of what came along": file.Bringing(""), "of an image that came along": file.BringingImage("sha256:1", "k"),
		"of what builds": file.Reaching()} {
		if o := c.Origin(); o != nil {
			t.Errorf("%s: %+v", what, o)
		}
	}
}

// The ceiling above is part of a ceiling: a change of a file above, or of a caller's table, changes it.
func TestDigestOfAll(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(name, CeilingFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	digests := map[string]func() string{
		"people": func() string {
			p, err := LoadForPeople(t.TempDir(), dir, "")
			if err != nil {
				t.Fatal(err)
			}
			return p.Ceiling.Digest()
		},
		"models": func() string {
			m, err := LoadForModels(t.TempDir(), dir, "", false)
			if err != nil {
				t.Fatal(err)
			}
			return m.Ceiling.For("alice").Digest()
		},
	}
	put(dir, "memoryMb = 512\n[principals.alice]\nmemoryMb = 256\n")
	put(top, "memoryMb = 1024\n")
	before := map[string]string{}
	for who, digest := range digests {
		if before[who] = digest(); before[who] != digest() {
			t.Error("it is another one each time", who)
		}
	}
	for what, change := range map[string]func(){
		"the file above": func() { put(top, "memoryMb = 900\n") },
		"the nearest":    func() { put(dir, "memoryMb = 300\n[principals.alice]\nmemoryMb = 256\n") },
		"a table":        func() { put(dir, "memoryMb = 512\n[principals.alice]\nmemoryMb = 200\n") },
	} {
		change()
		for who, digest := range digests {
			if digest() == before[who] {
				t.Errorf("%s: %s has changed, and the digest has not", who, what)
			}
		}
		put(dir, "memoryMb = 512\n[principals.alice]\nmemoryMb = 256\n")
		put(top, "memoryMb = 1024\n")
	}
}
