package language

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Declared is a language that an image's file declares, by commands of programs in the image. They are lists of
// arguments: no shell reads the name of the code's file.
type Declared struct {
	Name       string   `toml:"name" json:"name"`             // for Request.Language
	Extensions []string `toml:"extensions" json:"extensions"` // of its files, the first that of code without a file
	Check      []string `toml:"check" json:"check,omitempty"` // checks {file}, and runs nothing of it
	// Compile makes the program {out} of {file}; Run runs that one, or {file}. The code's arguments follow Run's.
	Compile []string `toml:"compile" json:"compile,omitempty"`
	Run     []string `toml:"run" json:"run"`
}

// DeclaredKeys are the keys of a [language] table.
var DeclaredKeys = []string{"name", "extensions", "check", "compile", "run"}

// Limits of a declaration.
const (
	maxDeclaredExtensions = 8       // file name extensions of a language
	maxDeclaredArgs       = 64      // words of a command line
	maxDeclaredArg        = 1 << 10 // bytes
)

var (
	declaredName      = regexp.MustCompile(`^[a-z][a-z0-9+#-]{0,19}$`)
	declaredExtension = regexp.MustCompile(`^\.[A-Za-z0-9+_-]{1,15}$`)
	inBraces          = regexp.MustCompile(`\{\{|\}\}|\{([a-z]+)\}|[{}]`)
)

// Verify returns what is wrong with a declaration: an error that names the key, and what to do.
func (d *Declared) Verify() error {
	if !declaredName.MatchString(d.Name) {
		return fmt.Errorf("name = %.40q: use small letters, digits, +, # and -, at most 20, as \"ruby\"", d.Name)
	}
	if l, _, err := Named(d.Name); err == nil {
		return fmt.Errorf("name = %q: unitask itself has %s: use another name", d.Name, l.Name)
	}
	if n := len(d.Extensions); n == 0 || n > maxDeclaredExtensions {
		return fmt.Errorf("extensions has %d entries: list those of its files, at most %d, as [\".rb\"]", n,
			maxDeclaredExtensions)
	}
	for i, ext := range d.Extensions {
		if !declaredExtension.MatchString(ext) {
			return fmt.Errorf("extensions: %.40q is none: begin with a dot, as \".rb\"", ext)
		}
		if slices.Contains(d.Extensions[:i], ext) {
			return fmt.Errorf("extensions: %s is there twice: remove one", ext)
		}
		if l, _, err := Named(ext[1:]); err == nil {
			return fmt.Errorf("extensions: %s is one of %s, which unitask itself has: remove it", ext, l.Name)
		}
	}
	if len(d.Run) == 0 {
		return errors.New("run is empty: give the command that runs the code, as [\"ruby\", \"{file}\"]")
	}
	for _, c := range d.commands() {
		if err := c.verify(); err != nil {
			return fmt.Errorf("%s%w", c.key, err)
		}
	}
	return nil
}

// declaredCommand is one of a declaration's commands. It may and must have certain placeholders.
type declaredCommand struct {
	key   string
	argv  []string
	may   []string
	needs string // one of may
}

func (d *Declared) commands() []declaredCommand {
	run := declaredCommand{"run", d.Run, []string{"file"}, "file"}
	if d.Compile != nil {
		run = declaredCommand{"run", d.Run, []string{"file", "out"}, "out"}
	}
	list := []declaredCommand{run}
	if d.Compile != nil {
		list = append(list, declaredCommand{"compile", d.Compile, []string{"file", "out"}, "out"})
	}
	if d.Check != nil {
		list = append(list, declaredCommand{"check", d.Check, []string{"file"}, "file"})
	}
	return list
}

func (c declaredCommand) verify() error {
	if len(c.argv) == 0 || len(c.argv) > maxDeclaredArgs {
		return fmt.Errorf(" has %d entries: give a program and up to %d arguments, or leave the key out", len(c.argv),
			maxDeclaredArgs-1)
	}
	used := map[string]bool{}
	for _, arg := range c.argv {
		if len(arg) > maxDeclaredArg || !utf8.ValidString(arg) || strings.ContainsRune(arg, 0) {
			return fmt.Errorf(": %.40q can't be an argument: use text of at most %d bytes", arg, maxDeclaredArg)
		}
		for _, m := range inBraces.FindAllStringSubmatch(arg, -1) {
			switch {
			case m[0] == "{{" || m[0] == "}}":
			case m[1] == "":
				return fmt.Errorf(": %.80q has a brace that is no placeholder's: write {{ or }}", arg)
			case !slices.Contains(c.may, m[1]):
				return fmt.Errorf(": %.80q has the unknown placeholder {%s}: use {%s}", arg, m[1],
					strings.Join(c.may, "} or {"))
			default:
				used[m[1]] = true
			}
		}
	}
	program := c.argv[0]
	if program != "{out}" && (program == "" || inBraces.MatchString(program) ||
		strings.Contains(program, "/") && program[0] != '/') {
		return fmt.Errorf(": %.80q is no program: begin with its name, its absolute path, or {out} alone", program)
	}
	if !used[c.needs] {
		return fmt.Errorf(" lacks {%s}: say where the command takes it", c.needs)
	}
	return nil
}

// Declares reports whether images over a bundled one may declare a language: bash starts its commands.
func Declares(image string) bool {
	l := OfImage(image)
	return l != nil && l.Name == "shell"
}

// Language returns the language. It runs in an image over a bundled image, whose bash starts the commands.
func (d *Declared) Language(im Image, base *Language) *Language {
	l := *base
	l.Name, l.others, l.Extensions, l.About, l.Images = d.Name, nil, d.Extensions, d.Name, []Image{im}
	l.Runner, l.RunnerExtension = d.runner(), base.Extensions[0]
	l.Check = d.checker()
	return &l
}

// Named reports whether a name is that of the language, or of one of its extensions, and which extension it means.
func (d *Declared) Named(name string) (ext string, is bool) {
	if strings.EqualFold(name, d.Name) {
		return d.Extensions[0], true
	}
	for _, ext := range d.Extensions {
		if strings.EqualFold("."+name, ext) {
			return ext, true
		}
	}
	return "", false
}

// AllNames returns the language's name, and its extensions as names.
func (d *Declared) AllNames() []string {
	return (&Language{Name: d.Name, Extensions: d.Extensions}).AllNames()
}

// The scripts take the code's file as $1, and its arguments after it. None of their text comes from a request.
const (
	compileScript = "set -- \"$(/usr/bin/mktemp -d)/program\" \"$@\" || exit\n(exec %s) || exit\n"
	afterFile     = ` "${@:2}"`
	afterOut      = ` "${@:3}"`
)

func (d *Declared) runner() string {
	if d.Compile == nil {
		return "exec " + shellWords(d.Run, "", `"$1"`) + afterFile + "\n"
	}
	return d.compiler() + "exec " + shellWords(d.Run, `"$1"`, `"$2"`) + afterOut + "\n"
}

func (d *Declared) compiler() string {
	return fmt.Sprintf(compileScript, shellWords(d.Compile, `"$1"`, `"$2"`))
}

// checker returns the script that checks a program; without a check, compiling is one; "" if there is neither.
func (d *Declared) checker() string {
	switch {
	case d.Check != nil:
		return "exec " + shellWords(d.Check, "", `"$1"`) + "\n"
	case d.Compile != nil:
		return d.compiler()
	}
	return ""
}

// shellWords quotes arguments for bash, with its expressions out and file in place of {out} and {file}.
func shellWords(argv []string, out, file string) string {
	words := make([]string, len(argv))
	for i, arg := range argv {
		quoted := "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		words[i] = inBraces.ReplaceAllStringFunc(quoted, func(m string) string {
			switch m {
			case "{{", "}}":
				return m[:1]
			case "{out}":
				return "'" + out + "'"
			}
			return "'" + file + "'"
		})
	}
	return strings.Join(words, " ")
}
