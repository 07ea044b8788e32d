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
	"syscall"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/policy"
)

// File is the file that makes a folder a skill.
const File = "SKILL.md"

// Limits on a skill.
const (
	maxManifest    = 1 << 20   // bytes of SKILL.md
	maxFront       = 64 << 10  // bytes of its front matter
	maxFiles       = 10_000    // folders, too
	maxPath        = 1024      // bytes of a path in it
	maxBytes       = 256 << 20 // of all files
	maxName        = 64        // bytes
	maxDescription = 1024      // characters
	maxWords       = 100       // hosts, or packages
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
	if len(front) > maxFront {
		return m, bad("the front matter of %s has more than %d KiB", File, maxFront>>10)
	}
	var matter yaml.Node // as it is written: nothing is expanded, and no key is compared with all others
	if err := yaml.Unmarshal([]byte(front), &matter); err != nil {
		return m, bad("the front matter of %s: %.300v", File, err)
	}
	top, err := members(&matter, "")
	if err != nil {
		return m, err
	}
	if m.Name, err = textOf(top, "name"); err != nil {
		return m, err
	}
	if m.Description, err = textOf(top, "description"); err != nil {
		return m, err
	}
	m.Description = strings.TrimSpace(m.Description)
	switch {
	case len(m.Name) > maxName || !named.MatchString(m.Name):
		return m, bad("name %.80q: must be lower-case letters, digits and single dashes, %d at most", m.Name, maxName)
	case m.Description == "" || utf8.RuneCountInString(m.Description) > maxDescription:
		return m, bad("the description must have 1 to %d characters", maxDescription)
	}
	metadata, err := members(top["metadata"], "metadata ")
	if err != nil {
		return m, err
	}
	if m.Hosts, err = words(metadata, HostsKey, func(word string) error {
		_, err := policy.ParseNetRule(word)
		return err
	}); err != nil {
		return m, err
	}
	m.Packages, err = words(metadata, PackagesKey, func(word string) error {
		_, err := policy.ParsePackage(word)
		return err
	})
	return m, err
}

// members returns the members of a mapping by their keys; what names it in errors.
func members(of *yaml.Node, what string) (map[string]*yaml.Node, error) {
	if of != nil && of.Kind == yaml.DocumentNode {
		of = of.Content[0]
	}
	found := map[string]*yaml.Node{}
	if of == nil || of.Kind == 0 || of.Tag == "!!null" {
		return found, nil
	}
	if of.Kind != yaml.MappingNode {
		return nil, bad("%sin the front matter of %s: must have keys and values", what, File)
	}
	for i := 0; i+1 < len(of.Content); i += 2 {
		key := of.Content[i].Value
		if found[key] != nil {
			return nil, bad("%s%.80q is there twice", what, key)
		}
		found[key] = of.Content[i+1]
	}
	return found, nil
}

// textOf returns a text, "" if there is none.
func textOf(of map[string]*yaml.Node, key string) (string, error) {
	value := of[key]
	switch {
	case value == nil || value.Tag == "!!null":
		return "", nil
	case value.Kind != yaml.ScalarNode:
		return "", bad("%s: must be a text", key)
	}
	return value.Value, nil
}

// words returns the words of a member of the metadata.
func words(metadata map[string]*yaml.Node, key string, check func(string) error) ([]string, error) {
	text, err := textOf(metadata, key)
	list := strings.Fields(text)
	if err != nil || len(list) > maxWords {
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

	manifest []byte
	bytes    int64 // that it may yet have
	entries  int   // likewise
}

// Folder returns the one name of a skill's folder: absolute, without links.
func Folder(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return realpath.Of(abs)
}

// Read copies a skill's folder into a new folder to; "" only reads. .git and __pycache__ are not parts of a skill.
// Links are refused, as is what is neither a file nor a folder.
func Read(dir, to string) (*Skill, error) {
	real, err := Folder(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(real)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if st, err := root.Lstat(File); err != nil || !st.Mode().IsRegular() { // else any folder would be read to its end
		return nil, bad("there is no %s", File)
	}
	s := &Skill{Source: real, Copy: to, Files: map[string]string{}, bytes: maxBytes, entries: maxFiles}
	if err := s.folder(root, "."); err != nil {
		return nil, err
	}
	if s.Files[File] == "" {
		return nil, bad("there is no %s", File)
	}
	s.Manifest, err = Parse(s.manifest)
	return s, err
}

// folder takes a folder with what is in it.
func (s *Skill) folder(root *os.Root, dir string) error {
	f, err := root.Open(dir)
	if err != nil {
		return err
	}
	list, err := f.ReadDir(s.entries + 1)
	f.Close()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if s.entries -= len(list); s.entries < 0 {
		return bad("it has more than %d files and folders", maxFiles)
	}
	for _, d := range list {
		name := path.Join(dir, d.Name())
		switch {
		case len(name) > maxPath:
			return bad("%.80q…: the path has more than %d bytes", name, maxPath)
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "__pycache__"):
			continue
		case d.IsDir():
			if s.Copy != "" {
				if err := os.Mkdir(filepath.Join(s.Copy, name), 0o755); err != nil {
					return err
				}
			}
			if err := s.folder(root, name); err != nil {
				return err
			}
		case !d.Type().IsRegular():
			return bad("%.200q is no file and no folder: a skill has no links and no devices", name)
		default:
			if err := s.take(root, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// take reads a file, notes its digest and copies it.
func (s *Skill) take(root *os.Root, name string) error {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have taken its place
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return errors.Join(err, bad("%.200q is no file", name))
	}
	var text []byte
	if st.Size() <= s.bytes { // a file that grows meanwhile is refused, too
		if text, err = io.ReadAll(io.LimitReader(f, s.bytes+1)); err != nil {
			return err
		}
	}
	if s.bytes -= max(st.Size(), int64(len(text))); s.bytes < 0 {
		return bad("it has more than %d MiB", maxBytes>>20)
	}
	sum := sha256.Sum256(text)
	mode, digest := fs.FileMode(0o644), hex.EncodeToString(sum[:])
	if st.Mode().Perm()&0o100 != 0 {
		mode, digest = 0o755, digest+"+"
	}
	if s.Files[name] = digest; name == File {
		s.manifest = text
	}
	if s.Copy == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(s.Copy, filepath.FromSlash(name)), text, mode)
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
