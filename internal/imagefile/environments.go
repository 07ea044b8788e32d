// Package imagefile reads the descriptions of custom images: TOML files, each of which begins with another image. The
// result is plain data. The package builds nothing and starts nothing.
package imagefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/unseen"
	"github.com/unitask/unitask/policy"
)

// Extension is the extension of the files.
const Extension = ".toml"

// Limits of a file's contents, including the files that it begins with.
const (
	maxText        = 256 << 10 // bytes of the file
	maxChain       = 8         // files that begin with one another
	maxEntries     = 100       // of one list
	maxValue       = 32 << 10  // bytes of a variable's value
	maxDescription = 300       // bytes
	maxModule      = 200       // bytes of the name of a module that is imported ahead
	maxStep        = 16 << 10  // bytes of a step of run
)

// Environment is an image as described by its file and the files that it begins with.
type Environment struct {
	Name        string
	File        string   // absolute
	From        string   // a bundled image, or a container image's reference
	Chain       []string // the files, this file first
	Pip, Npm    []string
	Debian      []string // NAME or NAME=VERSION
	Run         []string // shell steps, in order; for container images only
	Network     []string // hosts that the steps may reach, or the registries of pip or npm
	Files       []File
	Env         map[string]string
	Warm        []string
	MemoryMB    int
	Timeout     time.Duration // of code in it, where a run names none; 0 means the usual one
	Description string
	Language    *language.Declared // nil if the files declare none

	shipped string // the text of a shipped image's description
}

// File is a file or folder of the host, and where it is in the guest.
type File struct {
	Guest string
	Dir   string // the folder of the file that names it; it must be inside
	Host  string // its path in that folder, with slashes
}

// text is the form of a file.
type text struct {
	From        string            `toml:"from"`
	Debian      []string          `toml:"debian"`
	Pip         []string          `toml:"pip"`
	Npm         []string          `toml:"npm"`
	Run         []string          `toml:"run"`
	Network     []string          `toml:"network"`
	Files       map[string]string `toml:"files"`
	Env         map[string]string `toml:"env"`
	Warm        []string          `toml:"warm"`
	MemoryMB    int               `toml:"memoryMb"`
	Timeout     float64           `toml:"timeoutSeconds"`
	Description string            `toml:"description"`

	Language *language.Declared `toml:"language"`
}

// keys are the keys that a file may have.
const keys = "from, debian, pip, npm, run, network, files, env, warm, memoryMb, timeoutSeconds, description, language"

var (
	name     = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,39}$`)
	variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,199}$`)
	module   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$`)
)

// CheckName returns why a word can't be an image's name.
func CheckName(word string) error {
	if !name.MatchString(word) {
		return fmt.Errorf("%.80q is no name of an image: small letters, digits, - and _, at most 40", word)
	}
	return nil
}

// Contained reports whether a word names a container image. A word with one of these characters is a reference, or
// invalid, unless it is a name with a version, as python@3.11.
func Contained(from string) bool {
	return strings.ContainsAny(from, "/:@") && !policy.IsImageName(from)
}

// Find returns the file for a path, or for a name in the folder of environments.
func Find(arg, folder string) string {
	if strings.HasSuffix(arg, Extension) || strings.ContainsRune(arg, filepath.Separator) {
		return arg
	}
	return filepath.Join(folder, arg+Extension)
}

// Read reads a file and the files that it begins with. It looks for those beside the file, then in folder, then among
// the bundled images.
func Read(file, folder string, along []string) (*Environment, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	e := &Environment{Name: strings.TrimSuffix(filepath.Base(abs), Extension), File: abs, Env: map[string]string{}}
	if err := CheckName(e.Name); err != nil {
		return nil, fmt.Errorf("%s: %w: call the file NAME%s", abs, err, Extension)
	}
	for next := abs; ; {
		if slices.Contains(e.Chain, next) {
			return nil, fmt.Errorf("%s: from goes round in a circle: %s", abs,
				strings.Join(append(e.Chain, next), " begins with "))
		}
		if len(e.Chain) == maxChain {
			return nil, fmt.Errorf("%s: begins with more than %d files, one after the other", abs, maxChain)
		}
		e.Chain = append(e.Chain, next)
		t, err := read(next)
		if err == nil {
			err = e.add(t, filepath.Dir(next))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", next, err)
		}
		own := strings.TrimSuffix(filepath.Base(next), Extension)
		from := ""
		for _, dir := range []string{filepath.Dir(next), folder} {
			at := filepath.Join(dir, t.From+Extension)
			named := t.From != own && CheckName(t.From) == nil
			if st, err := os.Stat(at); named && from == "" && err == nil && st.Mode().IsRegular() {
				from = at
			}
		}
		switch {
		case from != "":
			next = from
		case slices.Contains(along, t.From), Contained(t.From):
			e.From = t.From
			return e, e.check()
		default:
			return nil,
				fmt.Errorf(
					"%s: from = %.80q is no image: use %s, a container image's reference, or the name of a file of yours, "+
						"beside this one or in %s", next, t.From, strings.Join(along, ", "), folder)
		}
	}
}

func read(file string) (*text, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|nonblock, 0)
	if err != nil {
		var wrapped *fs.PathError
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("is not a regular file"))
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > maxText {
		return nil, fmt.Errorf("has more than %d bytes", maxText)
	}
	return parse(raw)
}

func parse(raw []byte) (*text, error) {
	t := &text{}
	md, err := toml.NewDecoder(bytes.NewReader(raw)).Decode(t)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "toml: "))
	}
	ofLanguage := func(key toml.Key) bool { return len(key) > 1 && key[0] == "language" }
	for _, key := range append(md.Undecoded(), md.Keys()...) { // it reads Env as env
		switch {
		case ofLanguage(key) && !slices.Contains(language.DeclaredKeys, key[1]):
			return nil, fmt.Errorf("unknown key %.80q: a [language] has %s", key.String(),
				strings.Join(language.DeclaredKeys, ", "))
		case len(key) == 1 && !slices.Contains(strings.Split(keys, ", "), key[0]):
			return nil, fmt.Errorf("unknown key %.80q: there are %s", key[0], keys)
		}
	}
	if unknown := md.Undecoded(); len(unknown) > 0 {
		return nil, fmt.Errorf("unknown key %.80q: there are %s", unknown[0].String(), keys)
	}
	switch {
	case t.From == "":
		return nil, errors.New("has no from: the image that it begins with")
	case !policy.IsImageName(t.From) && !Contained(t.From):
		return nil, fmt.Errorf("from = %.80q is no image: a name, or a container image's reference", t.From)
	}
	return t, nil
}

// add adds the contents of a base file. Its lists come first; its single values count only if no earlier file set them.
func (e *Environment) add(t *text, dir string) error {
	e.Pip, e.Npm, e.Warm = append(slices.Clone(t.Pip), e.Pip...), append(slices.Clone(t.Npm), e.Npm...),
		append(slices.Clone(t.Warm), e.Warm...)
	e.Debian = append(slices.Clone(t.Debian), e.Debian...)
	e.Run, e.Network = append(slices.Clone(t.Run), e.Run...), append(slices.Clone(t.Network), e.Network...)
	if e.MemoryMB == 0 {
		e.MemoryMB = t.MemoryMB
	}
	if t.Timeout != 0 && !(t.Timeout >= time.Millisecond.Seconds() && t.Timeout <= policy.MaxTimeout.Seconds()) {
		return fmt.Errorf("timeoutSeconds: %g must be from 0.001 to %g", t.Timeout, policy.MaxTimeout.Seconds())
	}
	if e.Timeout == 0 {
		e.Timeout = time.Duration(t.Timeout * float64(time.Second)).Truncate(time.Millisecond)
	}
	if e.Description == "" {
		e.Description = t.Description
	}
	if e.Language == nil {
		e.Language = t.Language
	}
	for name, value := range t.Env {
		if _, there := e.Env[name]; !there {
			e.Env[name] = value
		}
	}
	for _, at := range slices.Sorted(maps.Keys(t.Files)) {
		host := filepath.ToSlash(filepath.Clean(t.Files[at]))
		if t.Files[at] == "" || !filepath.IsLocal(t.Files[at]) {
			return fmt.Errorf("files: %.200q is not below the file's own folder, %s", t.Files[at], dir)
		}
		if !slices.ContainsFunc(e.Files, func(f File) bool { return f.Guest == at }) {
			e.Files = append(e.Files, File{at, dir, host})
		}
	}
	return nil
}

func (e *Environment) check() error {
	wrong := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", e.File, fmt.Errorf(format, args...))
	}
	for key, n := range map[string]int{"debian": len(e.Debian), "pip": len(e.Pip), "npm": len(e.Npm), "run": len(e.Run),
		"network": len(e.Network), "files": len(e.Files), "env": len(e.Env), "warm": len(e.Warm)} {
		if n > maxEntries {
			return wrong("%s has %d entries, with those of the images that it begins with: at most %d", key, n, maxEntries)
		}
	}
	if err := CheckAdded(e.Env, e.Warm); err != nil {
		return wrong("%w", err)
	}
	for i, step := range e.Run {
		if strings.TrimSpace(step) == "" || len(step) > maxStep || strings.ContainsRune(step, 0) || !utf8.ValidString(step) {
			return wrong("run: step %d can't be one: a shell's text of at most %d bytes", i+1, maxStep)
		}
	}
	for _, f := range e.Files {
		if f.Guest != path.Clean(f.Guest) || !path.IsAbs(f.Guest) || strings.ContainsAny(f.Guest, "\n\x00") ||
			!utf8.ValidString(f.Guest) {
			return wrong("files: %.200q is no path in the machine: /FOLDER/NAME", f.Guest)
		}
		for _, other := range e.Files {
			if strings.HasPrefix(f.Guest, other.Guest+"/") {
				return wrong("files: %s lies in %s, which is a file or folder of its own", f.Guest, other.Guest)
			}
		}
	}
	if len(e.Description) > maxDescription || !utf8.ValidString(e.Description) ||
		strings.ContainsFunc(e.Description, unseen.Is) {
		return wrong("description: must be one line of at most %d bytes, without characters that can't be seen",
			maxDescription)
	}
	if e.Language != nil {
		if !language.Declares(e.From) {
			return wrong("language: %s starts no commands: begin with from = \"shell\"", e.From)
		}
		if err := e.Language.Verify(); err != nil {
			return wrong("language: %w", err)
		}
	}
	if e.MemoryMB < 0 {
		return wrong("memoryMb: %d is no size of a machine", e.MemoryMB)
	}
	return nil
}

// CheckAdded returns what is wrong with an image's variables and preloaded modules.
func CheckAdded(env map[string]string, warm []string) error {
	if len(env) > maxEntries || len(warm) > maxEntries {
		return fmt.Errorf("env has %d entries and warm %d: at most %d", len(env), len(warm), maxEntries)
	}
	size := 0
	for name, value := range env {
		if size += len(name) + len(value); !variable.MatchString(name) || strings.ContainsRune(value, 0) ||
			!utf8.ValidString(value) || size > maxValue {
			return fmt.Errorf(
				"env: %.80q can't be a variable: a name of letters, digits and _, and text of at most %d bytes in all", name,
				maxValue)
		}
	}
	for _, name := range warm {
		if len(name) > maxModule || !module.MatchString(name) {
			return fmt.Errorf("warm: %.80q is no name of a module", name)
		}
	}
	return nil
}
