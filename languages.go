package unitask

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/guest/shell"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/machine"
)

// language is all that differs between languages. A new one is a row in languages and a package
// beside guest/node.
type language struct {
	name       string   // as Request.Language has it
	others     []string // names that people may use as well
	extensions []string // of main files
	file       string   // the code's, where the request names none
	payload    image.Payload
	program    machine.Program

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
	// missing is the name of the module that the program ended for want of, "" if that is not why.
	missing func(stderr string) string
}

// languages are those that there are; the first one is that of a request that names none.
var languages = []*language{
	{
		name: "js", others: []string{"javascript", "node", "ts", "typescript"}, extensions: node.Extensions, file: "code.js",
		payload: image.Payload{
			Name: "node", Nanos: true, Sources: guest.Sources, Parts: node.Parts, Program: node.Program, Args: node.Args, NanosArgs: node.NanosArgs, Env: node.Env,
			Library: node.Library, LibrarySources: node.LibrarySources, Files: node.Files(),
		},
		program:  machine.Program{Arg: node.HeapArg, Rehearsal: guest.Rehearsal{Text: node.Rehearsal, File: "code.js", Comment: "//"}},
		checkArg: node.CheckArg, needsProcess: node.NeedsProcess, process: node.Process, refused: node.Refused,
		outOfMemory: node.OutOfMemory, missing: node.MissingModule,
	},
	{
		name: "python", others: []string{"py", "python3"}, extensions: python.Extensions, file: "code.py",
		payload: image.Payload{
			Name: "python", Sources: guest.Sources, Parts: python.Parts, BuildParts: python.BuildParts, Program: python.Program, Args: python.Args, Env: python.Env,
			Library: python.Library, LibrarySources: python.LibrarySources, Include: python.Include, Files: python.Files(), Folders: python.Folders,
			Compile: &image.Compile{Dir: python.Modules, Args: python.CompileArgs, Env: python.CompileEnv},
		},
		program:  machine.Program{Rehearsal: guest.Rehearsal{Text: python.Rehearsal, File: "code.py", Comment: "#"}},
		checkArg: python.CheckArg, needsProcess: python.NeedsProcess, process: python.Process, refused: python.Refused,
		outOfMemory: python.OutOfMemory, missing: python.MissingModule,
	},
	{
		name: "shell", others: []string{"sh", "bash"}, extensions: shell.Extensions, file: "code.sh",
		payload: image.Payload{
			Name: "shell", Sources: guest.Sources, Parts: shell.Parts, Program: shell.Program, ProgramSources: shell.ProgramSources, Args: shell.Args, Env: shell.Env,
			Files: shell.Files(), Links: shell.Links, Folders: shell.Folders,
		},
		program:  machine.Program{Rehearsal: guest.Rehearsal{Text: shell.Rehearsal, File: "code.sh", Comment: "#"}},
		checkArg: shell.CheckArg, needsProcess: shell.NeedsProcess, process: shell.Process, refused: shell.Refused,
		outOfMemory: shell.OutOfMemory, missing: shell.MissingModule,
	},
}

// languageOf is the language of a request: the one that it names, else that of its file.
func languageOf(name, file string) (*language, error) {
	if name == "" {
		ext := path.Ext(file)
		for _, l := range languages {
			if slices.Contains(l.extensions, ext) {
				return l, nil
			}
		}
		return languages[0], nil
	}
	for _, l := range languages {
		if name == l.name || slices.Contains(l.others, name) {
			return l, nil
		}
	}
	return nil, fmt.Errorf("use %s", strings.Join(Languages(), ", ")+nearest(name))
}

// nearest is a hint at the language whose name is most like a word, "" where none is.
func nearest(word string) string {
	best, most := "", 2 // letters that may differ
	for _, l := range languages {
		for _, name := range append([]string{l.name}, l.others...) {
			if d := distance(strings.ToLower(word), name); d <= most && d < len(name) {
				best, most = l.name, d-1
			}
		}
	}
	if best == "" {
		return ""
	}
	return "; do you mean " + best + "?"
}

// distance is how many letters must be changed, added or taken away to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		above := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := above
			if a[i] != b[j] {
				cost++
			}
			above = row[j+1]
			row[j+1] = min(cost, above+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// Languages are the names of those that code may be in.
func Languages() (names []string) {
	for _, l := range languages {
		names = append(names, l.name)
	}
	return names
}

// Images are the names of the images that come along.
func Images() (names []string) {
	for _, l := range languages {
		names = append(names, l.payload.Name)
	}
	return names
}

// imageLanguage is the language of an image.
func imageLanguage(name string) *language {
	i := slices.IndexFunc(languages, func(l *language) bool { return l.payload.Name == name })
	return languages[max(i, 0)]
}

// payloads are those of all languages.
func payloads() (list []image.Payload) {
	for _, l := range languages {
		list = append(list, l.payload)
	}
	return list
}

// programs are those of all languages, by their images' names.
func programs() map[string]machine.Program {
	all := map[string]machine.Program{}
	for _, l := range languages {
		all[l.payload.Name] = l.program
	}
	return all
}

// mainLink is what every language runs; its target is the code.
const mainLink = contract.MainLink
