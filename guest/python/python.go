// Package python is the guest's part for Python: its start, and details of a run that only a Python programmer would
// know. It knows neither images nor machines; unitask passes its values to them.
package python

import (
	_ "embed"
	"regexp"
	"slices"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/system"
)

// Program is Python's path in the guest: Debian's, which finds its library from there. In this path and in the
// folders, VERSION is replaced with Python's version (image.At).
const Program = "/usr/bin/pythonVERSION"

// Parts are the vendored parts of Python. The first one contains Program.
var Parts = slices.Concat([]string{"python", "libpython-minimal", "libpython-stdlib", "python3-minimal",
	"libbz2-1.0", "libsqlite3-0", "libreadline8", "libdb5.3", "media-types", "tzdata"}, system.Libraries,
	system.Commands)

// BuildParts contain Python's headers.
var BuildParts = []string{"libpython-dev"}

// Include is the folder of Python's headers in BuildParts.
const Include = "pythonVERSION"

// Library is preloaded into Python: it runs before libc's start.
const Library = "/unitask/lib/python.so"

// LibrarySources are compiled into Library; they are in guest.Sources.
var LibrarySources = []string{"python/program/python.c", "python/program/warm.c", "start/start.c"}

// Modules is the folder of Python's own modules.
const Modules = "/usr/lib/pythonVERSION"

// Folders are the folders with many files.
var Folders = slices.Concat([]string{Modules, "/usr/share/zoneinfo"}, system.Folders)

// compile is `python3 -m compileall` with forked processes: since 3.12 it starts new processes by the program's
// path, with the host's libraries.
const compile = "import compileall, multiprocessing as m, sys; m.set_start_method('fork'); " +
	"fork = m.get_context('fork'); m.get_context = lambda *_: fork; sys.exit(not compileall.main())"

// CompileArgs are the arguments with which Python writes bytecode beside the modules of some folders; ROOT stands
// for the guest's root meanwhile. The bytecode is never compared with its source: neither changes.
func CompileArgs(folders []string) []string {
	args := []string{"-S", "-s", "-P", "-B", "-c", compile, "-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash",
		"-s", "ROOT"}
	for _, dir := range folders {
		args = append(args, "ROOT"+dir)
	}
	return args
}

// CompileEnv is the environment for CompileArgs.
var CompileEnv = []string{"PYTHONHOME=ROOT/usr", "PYTHONHASHSEED=0", "LC_ALL=C.UTF-8"}

// Args is Python's command line, its own name included.
var Args = []string{"python3", contract.MainLink}

// Env is the environment of Python's start; the code sees its own.
var Env = []string{"PATH=" + contract.SearchPath, "HOME=" + contract.HomeDir, "LANG=" + contract.Locale,
	"LD_PRELOAD=" + Library}

// Files returns the texts of an image, by their path in the guest.
func Files() map[string]string { return map[string]string{contract.Trusted: "", Installed + "/": ""} }

// Installed is the folder where Debian's Python finds packages that were installed beside its own.
const Installed = "/usr/local/lib/pythonVERSION/dist-packages"

// Rehearsal is the throw-away program.
//
//go:embed rehearsal.py
var Rehearsal string

// Check is the program that checks another program's syntax.
//
//go:embed check.py
var Check string

// Install is the program that installs packages.
//
//go:embed packages.py
var Install string

// Programs that run files which are not programs themselves, and those that check such files.
var (
	//go:embed notebook.py
	Notebook string
	//go:embed checknotebook.py
	CheckNotebook string
	//go:embed query.py
	Query string
	//go:embed checkquery.py
	CheckQuery string
)

// Extensions of a main file, for each kind of file.
var (
	Extensions         = []string{".py"}
	NotebookExtensions = []string{".ipynb"}
	QueryExtensions    = []string{".sql"}
)

// missing matches Python's message when a module is missing.
var missing = regexp.MustCompile(`(?m)^(?:ModuleNotFoundError|ImportError): No module named '([A-Za-z0-9._]{1,214})'`)

// MissingModule returns the name of the module whose absence ended a program, from the end of standard error; ""
// if that is not the reason.
func MissingModule(stderr string) string {
	all := missing.FindAllStringSubmatch(stderr, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}
