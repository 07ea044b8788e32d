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

// Program is where Python is in the guest: Debian's, with which its library is found. In it, and in the folders,
// VERSION stands for Python's (image.At).
const Program = "/usr/bin/pythonVERSION"

// Parts are the vendored parts that Python is made of. The first one holds Program.
var Parts = slices.Concat([]string{"python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
	"python3-minimal", "python3-distutils", "python3-lib2to3",
	"libbz2-1.0", "libssl3", "libsqlite3-0", "libreadline8", "libdb5.3", "media-types", "tzdata"}, system.Libraries,
	system.Commands)

// BuildParts hold Python's headers.
var BuildParts = []string{"libpython3.11-dev"}

// Include is the folder of Python's headers in theirs.
const Include = "pythonVERSION"

// Library is preloaded into Python: it stands before libc's start.
const Library = "/unitask/lib/python.so"

// LibrarySources are compiled into Library; they are in guest.Sources.
var LibrarySources = []string{"python/program/python.c", "python/program/warm.c", "start/start.c"}

// Modules is the folder of Python's own modules.
const Modules = "/usr/lib/pythonVERSION"

// Folders are those with many files.
var Folders = slices.Concat([]string{Modules, "/usr/share/zoneinfo"}, system.Folders)

// compile is `python3 -m compileall` whose processes are forked: since 3.12 it starts them anew, by the program's path,
// with the host's libraries.
const compile = "import compileall, multiprocessing as m, sys; m.set_start_method('fork'); fork = m.get_context('fork'); m.get_context = lambda *_: fork; sys.exit(not compileall.main())"

// CompileArgs have Python write bytecode beside the modules of some folders; ROOT is where the
// guest's root is while it does so. It is then never compared with its source: neither changes.
func CompileArgs(folders []string) []string {
	args := []string{"-S", "-s", "-P", "-B", "-c", compile, "-q", "-f", "-j", "0", "--invalidation-mode", "unchecked-hash",
		"-s", "ROOT"}
	for _, dir := range folders {
		args = append(args, "ROOT"+dir)
	}
	return args
}

// CompileEnv is the environment of that.
var CompileEnv = []string{"PYTHONHOME=ROOT/usr", "PYTHONHASHSEED=0", "LC_ALL=C.UTF-8"}

// Args is Python's command line, its own name included.
var Args = []string{"python3", contract.MainLink}

// Env is the environment that Python is started in; the code sees its own.
var Env = []string{"PATH=" + contract.SearchPath, "HOME=" + contract.HomeDir, "LANG=" + contract.Locale,
	"LD_PRELOAD=" + Library}

// Files returns the texts of an image, by their path in the guest.
func Files() map[string]string { return map[string]string{contract.Trusted: "", Installed + "/": ""} }

// Installed is the folder that Debian's Python searches for what was installed beside its own packages.
const Installed = "/usr/local/lib/pythonVERSION/dist-packages"

// Rehearsal is the throw-away program.
//
//go:embed rehearsal.py
var Rehearsal string

// Check is the program that checks another one's syntax.
//
//go:embed check.py
var Check string

// Install is the program that installs packages.
//
//go:embed packages.py
var Install string

// Programs that run files which are no programs by themselves, and those that check them.
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

// Extensions are those that a main file may have, of each kind of file.
var (
	Extensions         = []string{".py"}
	NotebookExtensions = []string{".ipynb"}
	QueryExtensions    = []string{".sql"}
)

// missing is what Python prints when it ends for want of a module.
var missing = regexp.MustCompile(`(?m)^(?:ModuleNotFoundError|ImportError): No module named '([A-Za-z0-9._]{1,214})'`)

// MissingModule returns the name of the module that a program ended for want of, by the end
// of its standard error; "" if it is not why.
func MissingModule(stderr string) string {
	all := missing.FindAllStringSubmatch(stderr, -1)
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1][1]
}
