package imagefile

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/language"
)

// Images with an older version have names that no file may have.
func TestOlderNames(t *testing.T) {
	for _, im := range language.AllImages() {
		if name := im.Payload.Name; strings.Contains(name, "@") && (Contained(name) || CheckName(name) == nil) {
			t.Errorf("%s is one that a file may have", name)
		}
	}
}

// Every shipped description can be read, has another language, and is no bundled image.
func TestShippedLanguages(t *testing.T) {
	seen := map[string]string{}
	list := Languages()
	for _, e := range list {
		if CheckName(e.Name) != nil || language.OfImage(e.Name) != nil || e.Description == "" {
			t.Errorf("%s can't be the name of a shipped image, or has no description", e.Name)
		}
		for _, name := range append(e.Language.AllNames(), e.Language.Name) {
			if other := seen[name]; other != "" && other != e.Name {
				t.Errorf("%s and %s have the language %s", e.Name, other, name)
			}
			seen[name] = e.Name
		}
		if !strings.HasPrefix(e.ShippedText(), "from = ") {
			t.Errorf("%s: the text %.40q", e.Name, e.ShippedText())
		}
	}
	if len(list) < 9 {
		t.Errorf("only %d", len(list))
	}
}

const goodLanguage = `from = "shell"
[language]
name = "toy"
extensions = [".toy"]
run = ["toy", "{file}"]
`

func readLanguage(t *testing.T, text string) (*Environment, error) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "mine.toml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Read(file, dir, language.Images())
}

// Each wrong [language] table has an error that names the key and the remedy.
func TestBadLanguage(t *testing.T) {
	if e, err := readLanguage(t, goodLanguage); err != nil || e.Language == nil || e.Language.Name != "toy" {
		t.Fatal(e, err)
	}
	for _, c := range []struct{ old, new, says string }{
		{`"toy"` + "\next", `""` + "\next", "name = \"\": use small letters"},
		{`"toy"` + "\next", `"Python"` + "\next", "name = \"Python\": use small letters"},
		{`"toy"` + "\next", `"python"` + "\next", "name = \"python\": unitask itself has python: use another name"},
		{`"toy"` + "\next", `"bash"` + "\next", "name = \"bash\": unitask itself has shell"},
		{`".toy"`, `".py"`, "extensions: .py is one of python, which unitask itself has: remove it"},
		{`".toy"`, `".toy", ".toy"`, "extensions: .toy is there twice: remove one"},
		{`".toy"`, `"toy"`, "extensions: \"toy\" is none: begin with a dot"},
		{`".toy"`, `".a/b"`, "extensions: \".a/b\" is none"},
		{`[".toy"]`, `[]`, "extensions has 0 entries: list those"},
		{`run = ["toy", "{file}"]`, ``, "run is empty: give the command"},
		{`["toy", "{file}"]`, `[]`, "run is empty: give the command"},
		{`["toy", "{file}"]`, `["toy"]`, "run lacks {file}: say where"},
		{`["toy", "{file}"]`, `["{file}"]`, "run: \"{file}\" is no program"},
		{`["toy", "{file}"]`, `["./toy", "{file}"]`, "run: \"./toy\" is no program"},
		{`["toy", "{file}"]`, `["", "{file}"]`, "run: \"\" is no program"},
		{`["toy", "{file}"]`, `["toy", "{path}"]`, "run: \"{path}\" has the unknown placeholder {path}: use {file}"},
		{`["toy", "{file}"]`, `["toy", "{out}"]`, "run: \"{out}\" has the unknown placeholder {out}: use {file}"},
		{`["toy", "{file}"]`, `["toy", "{", "{file}"]`, "run: \"{\" has a brace that is no placeholder's: write {{ or }}"},
		{`["toy", "{file}"]`, `["toy", "a\u0000", "{file}"]`, "run: \"a\\x00\" can't be an argument"},
		{`run =`, "check = []\nrun =", "check has 0 entries: give a program"},
		{`run =`, "compile = []\nrun =", "run lacks {out}"},
		{`run =`, "compile = [\"c\", \"{file}\"]\nrun =", "run lacks {out}: say where"},
		{`["toy", "{file}"]`, "[\"{out}\"]\ncompile = [\"c\", \"{file}\"]", "compile lacks {out}: say where"},
		{`run =`, "runs = []\nrun =", "unknown key \"language.runs\": a [language] has name, extensions, check"},
		{`run =`, "Check = [\"t\", \"{file}\"]\nrun =", "unknown key \"language.Check\""},
		{`run =`, "name = \"other\"\nrun =", "language.name' has already been defined"},
		{`[language]`, "[Language]", "unknown key \"Language\""},
		{`from = "shell"`, `from = "python"`, "language: python starts no commands: begin with from = \"shell\""},
		{`from = "shell"`, `from = "debian:12"`, "language: debian:12 starts no commands"},
	} {
		text := strings.Replace(goodLanguage, c.old, c.new, 1)
		if text == goodLanguage {
			t.Fatalf("%q is not there", c.old)
		}
		if _, err := readLanguage(t, text); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s\n%v\nlacks %s", text, err, c.says)
		}
	}
}

// A folder of packages is written with its links, which lead to programs.
func TestWriteFolderLinks(t *testing.T) {
	dir := t.TempDir()
	err := errors.Join(os.MkdirAll(filepath.Join(dir, ".bin"), 0o755), os.MkdirAll(filepath.Join(dir, "tool"), 0o755),
		os.WriteFile(filepath.Join(dir, "tool/main"), []byte("x"), 0o755),
		os.Symlink("../tool/main", filepath.Join(dir, ".bin/tool")))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	if err := errors.Join(WriteFolder(w, dir, "/node_modules"), w.Close()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&text); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		got = append(got, fmt.Sprintf("%c %s %s", h.Typeflag, h.Name, h.Linkname))
	}
	if want := []string{"2 node_modules/.bin/tool ../tool/main", "0 node_modules/tool/main "}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
