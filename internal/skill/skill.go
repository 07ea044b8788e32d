// Package skill reads Agent Skills: folders with a SKILL.md, whose YAML front matter names them, and with scripts. It
// copies a skill, so that what was checked is what runs, and remembers the skills that the user trusts by their
// contents.
package skill

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/unitask/unitask/policy"
)

// File is the file that makes a folder a skill.
const File = "SKILL.md"

// Limits on a skill.
const (
	maxManifest    = 1 << 20
	maxFiles       = 10_000
	maxBytes       = 256 << 20
	maxName        = 64
	maxDescription = 1024
	maxWords       = 100 // hosts, or packages
)

// Members of the front matter's metadata that unitask reads. Both are lists with spaces between.
const (
	HostsKey    = "unitask-allow-net"
	PackagesKey = "unitask-packages"
)

// Manifest is the front matter of a SKILL.md.
type Manifest struct {
	Name        string
	Description string
	Hosts       []string // hosts that its scripts may use HTTP and TLS with, as allowNet has them
	Packages    []string // packages of pip and npm that its scripts import
}

// ManifestError says why a folder is no skill.
type ManifestError struct{ Reason string }

func (e *ManifestError) Error() string { return e.Reason }

func bad(format string, args ...any) error { return &ManifestError{fmt.Sprintf(format, args...)} }

var named = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// Parse reads the text of a SKILL.md. An error is a *ManifestError.
func Parse(text []byte) (m Manifest, err error) {
	if len(text) > maxManifest {
		return m, bad("%s has more than %d MiB", File, maxManifest>>20)
	}
	if !utf8.Valid(text) {
		return m, bad("%s is not UTF-8", File)
	}
	lines := strings.ReplaceAll(string(text), "\r\n", "\n")
	rest, begins := strings.CutPrefix(lines, "---\n")
	front, _, ends := strings.Cut(rest, "\n---")
	if !begins || !ends {
		return m, bad("%s has no front matter between two lines ---", File)
	}
	var matter struct {
		Name        string         `yaml:"name"`
		Description string         `yaml:"description"`
		Metadata    map[string]any `yaml:"metadata"`
	}
	if err := yaml.Unmarshal([]byte(front), &matter); err != nil {
		return m, bad("the front matter of %s: %v", File, err)
	}
	m.Name, m.Description = matter.Name, strings.TrimSpace(matter.Description)
	switch {
	case len(m.Name) > maxName || !named.MatchString(m.Name):
		return m, bad("name %.80q: must be lower-case letters, digits and single dashes, %d at most", m.Name, maxName)
	case m.Description == "" || utf8.RuneCountInString(m.Description) > maxDescription:
		return m, bad("the description must have 1 to %d characters", maxDescription)
	}
	if m.Hosts, err = words(matter.Metadata, HostsKey, func(word string) error {
		_, err := policy.ParseNetRule(word)
		return err
	}); err != nil {
		return m, err
	}
	m.Packages, err = words(matter.Metadata, PackagesKey, func(word string) error {
		_, err := policy.ParsePackage(word)
		return err
	})
	return m, err
}

// words returns the words of a member of the metadata.
func words(metadata map[string]any, key string, check func(string) error) ([]string, error) {
	value, there := metadata[key]
	if !there {
		return nil, nil
	}
	text, ok := value.(string)
	list := strings.Fields(text)
	if !ok || len(list) > maxWords {
		return nil, bad("metadata %s: must be one text, of %d words at most", key, maxWords)
	}
	for _, word := range list {
		if err := check(word); err != nil {
			return nil, bad("metadata %s: %.100q %v", key, word, err)
		}
	}
	return list, nil
}

// Skill is a copy of a skill.
type Skill struct {
	Manifest
	Source string            // the skill's folder, its real path
	Copy   string            // the copy's folder
	Files  map[string]string // SHA-256 by path, with + behind it for an executable file
}

// Read copies a skill's folder into a new folder to; "" only reads. .git and __pycache__ are not parts of a skill.
// Links are refused, as is what is neither a file nor a folder.
func Read(dir, to string) (*Skill, error) {
	real, err := filepath.EvalSymlinks(dir)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	s := &Skill{Source: real, Copy: to, Files: map[string]string{}}
	var manifest []byte
	left := int64(maxBytes)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "__pycache__"):
			return fs.SkipDir
		case d.IsDir():
			if to == "" {
				return nil
			}
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		case !d.Type().IsRegular():
			return bad("%.200q is no file and no folder: a skill has no links and no devices", name)
		case len(s.Files) == maxFiles:
			return bad("it has more than %d files", maxFiles)
		}
		text, err := s.take(root, name, left)
		left -= int64(len(text))
		if name == File {
			manifest = text
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if s.Files[File] == "" {
		return nil, bad("there is no %s", File)
	}
	s.Manifest, err = Parse(manifest)
	return s, err
}

// take reads a file, notes its digest and copies it.
func (s *Skill) take(root *os.Root, name string, left int64) ([]byte, error) {
	f, err := root.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, bad("%.200q is no file", name))
	}
	text, err := io.ReadAll(io.LimitReader(f, left+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > left {
		return nil, bad("it has more than %d MiB", maxBytes>>20)
	}
	sum := sha256.Sum256(text)
	mode, digest := fs.FileMode(0o644), hex.EncodeToString(sum[:])
	if st.Mode().Perm()&0o100 != 0 {
		mode, digest = 0o755, digest+"+"
	}
	s.Files[name] = digest
	if s.Copy == "" {
		return text, nil
	}
	return text, os.WriteFile(filepath.Join(s.Copy, filepath.FromSlash(name)), text, mode)
}

// Scripts returns the paths of the files in the skill's folder scripts.
func (s *Skill) Scripts() (list []string) {
	for name := range s.Files {
		if strings.HasPrefix(name, "scripts/") && Program(name, nil) != nil {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// Script returns the path of a script: name is a path in the skill, or in its folder scripts. "" means the only one.
func (s *Skill) Script(name string) (string, error) {
	scripts := s.Scripts()
	if name == "" && len(scripts) == 1 {
		return scripts[0], nil
	}
	for _, at := range []string{path.Clean(name), path.Join("scripts", name)} {
		if s.Files[at] != "" && name != "" {
			return at, nil
		}
	}
	has := "it has no scripts"
	if len(scripts) > 0 {
		has = "it has " + strings.Join(scripts[:min(len(scripts), 20)], ", ")
	}
	if name == "" {
		return "", bad("name a script: %s", has)
	}
	return "", bad("script %.200q: there is no such file in the skill: %s", name, has)
}

// programs are how scripts start, by the end of their names.
var programs = map[string][]string{
	".py": {"python", "python3"}, ".js": {"node", "node"}, ".mjs": {"node", "node"}, ".cjs": {"node", "node"},
	".ts": {"node", "node"}, ".mts": {"node", "node"}, ".sh": {"shell", "bash"}, ".bash": {"shell", "bash"},
}

// Program returns the image and the interpreter of a script, by its name or its first line. It is nil if neither says.
func Program(name string, text []byte) []string {
	if p := programs[path.Ext(name)]; p != nil {
		return p
	}
	line, _, _ := strings.Cut(string(text[:min(len(text), 200)]), "\n")
	if !strings.HasPrefix(line, "#!") {
		return nil
	}
	for _, word := range strings.FieldsFunc(line[2:], func(r rune) bool { return r == ' ' || r == '/' || r == '\t' }) {
		switch word {
		case "python", "python3":
			return programs[".py"]
		case "node":
			return programs[".js"]
		case "sh", "bash":
			return programs[".sh"]
		}
	}
	return nil
}
