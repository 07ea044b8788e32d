// Package language has the table of languages and of the images that they run in. It has names, and says how to start,
// check, rehearse and judge a program. A new language is a row in bundled.go and a package beside guest/node. The
// catalog, runs and sessions read it; it starts nothing.
package language

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/edit"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// InContainer returns a language for a container image. With command there is no language, and the
// arguments are a command.
func InContainer(ref string, l *Language, command bool) *Language {
	of := &Language{
		Name: "container images", Extensions: []string{".txt"},
		Images:       []Image{{Payload: image.Payload{Name: ref, Container: true}}},
		CheckArg:     func(string) error { return errors.New("is for the bundled images: --exec runs any command") },
		NeedsProcess: func([]string, map[string]string) string { return "" },
		Refused:      func(words string) string { return words },
		OutOfMemory:  func(int, string) bool { return false }, Missing: func(string) string { return "" },
	}
	if !command {
		of.Extensions, of.Interpreters = l.Extensions, Interpreters[l.Name]
		of.OutOfMemory = l.OutOfMemory
	}
	return of
}

// Language has everything that differs between languages. A new one needs a row in bundled.go (Interpreted or All), a
// package beside guest/node, and its image in policy.ImageNames. For sessions it needs a driver in guest/supervisor.
type Language struct {
	Name   string            // in Request.Language
	others map[string]string // other names for it, and the extension that each means
	// LinuxFiles are extensions of main files that only the linux kernel runs, since a process must compile them.
	LinuxFiles []string
	Extensions []string // of main files; without a dot each is also a language name. Code without a file gets the first.
	// Stem is the name, before the extension, of the file for code without one; "" means code. Imports find the file, so
	// no module may have that name.
	Stem string
	// byExtension means that its code is only in files with one of these extensions, which determine its kind.
	byExtension bool
	// extensionless means that a file without an extension may have its code, if the request names the language.
	extensionless bool
	About         string  // its name and version, for models and people
	Images        []Image // that it runs in; a request that names none gets the first

	// CheckArg returns an error if one of the language's own arguments is wrong.
	CheckArg func(arg string) error
	// NeedsProcess returns the first argument or variable that needs a fresh process, or "".
	NeedsProcess func(args []string, env map[string]string) string
	// Process returns the arguments and variables of a fresh process.
	Process func(args []string, env map[string]string) (allArgs, variables []string)
	// Refused returns, in one line, why a fresh process refused its arguments.
	Refused func(words string) string
	// OutOfMemory reports whether the program ran out of memory, by its signal and the end of its
	// standard error.
	OutOfMemory func(signal int, stderr string) bool
	MemoryHint  string // for such a program; "" means none
	// Check is a program that checks the syntax of the program in its first argument.
	Check string
	// Runner is a program that runs the file in its first argument, or "" if the file runs by itself. RunnerExtension
	// tells the runner's language.
	Runner, RunnerExtension string
	// Packages tells how its packages are installed; nil if it has none.
	Packages *Installer
	// Compiled tells how its compiled programs are kept and run again; nil if it compiles none.
	Compiled *Compiled
	// Interpreters are the programs in a container image that run the code (InContainer).
	Interpreters []string
	// Missing returns the name of a missing module that ended the program, or "".
	Missing func(stderr string) string
}

// Compiled has what differs between compiled languages.
type Compiled struct {
	Alone func(text string, args []string) bool // the program depends on the text alone
	At    func(file string) string              // a file's compiled program; its own folder is three levels above
}

// Image is a bundled image.
type Image struct {
	Payload image.Payload
	program machine.Program
	About   string // its contents, for models and people, with {PART} for versions (image.Store.Versions)
	// modules are those that the first image lacks.
	modules []string
	hidden  bool // nobody names it: unitask's own programs run in it
}

// Has reports whether the image has a module that the language's first image lacks.
func (im *Image) Has(module string) bool {
	top, _, _ := strings.Cut(module, ".")
	return slices.Contains(im.modules, top)
}

// ImageWith returns the name of an image that has a module, "" if none has. It prefers the version of the language that
// a given image has.
func (l *Language) ImageWith(module string, like *Image) (name string) {
	base := ""
	if like != nil {
		base = like.Payload.Name
		if own := like.Payload.Custom; own != nil {
			base = own.Base
		}
	}
	for _, im := range l.Images {
		if of := im.Payload.Name; im.Has(module) && (name == "" || l.FirstLike(of) == l.FirstLike(base)) {
			name = of
		}
	}
	return name
}

// Image returns the language's image of that name, the first one for "", or nil.
func (l *Language) Image(name string) *Image {
	for i := range l.Images {
		if im := &l.Images[i]; name == "" || im.Payload.Name == name {
			return im
		}
	}
	return nil
}

// Named returns the language of a name, in any case, and the extension that the name means.
func Named(name string) (*Language, string, error) {
	name = strings.ToLower(name)
	for _, l := range All {
		switch ext, other := l.others[name]; {
		case name == l.Name:
			return l, l.Extensions[0], nil
		case other:
			return l, ext, nil
		case name != "" && slices.Contains(l.Extensions, "."+name):
			return l, "." + name, nil
		}
	}
	return nil, "", errors.New("use " + strings.Join(Names(), ", ") + Nearest(name, Names()))
}

// UnknownImage returns the error that there is no image of a name.
func UnknownImage(name string) error {
	if have := versions(Unversioned(name)); len(have) > 0 && strings.Contains(name, "@") {
		return policy.Bad("image", fmt.Sprintf("%.40q", name), "there is no such version: use %s",
			strings.Join(have, " or "))
	}
	return policy.Bad("image", fmt.Sprintf("%.40q", name),
		"use %s, or a container image's reference with its tag, as alpine:3.20%s", strings.Join(Images(), ", "),
		Nearest(name, Images()))
}

// KernelFor returns the language's kernel if k is granted; "" means any.
func (l *Language) KernelFor(k image.Kernel) (image.Kernel, error) {
	switch {
	case l.Images[0].Payload.Nanos && (k != "" || !l.Images[0].Payload.LinuxFirst):
		return k, nil
	case l.Images[0].Payload.Container && k != "" && k != image.Linux:
		return k,
			policy.Bad("kernel", string(k),
				"does not run container images, whose programs are Linux's and start others: use linux")
	case k != "" && k != image.Linux:
		return k, policy.Bad("kernel", string(k), "does not run %s: use linux", l.Name)
	}
	return image.Linux, nil
}

// CheckTexts refuses texts that would not reach the code unchanged: a start is JSON, whose strings
// are UTF-8. Node has no other strings, either.
func (l *Language) CheckTexts(req run.Request) error {
	if l == All[0] {
		return nil
	}
	bad := func(field, name string) error {
		return policy.Bad(field, fmt.Sprintf("%.80q", name),
			"is not UTF-8 text, and would not reach the code as it is: encode it, or give it on standard input")
	}
	for _, a := range req.Args {
		if !utf8.ValidString(a) {
			return bad("args", a)
		}
	}
	for field, vars := range map[string]map[string]string{"env": req.Env, "secrets": req.Secrets} {
		for name, value := range vars {
			if !utf8.ValidString(name) || !utf8.ValidString(value) {
				return bad(field, name)
			}
		}
	}
	return nil
}

// Takes returns an error if a file's name can't be that of the language's code. If the request names
// the language, any name will do, unless the extension determines the kind of code.
func (l *Language) Takes(file string, asked bool) error {
	if slices.Contains(l.Extensions, path.Ext(file)) ||
		asked && (!l.byExtension || l.extensionless && path.Ext(file) == "") {
		return nil
	}
	if asked || l != All[0] {
		return errors.New("must end in " + strings.Join(l.Extensions, ", "))
	}
	var all []string
	for _, l := range All {
		all = append(all, l.Extensions...)
	}
	return errors.New("must end in " + strings.Join(all, ", ") + ", or its language must be named")
}

// Names returns the names of all languages: for each its own one first, then its other names.
func Names() (names []string) {
	for _, l := range All {
		names = append(names, l.AllNames()...)
	}
	return names
}

// AllNames returns the language's own name, its extensions and its other names.
func (l *Language) AllNames() []string {
	names := []string{l.Name}
	for _, ext := range l.Extensions {
		if ext[1:] != l.Name {
			names = append(names, ext[1:])
		}
	}
	return append(names, slices.Sorted(maps.Keys(l.others))...)
}

// Extension returns the extension that a language's name means, or an error for another name.
func Extension(name string) (string, error) {
	_, ext, err := Named(name)
	return ext, err
}

// Images returns the names of the bundled images that requests name.
func Images() (names []string) {
	for _, im := range AllImages() {
		if !im.hidden {
			names = append(names, im.Payload.Name)
		}
	}
	return names
}

// AllImages returns the images of all languages, each once, those with older versions and hidden ones last.
func AllImages() (list []*Image) {
	for _, l := range All {
		for i := range l.Images {
			if im := &l.Images[i]; OfImage(im.Payload.Name) == l {
				list = append(list, im)
			}
		}
	}
	rank := func(im *Image) int {
		if im.hidden {
			return 2
		}
		return strings.Count(im.Payload.Name, "@")
	}
	slices.SortStableFunc(list, func(a, b *Image) int { return rank(a) - rank(b) })
	return list
}

// OfSystem returns the language of the packages of pip or npm.
func OfSystem(system string) *Language {
	return All[slices.IndexFunc(All, func(l *Language) bool { return l.Packages != nil && l.Packages.System == system })]
}

// OfImage returns the language of an image, or nil.
func OfImage(name string) *Language {
	for _, l := range All {
		if name != "" && l.Image(name) != nil {
			return l
		}
	}
	return nil
}

// HasSteps reports whether a session can have steps of the language: it has an interpreter that stays.
func (l *Language) HasSteps() bool {
	return slices.ContainsFunc(supervisor.Languages, func(of supervisor.Language) bool { return of.Name == l.Name })
}

// WithSteps returns the names of the languages that sessions have.
func WithSteps() (names []string) {
	for _, l := range All {
		if l.HasSteps() {
			names = append(names, l.Name)
		}
	}
	return names
}

// SessionImages returns the bundled images whose language has steps in sessions.
func SessionImages() (names []string) {
	for _, name := range Images() {
		if OfImage(name).HasSteps() {
			names = append(names, name)
		}
	}
	return names
}

// Nearest returns a hint that names the most similar of some names, or "".
func Nearest(word string, names []string) string {
	best, most := "", 2 // letters that may differ
	for _, name := range names {
		if d := edit.Distance(strings.ToLower(word), name); d <= most && d < len(name)-1 && name != word {
			best, most = name, d-1
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// maxInterpreterLine bounds a #! line; Linux takes 256 bytes.
const maxInterpreterLine = 4 << 10

// OfScript returns the name of the language whose interpreter a program's #! line names, or "".
func OfScript(code string) string {
	line, _, _ := strings.Cut(code[:min(len(code), maxInterpreterLine+1)], "\n")
	if len(line) > maxInterpreterLine {
		return ""
	}
	line, is := strings.CutPrefix(strings.TrimSuffix(line, "\r"), "#!")
	words := strings.Fields(line)
	if is && len(words) > 0 && path.Base(words[0]) == "env" {
		words = slices.DeleteFunc(words[1:], func(w string) bool {
			return strings.HasPrefix(w, "-") ||
				strings.Contains(w, "=")
		})
	}
	if !is || len(words) == 0 {
		return ""
	}
	name := path.Base(words[0])
	for language, programs := range Interpreters {
		for _, program := range programs {
			if version, ok := strings.CutPrefix(name, program); ok &&
				(version == "" || version[0] == '.' && strings.Trim(version, ".0123456789") == "") {
				return language
			}
		}
	}
	return ""
}

// FreshKernel returns the kernel of a run that may need a fresh process or several processors: Nanos has one process,
// and here one processor.
func FreshKernel(k image.Kernel, fresh bool, cpus float64) (image.Kernel, error) {
	other := k != "" && k != image.Linux
	switch {
	case fresh && other:
		return k, policy.Bad("freshProcess", "with kernel "+string(k), "needs the linux kernel, which can start a process")
	case cpus > 1 && other:
		return k, policy.Bad("cpus", fmt.Sprintf("%g with kernel %s", cpus, k),
			"more than one processor needs the linux kernel")
	case fresh || cpus > 1:
		return image.Linux, nil
	}
	return k, nil
}
