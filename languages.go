package unitask

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/golang"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/guest/session"
	"github.com/unitask/unitask/guest/shell"
	"github.com/unitask/unitask/guest/system"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/edit"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// language is all that differs between languages. A new one is a row in languages and a package
// beside guest/node.
type language struct {
	name       string            // as Request.Language has it
	others     map[string]string // names that people may use as well, and the extension that each means
	extensions []string          // of main files; without their dots they are names too. The first is code's without a file.
	// stem is the name of code's file without one, before its extension; "" is code. Imports find the file, so it must be no
	// module's.
	stem string
	// byExtension says that only a file with one of them is its code, whose kind they say.
	byExtension bool
	// extensionless says that a file without one may be, too, where the language is named.
	extensionless bool
	about         string     // its name and version, for models and people
	images        []imageRow // that it runs in; the first one is that of a request that names none

	// checkArg says what is wrong with one of the language's own arguments.
	checkArg func(arg string) error
	// needsProcess names the first argument or variable that only a fresh process can heed, "" if
	// there is none.
	needsProcess func(args []string, env map[string]string) string
	// process is what a fresh process is started with.
	process func(args []string, env map[string]string) (allArgs, variables []string)
	// refused says in one line that a fresh process did not take its arguments.
	refused func(words string) string
	// outOfMemory says that the program ended for want of memory, by its signal and the end of its
	// standard error.
	outOfMemory func(signal int, stderr string) bool
	memoryHint  string // for one that did, "" is none
	// check is a program that checks the syntax of the one that its first argument names.
	check string
	// runner is a program that runs the one that its first argument names, "" where that is one by itself; an extension
	// says what it is written in.
	runner, runnerExtension string
	// packages says how its packages are installed; nil where it has none.
	packages *installer
	// compiled says how its programs are kept and run again; nil where it compiles none.
	compiled *compiledLanguage
	// interpreters are the programs of a container's image that run the code (inContainer).
	interpreters []string
	// missing is the name of the module that the program ended for want of, "" if that is not why.
	missing func(stderr string) string
}

// compiledLanguage is what differs between languages whose programs are compiled.
type compiledLanguage struct {
	alone func(text string, args []string) bool // nothing but the text goes into the program
	at    func(file string) string              // where a program lies that was compiled from a file; it has a folder of its own, three above it
}

// imageRow is an image that comes along.
type imageRow struct {
	payload image.Payload
	program machine.Program
	about   string // what is in it, for models and people, with {PART} for versions (image.Store.Versions)
	// brings begins the sentence about how modules get into the machine.
	brings string
	// modules are those that it has beside the first image's.
	modules []string
}

// languages are those that there are; the first one is that of a request that names none.
var languages = append(interpreted,
	byPython(language{
		name: "notebook", others: map[string]string{"jupyter": ".ipynb"}, extensions: python.NotebookExtensions,
		about: "notebooks (ipynb), which go to /out with their outputs", runner: python.Notebook, check: python.CheckNotebook,
	}, "data"),
	byPython(language{
		name: "sql", others: map[string]string{"sqlite": ".sql"}, extensions: python.QueryExtensions,
		about: "SQL of SQLite", runner: python.Query, check: python.CheckQuery,
	}, "python"),
)

// interpreted are the languages that run by themselves.
var interpreted = []*language{
	{
		name: "js", others: map[string]string{"javascript": ".js", "node": ".js", "typescript": ".ts"}, extensions: node.Extensions, byExtension: true, extensionless: true,
		about: "JavaScript and TypeScript",
		images: []imageRow{{
			payload: image.Payload{
				Name: "node", Nanos: true, Sources: guest.Sources, Parts: node.Parts, Only: system.Only, Program: node.Program, Args: node.Args, NanosArgs: node.NanosArgs, Env: node.Env,
				Library: node.Library, LibrarySources: append(node.LibrarySources, guest.Nanos...), Files: node.Files(), Folders: system.Folders,
			},
			program: machine.Program{Arg: node.HeapArg, Rehearsal: guest.Rehearsal{Text: node.Rehearsal, File: "code.js", Comment: "//"}},
			about:   "Node 24 with its own modules: JavaScript, TypeScript and JSX, as tsx runs them. No packages of npm but those that a run brings.",
			brings:  "what lies beside the code, and node_modules, come with",
		}},
		checkArg: node.CheckArg, needsProcess: node.NeedsProcess, process: node.Process, refused: node.Refused,
		outOfMemory: node.OutOfMemory, check: node.Check, missing: node.MissingModule,
		packages: &installer{system: policy.Npm, tool: image.NpmTool, program: node.Install, place: node.Installed},
	},
	{
		name: "python", others: map[string]string{"python3": ".py"}, extensions: python.Extensions, stem: "script",
		about: "Python",
		images: []imageRow{
			{
				payload: pythonPayload("python", python.Parts, nil, python.Folders, python.Files(), python.Modules),
				program: machine.Program{Rehearsal: guest.Rehearsal{Text: python.Rehearsal, File: "code.py", Comment: "#"}},
				about:   "Debian's CPython {python3.11-minimal} with its whole standard library, tzdata, OpenSSL, SQLite and readline. No packages of pip.",
				brings:  "there is the standard library only; what lies beside the code comes with",
			},
			{
				payload: packed(python.DataPacked, pythonPayload("data", python.DataParts, python.DataLinks, python.DataFolders, python.DataFiles(), python.Modules, python.Packages)),
				program: machine.Program{Rehearsal: guest.Rehearsal{Text: python.DataRehearsal, File: "code.py", Comment: "#"}, Patience: python.DataPatience},
				about: "Python with numpy {python3-numpy}, pandas {python3-pandas}, matplotlib {python3-matplotlib}, scipy {python3-scipy}, openpyxl, lxml and Pillow. plt.show(), and figures that are left open, " +
					"go to /out as figure-1.png, figure-2.png, …",
				modules: python.DataModules,
				brings:  "there are the standard library, numpy, pandas, matplotlib, scipy, openpyxl, lxml and Pillow; what lies beside the code comes with",
			},
		},
		checkArg: python.CheckArg, needsProcess: python.NeedsProcess, process: python.Process, refused: python.Refused,
		outOfMemory: python.OutOfMemory, check: python.Check, missing: python.MissingModule,
		packages: &installer{system: policy.Pip, tool: image.PipTool, program: python.Install, place: python.Installed},
	},
	{
		name: "shell", others: nil, extensions: shell.Extensions,
		about: "shell",
		images: []imageRow{{
			payload: image.Payload{
				Name: "shell", Sources: guest.Sources, Parts: shell.Parts, Only: system.Only, Program: shell.Program, ProgramSources: shell.ProgramSources, Args: shell.Args, Env: shell.Env,
				Files: shell.Files(), Links: shell.Links, Folders: shell.Folders,
			},
			program: machine.Program{Rehearsal: guest.Rehearsal{Text: shell.Rehearsal, File: "code.sh", Comment: "#"}},
			about:   "Debian's Bash {bash} with coreutils, grep, sed, gawk, find, diff, jq, bc, tree, file, curl, git, sqlite3, zip, tar, gzip, xz, bzip2, less, patch. No package manager.",
		}},
		checkArg: shell.CheckArg, needsProcess: shell.NeedsProcess, process: shell.Process, refused: shell.Refused,
		outOfMemory: shell.OutOfMemory, check: shell.Check, missing: shell.MissingModule,
	},
	{
		name: "go", others: map[string]string{"golang": ".go"}, extensions: golang.Extensions, byExtension: true,
		about: "Go",
		images: []imageRow{{
			payload: image.Payload{
				Name: "go", Sources: guest.Sources, Parts: golang.Parts, Program: golang.Program, ProgramSources: golang.ProgramSources, Args: golang.Args, Env: golang.Env,
				Files: golang.Files(), Links: golang.Links, Folders: golang.Folders,
			},
			program: machine.Program{Rehearsal: guest.Rehearsal{Text: golang.Rehearsal, File: "code.go", Comment: "//"}, Patience: golang.Patience},
			about:   "Go 1.26 with its whole standard library, compiled: one file, as by go run. No modules but those in a vendor folder, no cgo.",
		}},
		checkArg: golang.CheckArg, needsProcess: golang.NeedsProcess, process: golang.Process, refused: golang.Refused,
		outOfMemory: golang.OutOfMemory, memoryHint: golang.MemoryHint, check: golang.Check, missing: golang.MissingModule,
		compiled: &compiledLanguage{alone: golang.Alone, at: golang.Built},
	},
}

// byPython is a language whose files a program in Python runs, with the images of Python, the one of that name first.
func byPython(l language, first string) *language {
	of := *interpreted[slices.IndexFunc(interpreted, func(l *language) bool { return l.name == "python" })]
	l.byExtension, l.runnerExtension = true, of.extensions[0]
	l.images = append([]imageRow{*of.image(first)}, slices.DeleteFunc(slices.Clone(of.images), func(im imageRow) bool { return im.payload.Name == first })...)
	l.checkArg, l.needsProcess, l.process, l.refused = of.checkArg, of.needsProcess, of.process, of.refused
	l.outOfMemory, l.missing, l.packages = of.outOfMemory, of.missing, of.packages
	return &l
}

// pythonPayload is an image of Python with those parts.
func pythonPayload(name string, parts []string, links map[string]string, folders []string, files map[string]string, compiled ...string) image.Payload {
	return image.Payload{
		Name: name, Nanos: true, LinuxFirst: true, Sources: guest.Sources, Parts: parts, Only: python.Only, BuildParts: python.BuildParts, Program: python.Program, Args: python.Args, Env: python.Env,
		Library: python.Library, LibrarySources: python.LibrarySources, NanosSources: guest.NanosPlain, Include: python.Include, Files: files, Links: links, Folders: folders,
		Compile: &image.Compile{Dirs: compiled, Args: python.CompileArgs(compiled), Env: python.CompileEnv},
	}
}

// packed is a payload of whose files some are compressed.
func packed(files []string, p image.Payload) image.Payload {
	p.Packed = files
	return p
}

// imageWith is the name of an image that has a module, "" where none has.
func (l *language) imageWith(module string) string {
	top, _, _ := strings.Cut(module, ".")
	for _, im := range l.images {
		if slices.Contains(im.modules, top) {
			return im.payload.Name
		}
	}
	return ""
}

// image is the language's image of that name, the first one where that is ""; nil if there is
// none.
func (l *language) image(name string) *imageRow {
	for i := range l.images {
		if im := &l.images[i]; name == "" || im.payload.Name == name {
			return im
		}
	}
	return nil
}

// named returns the language of a name, and the extension that the name means.
func named(name string) (*language, string, error) {
	for _, l := range languages {
		switch ext, other := l.others[name]; {
		case name == l.name:
			return l, l.extensions[0], nil
		case other:
			return l, ext, nil
		case name != "" && slices.Contains(l.extensions, "."+name):
			return l, "." + name, nil
		}
	}
	return nil, "", errors.New("use " + strings.Join(Languages(), ", ") + nearest(name, Languages()))
}

// language is that of a request: the one that it, or its image, names, else that of its
// file; and the image that it runs in.
func (req imageRequest) language() (l *language, im *imageRow, ext string, err error) {
	l, ext = languages[0], languages[0].extensions[0]
	if ref, err := req.container(); err != nil {
		return nil, nil, "", err
	} else if ref != "" {
		return req.containerLanguage(ref)
	}
	if req.own != nil {
		plain := req
		plain.own, plain.Image = nil, req.own.From
		if l, _, ext, err = plain.language(); err != nil {
			return nil, nil, "", err
		}
		return l, &req.own.row, ext, nil
	}
	switch {
	case req.Exec && (req.Image == "" || imageLanguage(req.Image) != nil):
		return nil, nil, "", policy.Bad("exec", cmp.Or(req.Image, "without an image"), "runs a command of a container image: name one, as alpine:3.20, by image")
	case req.Language != "":
		if l, ext, err = named(req.Language); err != nil {
			return nil, nil, "", policy.Bad("language", fmt.Sprintf("%.40q", req.Language), "%v", err)
		}
	case req.Image != "":
		if l = imageLanguage(req.Image); l == nil {
			return nil, nil, "", unknownImage(req.Image)
		}
		for _, of := range languages { // of those that the image has
			if of.image(req.Image) != nil && slices.Contains(of.extensions, path.Ext(req.Path)) {
				l = of
			}
		}
		ext = l.extensions[0]
	default:
		for _, of := range languages {
			if slices.Contains(of.extensions, path.Ext(req.Path)) {
				l, ext = of, of.extensions[0]
			}
		}
	}
	switch im = l.image(req.Image); {
	case im != nil:
		return l, im, ext, nil
	case imageLanguage(req.Image) == nil:
		return nil, nil, "", unknownImage(req.Image)
	}
	var in []string
	for _, im := range l.images {
		in = append(in, im.payload.Name)
	}
	return nil, nil, "", policy.Bad("image", req.Image, "%s", "has no "+l.name+", which is in "+strings.Join(in, ", "))
}

// unknownImage says that there is no image of a name.
func unknownImage(name string) error {
	return policy.Bad("image", fmt.Sprintf("%.40q", name), "%s", "use "+strings.Join(Images(), ", ")+", or a container image's reference with its tag, as alpine:3.20"+nearest(name, Images()))
}

// kernel is the kernel that the language has where k is granted, "" for any.
func (l *language) kernel(k image.Kernel) (image.Kernel, error) {
	switch {
	case l.images[0].payload.Nanos && (k != "" || !l.images[0].payload.LinuxFirst):
		return k, nil
	case l.images[0].payload.Container && k != "" && k != image.Linux:
		return k, policy.Bad("kernel", string(k), "does not run container images, whose programs are Linux's and start others: use linux")
	case k != "" && k != image.Linux:
		return k, policy.Bad("kernel", string(k), "%s", "does not run "+l.name+": use linux")
	}
	return image.Linux, nil
}

// checkTexts refuses what would not reach the code as it is: a start is JSON, which has no bytes
// that are not UTF-8. Node has no other strings either.
func (l *language) checkTexts(req Request) error {
	if l == languages[0] {
		return nil
	}
	bad := func(field, name string) error {
		return policy.Bad(field, fmt.Sprintf("%.80q", name), "is not UTF-8 text, and would not reach the code as it is: encode it, or give it on standard input")
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

// takes says why a file can't hold the language's code, by its name. What is called by the
// language's name may be called anything, unless the language goes by the extension.
func (l *language) takes(file string, asked bool) error {
	if slices.Contains(l.extensions, path.Ext(file)) || asked && (!l.byExtension || l.extensionless && path.Ext(file) == "") {
		return nil
	}
	if asked || l != languages[0] {
		return errors.New("must end in " + strings.Join(l.extensions, ", "))
	}
	var all []string
	for _, l := range languages {
		all = append(all, l.extensions...)
	}
	return errors.New("must end in " + strings.Join(all, ", ") + ", or its language must be named")
}

// Languages are the names of those that code may be in: of each its own one first, then its
// others.
func Languages() (names []string) {
	for _, l := range languages {
		names = append(names, l.names()...)
	}
	return names
}

// names are the language's own one, its extensions and the others.
func (l *language) names() []string {
	names := []string{l.name}
	for _, ext := range l.extensions {
		if ext[1:] != l.name {
			names = append(names, ext[1:])
		}
	}
	return append(names, slices.Sorted(maps.Keys(l.others))...)
}

// LanguageExtension is the extension that a language's name means, an error where it is none.
func LanguageExtension(name string) (string, error) {
	_, ext, err := named(name)
	return ext, err
}

// Images are the names of the images that come along.
func Images() (names []string) {
	for _, im := range allImages() {
		names = append(names, im.payload.Name)
	}
	return names
}

// allImages are the images of all languages, each once.
func allImages() (list []*imageRow) {
	for _, l := range languages {
		for i := range l.images {
			if im := &l.images[i]; imageLanguage(im.payload.Name) == l {
				list = append(list, im)
			}
		}
	}
	return list
}

// systemLanguage is the language whose packages are of pip or npm.
func systemLanguage(system string) *language {
	return languages[slices.IndexFunc(languages, func(l *language) bool { return l.packages != nil && l.packages.system == system })]
}

// imageLanguage is the language of an image, nil where there is none.
func imageLanguage(name string) *language {
	for _, l := range languages {
		if name != "" && l.image(name) != nil {
			return l
		}
	}
	return nil
}

// steps says that a session can have steps of the language: it has an interpreter that stays.
func (l *language) steps() bool {
	return slices.ContainsFunc(session.Languages, func(of session.Language) bool { return of.Name == l.name })
}

// SessionImages are the images that come along whose language has steps in sessions.
func SessionImages() (names []string) {
	for _, name := range Images() {
		if imageLanguage(name).steps() {
			names = append(names, name)
		}
	}
	return names
}

// nearest is a hint at the one of some names that is most like a word, "" where none is.
func nearest(word string, names []string) string {
	best, most := "", 2 // letters that may differ
	for _, name := range names {
		if d := edit.Distance(strings.ToLower(word), name); d <= most && d < len(name)-1 {
			best, most = name, d-1
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// payloads are those of all images.
func payloads() (list []image.Payload) {
	for _, im := range allImages() {
		list = append(list, im.payload)
	}
	return append(list, containerPayload)
}

// programs are those of all images, by their names.
func programs() map[string]machine.Program {
	all := map[string]machine.Program{containerName: containerProgram}
	for _, im := range allImages() {
		all[im.payload.Name] = im.program
	}
	return all
}

// mainLink is what every language runs; its target is the code.
const mainLink = contract.MainLink

// maxInterpreterLine bounds a #! line; Linux takes 256 bytes.
const maxInterpreterLine = 4 << 10

// LanguageOfScript is the name of the language whose interpreter the #! line of a program names, "" for none of ours.
func LanguageOfScript(code string) string {
	line, _, _ := strings.Cut(code[:min(len(code), maxInterpreterLine+1)], "\n")
	if len(line) > maxInterpreterLine {
		return ""
	}
	line, is := strings.CutPrefix(strings.TrimSuffix(line, "\r"), "#!")
	words := strings.Fields(line)
	if is && len(words) > 0 && path.Base(words[0]) == "env" {
		words = slices.DeleteFunc(words[1:], func(w string) bool { return strings.HasPrefix(w, "-") || strings.Contains(w, "=") })
	}
	if !is || len(words) == 0 {
		return ""
	}
	name := path.Base(words[0])
	for language, programs := range interpreters {
		for _, program := range programs {
			if version, ok := strings.CutPrefix(name, program); ok && (version == "" || version[0] == '.' && strings.Trim(version, ".0123456789") == "") {
				return language
			}
		}
	}
	return ""
}
