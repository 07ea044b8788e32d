// Package language has the table of languages and of the images that they run in: names, and how to start, check,
// rehearse and judge a program. A new language is a row in bundled.go and a package beside guest/node. The catalog,
// runs and sessions read it; it starts nothing.
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

// InContainer returns a language as an image has it; with command it is none, and the arguments are a
// command.
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

// Language is all that differs between languages. A new one is a row in bundled.go (Interpreted or All), a package
// beside guest/node, its image in policy.ImageNames, and for sessions a driver in guest/supervisor.
type Language struct {
	Name   string            // as Request.Language has it
	others map[string]string // names that people may use as well, and the extension that each means
	// LinuxFiles are extensions of main files that only the linux kernel runs, since a process must compile them.
	LinuxFiles []string
	Extensions []string // of main files; without their dots they are names too. The first is code's without a file.
	// Stem is the name of code's file without one, before its extension; "" is code. Imports find the file, so it must
	// be no module's.
	Stem string
	// byExtension says that only a file with one of them is its code, whose kind they say.
	byExtension bool
	// extensionless says that a file without one may be, too, where the language is named.
	extensionless bool
	About         string  // its name and version, for models and people
	Images        []Image // that it runs in; the first one is that of a request that names none

	// CheckArg says what is wrong with one of the language's own arguments.
	CheckArg func(arg string) error
	// NeedsProcess names the first argument or variable that only a fresh process can heed, "" if
	// there is none.
	NeedsProcess func(args []string, env map[string]string) string
	// Process is what a fresh process is started with.
	Process func(args []string, env map[string]string) (allArgs, variables []string)
	// Refused says in one line that a fresh process did not take its arguments.
	Refused func(words string) string
	// OutOfMemory says that the program ended for want of memory, by its signal and the end of its
	// standard error.
	OutOfMemory func(signal int, stderr string) bool
	MemoryHint  string // for one that did, "" is none
	// Check is a program that checks the syntax of the one that its first argument names.
	Check string
	// Runner is a program that runs the one that its first argument names, "" if that is one by itself; an extension says
	// what it is written in.
	Runner, RunnerExtension string
	// Packages says how its packages are installed; nil if it has none.
	Packages *Installer
	// Compiled says how its programs are kept and run again; nil if it compiles none.
	Compiled *Compiled
	// Interpreters are the programs of a container's image that run the code (InContainer).
	Interpreters []string
	// Missing is the name of the module that the program ended for want of, "" if that is not why.
	Missing func(stderr string) string
}

// Compiled is what differs between languages whose programs are compiled.
type Compiled struct {
	Alone func(text string, args []string) bool // nothing but the text goes into the program
	At    func(file string) string              // where a program lies that was compiled from a file; it has a folder of its own, three above it
}

// Image is a bundled image.
type Image struct {
	Payload image.Payload
	program machine.Program
	About   string // what is in it, for models and people, with {PART} for versions (image.Store.Versions)
	// modules are those that it has beside the first image's.
	modules []string
}

// ImageWith returns the name of an image that has a module, "" if none has.
func (l *Language) ImageWith(module string) string {
	top, _, _ := strings.Cut(module, ".")
	for _, im := range l.Images {
		if slices.Contains(im.modules, top) {
			return im.Payload.Name
		}
	}
	return ""
}

// Image returns the language's image of that name, the first one where that is ""; nil if there is
// none.
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

// UnknownImage says that there is no image of a name.
func UnknownImage(name string) error {
	return policy.Bad("image", fmt.Sprintf("%.40q", name),
		"use %s, or a container image's reference with its tag, as alpine:3.20%s", strings.Join(Images(), ", "),
		Nearest(name, Images()))
}

// KernelFor returns the kernel that the language has where k is granted, "" for any.
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

// CheckTexts refuses what would not reach the code as it is: a start is JSON, which has no bytes
// that are not UTF-8. Node has no other strings either.
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

// Takes says why a file can't hold the language's code, by its name. What is called by the
// language's name may be called anything, unless the language goes by the extension.
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

// Names returns the names of those that code may be in: of each its own one first, then its
// others.
func Names() (names []string) {
	for _, l := range All {
		names = append(names, l.AllNames()...)
	}
	return names
}

// AllNames returns the language's own one, its extensions and the others.
func (l *Language) AllNames() []string {
	names := []string{l.Name}
	for _, ext := range l.Extensions {
		if ext[1:] != l.Name {
			names = append(names, ext[1:])
		}
	}
	return append(names, slices.Sorted(maps.Keys(l.others))...)
}

// Extension returns the extension that a language's name means, an error where it is none.
func Extension(name string) (string, error) {
	_, ext, err := Named(name)
	return ext, err
}

// Images returns the names of the bundled images.
func Images() (names []string) {
	for _, im := range AllImages() {
		names = append(names, im.Payload.Name)
	}
	return names
}

// AllImages returns the images of all languages, each once.
func AllImages() (list []*Image) {
	for _, l := range All {
		for i := range l.Images {
			if im := &l.Images[i]; OfImage(im.Payload.Name) == l {
				list = append(list, im)
			}
		}
	}
	return list
}

// OfSystem returns the language whose packages are of pip or npm.
func OfSystem(system string) *Language {
	return All[slices.IndexFunc(All, func(l *Language) bool { return l.Packages != nil && l.Packages.System == system })]
}

// OfImage returns the language of an image, nil if there is none.
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

// Nearest returns a hint at the one of some names that is most like a word, "" if none is.
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

// OfScript returns the name of the language whose interpreter the #! line of a program names, "" for none of ours.
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

// FreshKernel returns the kernel of a run that may want a fresh process or several processors: Nanos is its
// Process and has no other, and here it has one processor.
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
