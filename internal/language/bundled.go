package language

import (
	"slices"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/container"
	"github.com/unitask/unitask/guest/golang"
	"github.com/unitask/unitask/guest/node"
	"github.com/unitask/unitask/guest/python"
	"github.com/unitask/unitask/guest/shell"
	"github.com/unitask/unitask/guest/system"
	"github.com/unitask/unitask/guest/web"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
)

// ContainerName is the name of the payload of all container images.
const ContainerName = "container"

// containerPayload is what machines of container images have beside the image.
var containerPayload = image.Payload{
	Name: ContainerName, Container: true, Sources: guest.Sources,
	Program: container.Program, ProgramSources: container.ProgramSources, Args: container.Args, Env: container.Env,
}

var containerProgram = machine.Program{Rehearsal: guest.Rehearsal{Text: container.Rehearsal, File: "command",
	Comment: "#"}}

// ContainerPath is the search path of an image that has none.
const ContainerPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Interpreters are the programs that run a language's code: the first one that a container image has, and those of
// #! lines.
var Interpreters = map[string][]string{"js": {"node", "nodejs"}, "python": {"python3", "python"},
	"shell": {"bash", "sh"}}

// All lists all languages; a request that names none gets the first.
var All = append(Interpreted,
	byPython(Language{
		Name: "notebook", others: map[string]string{"jupyter": ".ipynb"}, Extensions: python.NotebookExtensions,
		About: "notebooks (ipynb), which go to /out with their outputs", Runner: python.Notebook, Check: python.CheckNotebook,
	}, "data"),
	byPython(Language{
		Name: "sql", others: map[string]string{"sqlite": ".sql"}, Extensions: python.QueryExtensions,
		About: "SQL of SQLite", Runner: python.Query, Check: python.CheckQuery,
	}, "python"),
)

// Interpreted lists the languages whose programs run by themselves.
var Interpreted = []*Language{
	{
		Name: "js", others: map[string]string{"javascript": ".js", "node": ".js", "typescript": ".ts"},
		Extensions: node.Extensions, LinuxFiles: []string{".tsx", ".jsx"},
		byExtension: true, extensionless: true,
		About: "JavaScript and TypeScript",
		Images: []Image{{
			Payload: image.Payload{
				Name: "node", Nanos: true, Sources: guest.Sources, Parts: node.Parts, Only: system.Only, Program: node.Program,
				Args: node.Args, NanosArgs: node.NanosArgs, Env: node.Env,
				Library: node.Library, LibrarySources: append(node.LibrarySources, guest.Nanos...), Files: node.Files(),
				Folders: system.Folders,
			},
			program: machine.Program{Arg: node.HeapArg, Rehearsal: guest.Rehearsal{Text: node.Rehearsal, File: "code.js",
				Comment: "//"}},
			About: "Node 24 with its own modules: JavaScript, TypeScript and JSX, as tsx runs them. " +
				"No packages of npm but those that a run brings.",
		}},
		CheckArg: node.CheckArg, NeedsProcess: node.NeedsProcess, Process: node.Process, Refused: node.Refused,
		OutOfMemory: node.OutOfMemory, Check: node.Check, Missing: node.MissingModule,
		Packages: &Installer{
			System: policy.Npm, Tool: image.NpmTool, Program: node.Install, Place: node.Installed,
			Compilers: "node-compilers", Debian: append(slices.Clone(compilers), "python3"), // which node-gyp is written in
		},
	},
	{
		Name: "python", others: map[string]string{"python3": ".py"}, Extensions: python.Extensions, Stem: "script",
		About: "Python",
		Images: withPython311([]Image{
			{
				Payload: pythonPayload("python", python.Parts, nil, python.Folders, python.Files(), python.Modules),
				program: machine.Program{Rehearsal: guest.Rehearsal{Text: python.Rehearsal, File: "code.py", Comment: "#"}},
				About: "Debian's CPython {python} with its whole standard library, tzdata, OpenSSL, SQLite and readline. " +
					"No packages of pip.",
			},
			{
				Payload: packed(python.DataPacked, pythonPayload("data", python.DataParts, python.DataLinks, python.DataFolders,
					python.DataFiles(), python.Modules, python.Packages)),
				program: machine.Program{Rehearsal: guest.Rehearsal{Text: python.DataRehearsal, File: "code.py", Comment: "#"},
					Patience: python.DataPatience},
				About: "Python with numpy {python3-numpy}, pandas {python3-pandas}, matplotlib {python3-matplotlib}, " +
					"scipy {python3-scipy}, openpyxl, lxml and Pillow. plt.show(), and figures that are left open, " +
					"go to /out as figure-1.png, figure-2.png, …",
				modules: python.DataModules,
			},
			{
				Payload: packed(web.Packed, pythonPayload(policy.WebImage, web.Parts, nil, web.Folders, web.Files(),
					python.Modules, python.Packages)),
				program: machine.Program{Rehearsal: guest.Rehearsal{Text: web.Rehearsal, File: "code.py", Comment: "#"}},
				About:   "Python with what `unitask web fetch` reads pages with.",
				hidden:  true,
			},
		}),
		CheckArg: python.CheckArg, NeedsProcess: python.NeedsProcess, Process: python.Process, Refused: python.Refused,
		OutOfMemory: python.OutOfMemory, Check: python.Check, Missing: python.MissingModule,
		Packages: &Installer{
			System: policy.Pip, Tool: image.PipTool, Program: python.Install, Place: python.Installed,
			Compilers: "python-compilers", Debian: compilers,
		},
	},
	{
		Name: "shell", others: nil, Extensions: shell.Extensions,
		About: "shell",
		Images: []Image{{
			Payload: image.Payload{
				Name: "shell", Sources: guest.Sources, Parts: shell.Parts, Only: system.Only, Program: shell.Program,
				ProgramSources: shell.ProgramSources, Args: shell.Args, Env: shell.Env,
				Files: shell.Files(), Links: shell.Links, Folders: shell.Folders,
			},
			program: machine.Program{Rehearsal: guest.Rehearsal{Text: shell.Rehearsal, File: "code.sh", Comment: "#"}},
			About: "Debian's Bash {bash} with coreutils, grep, sed, gawk, find, diff, jq, bc, tree, file, curl, git, " +
				"sqlite3, zip, tar, gzip, xz, bzip2, less, patch. No package manager.",
		}},
		CheckArg: shell.CheckArg, NeedsProcess: shell.NeedsProcess, Process: shell.Process, Refused: shell.Refused,
		OutOfMemory: shell.OutOfMemory, Check: shell.Check, Missing: shell.MissingModule,
	},
	{
		Name: "go", others: map[string]string{"golang": ".go"}, Extensions: golang.Extensions, byExtension: true,
		About: "Go",
		Images: []Image{{
			Payload: image.Payload{
				Name: "go", Sources: guest.Sources, Parts: golang.Parts, Program: golang.Program,
				ProgramSources: golang.ProgramSources, Args: golang.Args, Env: golang.Env,
				Files: golang.Files(), Links: golang.Links, Folders: golang.Folders,
			},
			program: machine.Program{Rehearsal: guest.Rehearsal{Text: golang.Rehearsal, File: "code.go", Comment: "//"},
				Patience: golang.Patience},
			About: "Go 1.26 with its whole standard library, compiled: one file, as by go run. " +
				"No modules but those in a vendor folder, no cgo.",
		}},
		CheckArg: golang.CheckArg, NeedsProcess: golang.NeedsProcess, Process: golang.Process, Refused: golang.Refused,
		OutOfMemory: golang.OutOfMemory, MemoryHint: golang.MemoryHint, Check: golang.Check, Missing: golang.MissingModule,
		Compiled: &Compiled{Alone: golang.Alone, At: golang.Built},
	},
}

// withPython311 adds images with the Python of Debian 12.
func withPython311(current []Image) []Image {
	abouts := map[string]string{
		"python": "As python, with Debian 12's CPython {python@bookworm}.",
		"data": "As data, with Debian 12's Python {python@bookworm}, numpy {python3-numpy@bookworm}, " +
			"pandas {python3-pandas@bookworm}, matplotlib {python3-matplotlib@bookworm}, scipy {python3-scipy@bookworm}.",
	}
	list := slices.Clone(current)
	for _, of := range current {
		if about := abouts[of.Payload.Name]; about != "" {
			list = append(list, python311.image(of, about))
		}
	}
	return list
}

// byPython returns a language whose files a program in Python runs. It has Python's images, the one of that name first.
func byPython(l Language, first string) *Language {
	of := *Interpreted[slices.IndexFunc(Interpreted, func(l *Language) bool { return l.Name == "python" })]
	l.byExtension, l.RunnerExtension = true, of.Extensions[0]
	l.Images = append([]Image{*of.Image(first)}, slices.DeleteFunc(slices.Clone(of.Images),
		func(im Image) bool { return im.Payload.Name == first })...)
	l.CheckArg, l.NeedsProcess, l.Process, l.Refused = of.CheckArg, of.NeedsProcess, of.Process, of.Refused
	l.OutOfMemory, l.Missing, l.Packages = of.OutOfMemory, of.Missing, of.Packages
	return &l
}

// pythonPayload returns an image of Python with those parts.
func pythonPayload(name string, parts []string, links map[string]string, folders []string, files map[string]string,
	compiled ...string) image.Payload {
	return image.Payload{
		Name: name, Nanos: true, LinuxFirst: true, Sources: guest.Sources, Parts: parts, Only: python.Only,
		BuildParts: python.BuildParts, Program: python.Program, Args: python.Args, Env: python.Env,
		Library: python.Library, LibrarySources: python.LibrarySources, NanosSources: guest.NanosPlain,
		Include: python.Include, Files: files, Links: links, Folders: folders,
		Compile: &image.Compile{Dirs: compiled, Args: python.CompileArgs(compiled), Env: python.CompileEnv},
	}
}

// packed returns a payload with some files compressed.
func packed(files []string, p image.Payload) image.Payload {
	p.Packed = files
	return p
}

// Payloads returns the payloads of all images.
func Payloads() (list []image.Payload) {
	for _, im := range AllImages() {
		list = append(list, im.Payload)
	}
	return append(list, containerPayload)
}

// Programs returns the programs of all images, by the images' names.
func Programs() map[string]machine.Program {
	all := map[string]machine.Program{ContainerName: containerProgram}
	for _, im := range AllImages() {
		all[im.Payload.Name] = im.program
	}
	return all
}
