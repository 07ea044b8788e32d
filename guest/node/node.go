// Package node is the guest's part for Node. It has Node's start, the preloaded files (preload.js, typescript.js,
// addon/), the program of rehearsals, and details that only a Node programmer would know. It knows neither images nor
// machines; unitask passes its values to them. Each other language has its own package beside it.
package node

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/system"
)

// Paths of Node in the guest, and of what starts it.
const (
	Program = "/usr/bin/node"
	// Library is built from addon/ with ../nanos and the agent; the linker preloads it, too.
	Library = contract.Library
	// Trusted contains certificates that TLS clients trust beside Node's own. It is empty until a run has some:
	// Node reads it when it first needs them.
	Trusted = contract.Trusted

	// MainLink is the link that Node runs; its target is the code.
	MainLink = contract.MainLink
)

// Parts are the vendored parts of Node. The first one contains Program, and the headers to compile Library. The last
// one converts TypeScript and JSX to JavaScript. The others are needed to run Node.
var Parts = slices.Concat([]string{"node"}, system.Libraries, system.Commands, []string{"esbuild"})

// Args is Node's command line, its own name included. The baseline compiler is off, and feedback is collected at
// once: both save translation under TCG.
var Args = []string{"node", "--no-sparkplug", "--no-lazy-feedback-allocation", "--require", contract.Preload, MainLink}

// NanosArgs are extra arguments on Nanos. There, a program can read what it has mapped without any permission,
// which V8 relies on to detect WebAssembly's reads beyond its memory.
var NanosArgs = []string{"--disable-wasm-trap-handler"}

// Env is the environment of Node's start; the code sees its own.
var Env = []string{"PATH=" + contract.SearchPath, "HOME=" + contract.HomeDir, "LANG=" + contract.Locale,
	"LD_PRELOAD=" + Library, "NODE_EXTRA_CA_CERTS=" + Trusted}

// Files returns the JavaScript files of an image, by their path in the guest.
func Files() map[string]string {
	return map[string]string{Trusted: "", contract.Preload: preloadText, contract.Typescript: typeScriptText,
		contract.Rehearsal: Rehearsal}
}

//go:embed preload.js
var preloadText string

//go:embed typescript.js
var typeScriptText string

// Rehearsal is the throw-away program.
//
//go:embed rehearsal.js
var Rehearsal string

// Install is the program that installs packages.
//
//go:embed packages.js
var Install string

// Installed is the folder where code in any folder finds installed packages.
const Installed = "/node_modules"

// Check is the program that checks another program's syntax.
//
//go:embed check.js
var Check string

// LibrarySources are compiled into Library, beside guest.Nanos; they are in guest.Sources.
var LibrarySources = []string{"node/addon/addon.c", "node/addon/session.c"}

// Extensions are the extensions of a main file.
var Extensions = []string{".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".tsx", ".jsx"}

// IsSource reports whether a main file may have an extension.
func IsSource(ext string) bool { return slices.Contains(Extensions, ext) }

// HeapArg returns the argument with V8's old-space limit for a machine: the memory that the kernel, Node itself
// and the young generation leave. At the limit, V8 collects harder; above it, the kernel would kill the process.
func HeapArg(memoryMB int) string {
	return fmt.Sprintf("--max-old-space-size=%d", max(memoryMB-contract.HeapReserveMB-memoryMB/contract.HeapReserveShare,
		contract.HeapLeastMB))
}

// OutOfMemory reports whether V8 ended a program because its heap was full, from the signal and the end of
// standard error.
func OutOfMemory(signal int, stderr string) bool {
	const sigabrt = 6
	return signal == sigabrt && strings.Contains(stderr, "JavaScript heap out of memory")
}

// missing matches Node's message when a module is missing (lib/internal/modules).
var missing = regexp.MustCompile(
	`(?m)^(?:Uncaught )?Error(?: \[ERR_MODULE_NOT_FOUND\])?: Cannot find (?:module|package) '([^'\n]{1,300})'`)

// specifier matches a module's name or path. Code that prints the error chooses the name, and unitask repeats it
// in its own message: so it must not be a sentence.
var specifier = regexp.MustCompile(`^[A-Za-z0-9@._/~+-]{1,214}$`)

// MissingModule returns the name of the module whose absence ended a program, from the end of standard error. It
// returns "" if that is not the reason, and "a module" if the name is unusual.
func MissingModule(stderr string) string {
	all := missing.FindAllStringSubmatch(stderr, -1)
	if len(all) == 0 {
		return ""
	}
	if name := all[len(all)-1][1]; specifier.MatchString(name) {
		return name
	}
	return "a module"
}
