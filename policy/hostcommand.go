package policy

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/internal/unseen"
)

// Limits of host commands.
const (
	maxHostCommands = 64   // of one ceiling
	maxHostArgs     = 64   // words of argv
	maxHostText     = 4096 // bytes of a value, a description or a whole command line
	// hostTime is the usual time limit, maxHostTime the longest.
	hostTime    = time.Minute
	maxHostTime = time.Hour // the longest time limit of a command
)

// HostCommand is a command of the host that models may run: a [host.NAME] table of a ceiling. No shell reads it.
type HostCommand struct {
	Name    string
	About   string   // for the model
	Argv    []string // may contain {placeholders}; {{ and }} are braces
	Values  map[string]HostValue
	Dir     string            // where it runs; "" means an empty folder
	User    string            // whose rights it has; "" means unitask's own
	Env     map[string]string // its whole environment
	Timeout time.Duration
	Ask     bool // the user is asked each time
}

// HostValue is the type of a placeholder. Exactly one of its parts is set.
type HostValue struct {
	Of       []string       // one of these
	Under    string         // an existing file or folder below this folder
	Pattern  *regexp.Regexp // matches the whole value
	From, To *int64         // an integer in this range
}

// HostCommands returns the host's commands that models may run, by name; nil if they get none. A file that only narrows
// another ceiling adds none.
func (c *Ceiling) HostCommands() map[string]*HostCommand {
	if c = c.base(); c == nil {
		return nil
	}
	return c.host
}

const hostKey = "host"

var hostName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)

// parseHostCommands reads the [host] table. Relative folders begin at dir.
func parseHostCommands(value any, dir string) (map[string]*HostCommand, error) {
	table, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is a %s: use [host.NAME]", tomlType(value))
	}
	if len(table) > maxHostCommands {
		return nil, fmt.Errorf("has %d commands, and %d is the most", len(table), maxHostCommands)
	}
	list := map[string]*HostCommand{}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		own, ok := table[name].(map[string]any)
		switch {
		case !hostName.MatchString(name):
			return nil, fmt.Errorf("%.60q: a name has lower-case letters, digits and -, and begins with a letter", name)
		case !ok:
			return nil, fmt.Errorf("%s is a %s: use [host.%s]", name, tomlType(table[name]), name)
		}
		h := &HostCommand{Name: name, Timeout: hostTime, Ask: true, Values: map[string]HostValue{}}
		if err := h.read(own, dir); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if err := h.check(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list[name] = h
	}
	return list, nil
}

// hostKeys are the keys of a [host.NAME] table, and what their values must be.
var hostKeys = map[string]string{
	"argv": "a list of texts", "about": "a text", "dir": "a folder's path", "user": "a user's name",
	"ask": "true or false", "timeoutSeconds": "from 1 to 3600", "env": `a table of texts: { NAME = "value" }`,
}

// read reads the keys of a [host.NAME] table. A table among them is a placeholder's type.
func (h *HostCommand) read(table map[string]any, dir string) (err error) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		value := table[key]
		fits := true
		switch key {
		case "argv":
			h.Argv, fits = textsOf(value)
		case "about":
			h.About, fits = value.(string)
		case "dir":
			if h.Dir, fits = value.(string); fits {
				h.Dir = leads(below(dir, h.Dir))
			}
		case "user":
			h.User, fits = value.(string)
		case "ask":
			h.Ask, fits = value.(bool)
		case "timeoutSeconds":
			var n int64
			n, fits = value.(int64)
			h.Timeout = time.Duration(n) * time.Second
			fits = fits && n > 0 && n <= int64(maxHostTime/time.Second)
		case "env":
			var env map[string]any
			env, fits = value.(map[string]any)
			h.Env = map[string]string{}
			for name, v := range env {
				text, ok := v.(string)
				fits = fits && ok
				h.Env[name] = text
			}
		default:
			kind, ok := value.(map[string]any)
			if !ok {
				return fmt.Errorf("unknown key %.40q: use %s, or the name of a placeholder with a table", key,
					strings.Join(slices.Sorted(maps.Keys(hostKeys)), ", "))
			}
			if h.Values[key], err = readHostValue(kind, dir); err != nil {
				return fmt.Errorf("%s %w", key, err)
			}
		}
		if !fits {
			return fmt.Errorf("%s must be %s", key, hostKeys[key])
		}
	}
	return nil
}

func readHostValue(table map[string]any, dir string) (v HostValue, err error) {
	const use = `use { of = ["…"] }, { under = "FOLDER" }, { from = 1, to = 9 } or { pattern = "…" }`
	for key, value := range table {
		fits := false
		switch key {
		case "of":
			v.Of, fits = textsOf(value)
			fits = fits && len(v.Of) > 0
		case "under":
			v.Under, fits = value.(string)
			v.Under, fits = leads(below(dir, v.Under)), fits && v.Under != ""
		case "from", "to":
			var n int64
			n, fits = value.(int64)
			if key == "from" {
				v.From = &n
			} else {
				v.To = &n
			}
		case "pattern":
			var text string
			if text, fits = value.(string); fits {
				if _, err = regexp.Compile(text); err == nil { // alone, since a bracket could close ours
					v.Pattern, err = regexp.Compile(`\A(?:` + text + `)\z`)
				}
				if err != nil {
					return v, fmt.Errorf("pattern %.60q: %w", text, err)
				}
			}
		}
		if !fits {
			return v, fmt.Errorf("%s does not fit: %s", key, use)
		}
	}
	kinds := 0
	for _, is := range []bool{v.Of != nil, v.Under != "", v.From != nil || v.To != nil, v.Pattern != nil} {
		if is {
			kinds++
		}
	}
	if kinds != 1 || (v.From == nil) != (v.To == nil) || v.From != nil && *v.From > *v.To {
		return v, errors.New("needs one type: " + use)
	}
	return v, nil
}

// below returns a path of a ceiling's file in dir.
func below(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

func textsOf(value any) (list []string, ok bool) {
	entries, ok := value.([]any)
	for _, e := range entries {
		text, is := e.(string)
		list, ok = append(list, text), ok && is
	}
	return list, ok
}

// check returns what is wrong with a command as a whole.
func (h *HostCommand) check() error {
	if len(h.Argv) == 0 || len(h.Argv) > maxHostArgs {
		return fmt.Errorf("argv has %d entries: a program and up to %d arguments", len(h.Argv), maxHostArgs-1)
	}
	used := map[string]bool{}
	for i, arg := range h.Argv {
		names, err := placeholdersIn(arg)
		if err != nil {
			return fmt.Errorf("argv %.80q: %w", arg, err)
		}
		for _, name := range names {
			if hostKeys[name] != "" {
				return fmt.Errorf("argv %.80q: %s is a key of the table, and so no name of a placeholder", arg, name)
			}
			if _, ok := h.Values[name]; !ok {
				return fmt.Errorf("argv %.80q: the placeholder %s has no type: %s = { of = [\"…\"] }, for example", arg, name,
					name)
			}
			used[name] = true
		}
		switch {
		case i == 0 && (len(names) > 0 || arg == "" || strings.Contains(arg, "/") && !filepath.IsAbs(arg)):
			return fmt.Errorf("argv %.80q: the program is a name or an absolute path, without placeholders", arg)
		case i > 0 && len(names) > 0 && (takesProgram.MatchString(h.Argv[i-1]) || hasProgram.MatchString(arg)):
			return fmt.Errorf("argv %.80q: no placeholder may stand in code, which -c, -e and the like take", arg)
		}
	}
	for name := range h.Values {
		if !used[name] {
			return fmt.Errorf("the placeholder %.40q is not in argv", name)
		}
	}
	for name, value := range h.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
			return fmt.Errorf("env has %.40q, which is no variable", name)
		}
	}
	if len(h.About) > maxHostText {
		return fmt.Errorf("about has more than %d bytes", maxHostText)
	}
	return nil
}

// takesProgram matches options whose next argument is code to many programs.
var takesProgram = regexp.MustCompile(`^(-[a-zA-Z]*[ceE]|--eval|--command|--exec|-exec)$`)

// hasProgram matches such options with the code in the same argument.
var hasProgram = regexp.MustCompile(`^(-[ceE][^-]*|--(eval|command|exec)=.*)\{`)

var placeholder = regexp.MustCompile(`\{\{|\}\}|\{([a-zA-Z][a-zA-Z0-9_]*)\}|[{}]`)

// placeholdersIn returns the names of the placeholders in an argument.
func placeholdersIn(arg string) (names []string, err error) {
	for _, m := range placeholder.FindAllStringSubmatch(arg, -1) {
		if m[0] == "{" || m[0] == "}" {
			return nil, errors.New("a brace is no placeholder: write {{ or }}")
		}
		if m[1] != "" {
			names = append(names, m[1])
		}
	}
	return names, nil
}

// Resolve returns the arguments of a call, with the values in their places. A path is the real one, without links.
func (h *HostCommand) Resolve(values map[string]string) ([]string, error) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, ok := h.Values[name]; !ok {
			return nil, fmt.Errorf("values.%.40s: %s has no such value; it takes %s", name, h.Name,
				cmp.Or(strings.Join(slices.Sorted(maps.Keys(h.Values)), ", "), "none"))
		}
	}
	set := map[string]string{}
	for name, kind := range h.Values {
		value, ok := values[name]
		if !ok {
			return nil, fmt.Errorf("values.%s is missing: %s", name, kind)
		}
		text, err := kind.resolve(value)
		if err != nil {
			return nil, fmt.Errorf("values.%s %.80q %w", name, value, err)
		}
		set[name] = text
	}
	if h.Dir != "" {
		if real, err := realpath.Of(h.Dir); err != nil || real != h.Dir {
			return nil, fmt.Errorf("%s does not run: its folder %s is gone, or leads elsewhere now", h.Name, h.Dir)
		}
	}
	argv := make([]string, len(h.Argv))
	for i, arg := range h.Argv {
		argv[i] = placeholder.ReplaceAllStringFunc(arg, func(m string) string {
			if len(m) == 2 && m[0] == m[1] {
				return m[:1]
			}
			return set[m[1:len(m)-1]]
		})
		if strings.HasPrefix(argv[i], "-") && strings.HasPrefix(arg, "{") && !strings.HasPrefix(arg, "{{") &&
			!h.lists(arg, argv[i]) {
			return nil, fmt.Errorf("%.80q would be an option of the command", argv[i])
		}
	}
	if n := len(strings.Join(argv, " ")); n > maxHostText { // somebody reads it
		return nil, fmt.Errorf("the command line has %d bytes, and %d are the most", n, maxHostText)
	}
	return argv, nil
}

// lists reports whether an argument is a placeholder alone, and the file itself lists the value.
func (h *HostCommand) lists(arg, value string) bool {
	return slices.Contains(h.Values[strings.Trim(arg, "{}")].Of, value)
}

// resolve returns the text that stands for a value.
func (v HostValue) resolve(value string) (string, error) {
	switch {
	case value == "":
		return "", errors.New("is empty: " + v.String())
	case len(value) > maxHostText:
		return "", fmt.Errorf("has more than %d bytes", maxHostText)
	}
	if err := readable(value); err != nil {
		return "", err
	}
	switch {
	case v.Of != nil && !slices.Contains(v.Of, value), v.Pattern != nil && !v.Pattern.MatchString(value):
		return "", fmt.Errorf("does not fit: %s", v)
	case v.From != nil:
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != value || n < *v.From || n > *v.To {
			return "", fmt.Errorf("does not fit: %s", v)
		}
	case v.Under != "":
		return pathUnder(v.Under, value)
	}
	return value, nil
}

// readable returns why a person can't read a text in full.
func readable(text string) error {
	switch {
	case !utf8.ValidString(text):
		return errors.New("is not UTF-8 text")
	case strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || unseen.Is(r) }):
		return errors.New("has a character that can't be printed, such as a line's end")
	}
	return nil
}

// pathUnder returns the real path of an existing file or folder below a folder. No part of it below the folder begins
// with a dot.
func pathUnder(dir, value string) (string, error) {
	if slices.Contains(strings.Split(filepath.ToSlash(value), "/"), "..") {
		return "", errors.New("has .. in it")
	}
	if top, err := realpath.Of(dir); err != nil || top != dir {
		return "", fmt.Errorf("can't be below %s, which is gone, or leads elsewhere now", dir)
	}
	real, err := realpath.Of(below(dir, value))
	if err != nil || !Within(dir, real) {
		return "", fmt.Errorf("is no existing file or folder below %s", dir)
	}
	if err := readable(real); err != nil {
		return "", fmt.Errorf("leads to a path that %w", err)
	}
	rel, err := filepath.Rel(dir, real)
	if err != nil {
		return "", err
	}
	for _, part := range strings.Split(rel, string(filepath.Separator)) {
		if strings.HasPrefix(part, ".") && rel != "." {
			return "", fmt.Errorf("has %s in it, whose name begins with a dot", part)
		}
	}
	return real, nil
}

// folders returns the folders that the command's table names.
func (h *HostCommand) folders() []string {
	list := []string{h.Dir}
	for _, name := range slices.Sorted(maps.Keys(h.Values)) {
		list = append(list, h.Values[name].Under)
	}
	return list
}

// String describes the type for a model.
func (v HostValue) String() string {
	switch {
	case v.Of != nil:
		return "one of " + strings.Join(v.Of, ", ")
	case v.Under != "":
		return "a path below " + v.Under
	case v.Pattern != nil:
		return "text that matches " + strings.TrimSuffix(strings.TrimPrefix(v.Pattern.String(), `\A(?:`), `)\z`)
	}
	return fmt.Sprintf("an integer from %d to %d", *v.From, *v.To)
}

// String shows the command as its table has it.
func (h *HostCommand) String() string {
	text := strings.Join(h.Argv, " ")
	if h.User != "" {
		text += ", as the user " + h.User
	}
	if !h.Ask {
		text += ", without a question"
	}
	return text
}
