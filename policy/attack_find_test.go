package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

type attackHiddenCeilingRow struct {
	name           string
	files          map[string]string // beside the one above all
	trusted        string
	dir, named     string
	people, models string
}

// attackHiddenCeilingRows are the cases of TestAttackHiddenCeiling.
func attackHiddenCeilingRows() []attackHiddenCeilingRow {
	return []attackHiddenCeilingRow{
		{"nothing else", nil, "", "project/sub", "", "[good.com] 512", "[good.com] 512"},
		{"an empty file", map[string]string{"project/sub": ""}, "", "project/sub", "", "[good.com] 512", "[good.com] 512"},
		{"a file that allows more", map[string]string{"project/sub": "memoryMb = 4096\nallowNet = [\"evil.com\"]"}, "",
			"project/sub", "", "[] 512", "[] 512"},
		{"files on every level", map[string]string{"project": "memoryMb = 256", "project/sub": "memoryMb = 1024"}, "",
			"project/sub", "", "[good.com] 256", "[good.com] 256"},
		{"a path through a link", nil, "", "elsewhere/link", "", "[good.com] 512", "[good.com] 512"},
		{"a path through a link beside an empty file", map[string]string{"elsewhere": ""}, "", "elsewhere/link", "",
			"[good.com] 512", "[good.com] 512"},
		{"a link, where the file above the typed path is the narrower one", map[string]string{"elsewhere": "memoryMb = 128"},
			"", "elsewhere/link", "", "[good.com] 128", "[good.com] 128"},
		{"a trusted file", map[string]string{"project/sub": "memoryMb = 2048"}, "project/sub", "project/sub", "",
			"[good.com evil.com] 2048", "[good.com evil.com] 2048"},
		{"a trusted file on another path", map[string]string{"elsewhere": "memoryMb = 2048"}, "elsewhere", "elsewhere/link",
			"", "[good.com] 512", "[good.com] 512"},
		{"an untrusted file below a trusted one", map[string]string{"project": "memoryMb = 2048",
			"project/sub": "memoryMb = 4096"}, "project", "project/sub", "", "[good.com evil.com] 2048",
			"[good.com evil.com] 2048"},
	}
}

// A nearer file, a link in the typed path and a named file hide no ceiling above, neither from people nor from models.
// A file that the user trusts does.
func TestAttackHiddenCeiling(t *testing.T) {
	ask := Request{MemoryMB: 4096, AllowNet: []string{"good.com", "evil.com"}}
	granted := func(c *Ceiling, err error) string {
		if err != nil {
			return err.Error()
		}
		e, _, err := Resolve(ask, c)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprint(e.AllowNet, " ", e.MemoryMB)
	}
	const upper = "allowNet = [\"good.com\"]\nmemoryMb = 512\n"
	for _, row := range attackHiddenCeilingRows() {
		home, top := t.TempDir(), t.TempDir()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(os.MkdirAll(filepath.Join(top, "above/project/sub"), 0o755))
		must(os.MkdirAll(filepath.Join(top, "above/elsewhere"), 0o755))
		if row.dir == "elsewhere/link" { // and elsewhere is not below the file
			must(os.Rename(filepath.Join(top, "above/elsewhere"), filepath.Join(top, "elsewhere")))
			must(os.Symlink(filepath.Join(top, "above/project/sub"), filepath.Join(top, "elsewhere/link")))
		}
		at := func(dir string) string {
			if _, err := os.Lstat(filepath.Join(top, dir)); err == nil {
				return filepath.Join(top, dir)
			}
			return filepath.Join(top, "above", dir)
		}
		must(os.WriteFile(filepath.Join(top, "above", CeilingFile), []byte(upper), 0o644))
		for dir, text := range row.files {
			must(os.WriteFile(filepath.Join(at(dir), CeilingFile), []byte(text), 0o644))
		}
		if row.trusted != "" {
			c, err := ReadCeiling(filepath.Join(at(row.trusted), CeilingFile))
			must(err)
			must(OpenTrust(home).Add(c, time.Now()))
		}
		people, err := LoadForPeople(home, at(row.dir), row.named)
		must(err)
		attack.Check(t, "a ceiling that is hidden from people: "+row.name, row.people, granted(people.Ceiling, nil))
		attack.Check(t, "a ceiling that is hidden from people, made again: "+row.name, row.people,
			granted(people.Ceiling.Origin().Ceiling(home, "")))
		models, err := LoadForModels(home, at(row.dir), "", false)
		must(err)
		attack.Check(t, "a ceiling that is hidden from models: "+row.name, row.models, granted(models.Ceiling, nil))
	}
	home, dir := t.TempDir(), t.TempDir()
	named := filepath.Join(t.TempDir(), "wide.toml")
	if err := os.WriteFile(named, []byte("memoryMb = 4096"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, CeilingFile), []byte(upper), 0o644); err != nil {
		t.Fatal(err)
	}
	people, err := LoadForPeople(home, dir, named)
	if err != nil {
		t.Fatal(err)
	}
	attack.Check(t, "a ceiling that is hidden from people: by --policy", "[good.com] 512", granted(people.Ceiling, nil))
	c, err := ReadCeiling(named)
	if err != nil {
		t.Fatal(err)
	}
	if err := OpenTrust(home).Add(c, time.Now()); err != nil {
		t.Fatal(err)
	}
	if people, err = LoadForPeople(home, dir, named); err != nil ||
		granted(people.Ceiling, nil) != "[good.com evil.com] 4096" {
		t.Errorf("a named file that is trusted: %s %v", granted(people.Ceiling, nil), err)
	}
	if _, err := LoadForPeople("", dir, named); err != nil { // without a home nothing is trusted
		t.Error(err)
	}
}

// Neither a $PWD with .. behind a link hides a ceiling above, nor a missing folder behind a link.
func TestAttackHiddenByPWD(t *testing.T) {
	home, top := t.TempDir(), t.TempDir()
	project := filepath.Join(top, "above/project")
	for _, err := range []error{os.MkdirAll(filepath.Join(project, "sub"), 0o755),
		os.MkdirAll(filepath.Join(project, "other"), 0o755), os.Mkdir(filepath.Join(top, "elsewhere"), 0o755),
		os.Symlink(filepath.Join(project, "other"), filepath.Join(top, "elsewhere/link")),
		os.WriteFile(filepath.Join(top, "above", CeilingFile), []byte("memoryMb = 512"), 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(filepath.Join(project, "sub"))
	for _, row := range []struct{ name, pwd, dir string }{
		{"$PWD with .. behind a link", filepath.Join(top, "elsewhere") + "/link/../sub", ""},
		{"$PWD with .. behind a link, that is there without it", filepath.Join(top, "elsewhere") + "/link/../sub", "."},
		{"a path with .. behind a link", "", filepath.Join(top, "elsewhere") + "/link/../sub"},
		{"a folder that does not exist, behind a link", "", filepath.Join(top, "elsewhere/link/new/er")},
	} {
		t.Setenv("PWD", row.pwd)
		people, err := LoadForPeople(home, row.dir, "")
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a ceiling that is hidden from people: by "+row.name,
			fmt.Sprint([]string{filepath.Join(top, "above", CeilingFile)}), fmt.Sprint(people.Files))
		models, err := LoadForModels(home, row.dir, "", false)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "a ceiling that is hidden from models: by "+row.name, filepath.Join(top, "above", CeilingFile),
			models.File)
		if err := os.MkdirAll(filepath.Join(top, "elsewhere/sub"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
