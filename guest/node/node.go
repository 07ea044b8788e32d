// Package node is the guest's part for Node: its start, the preloaded files (preload.js, typescript.js, addon/), the
// program of rehearsals, and details of a run that only a Node programmer would know. It knows neither images nor
// machines; unitask passes its values to them. Another language is another package beside it.
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

// Where Node is in the guest, and what starts it.
const (
	Program = "/usr/bin/node"
	// Library is addon/ with ../nanos and the agent; the linker preloads it, too.
	Library = contract.Library
	// Trusted holds certificates that TLS clients trust beside Node's own. It is
	// empty until a run brings some: Node reads it when it first needs them.
	Trusted = contract.Trusted

	// MainLink is the link that Node runs; its target is the code.
	MainLink = contract.MainLink
)

// Parts are the vendored parts that Node is made of. The first one holds Program, and the headers that Library is
// compiled with; the last, what makes JavaScript of TypeScript and JSX; the others, what Node needs to run.
var Parts = slices.Concat([]string{"node"}, system.Libraries, system.Commands, []string{"esbuild"})

// Args is Node's command line, its own name included. The baseline compiler is off
// and feedback is collected at once: both save translation under TCG.
var Args = []string{"node", "--no-sparkplug", "--no-lazy-feedback-allocation", "--require", contract.Preload, MainLink}

// NanosArgs are more of it on Nanos, which lets a program read what it has mapped without
// any permission: V8's way to find out WebAssembly's reads beyond its memory.
var NanosArgs = []string{"--disable-wasm-trap-handler"}

// Env is the environment that Node is started in; the code sees its own.
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

// Installed is the folder where code of any folder finds what was installed.
const Installed = "/node_modules"

// Check is the program that checks another one's syntax.
//
//go:embed check.js
var Check string

// LibrarySources are compiled into Library, beside those of guest.Nanos; they are in guest.Sources.
var LibrarySources = []string{"node/addon/addon.c", "node/addon/session.c"}

// Extensions are those that a main file may have.
var Extensions = []string{".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".tsx", ".jsx"}

// IsSource reports whether a file's extension is one of a main file.
func IsSource(ext string) bool { return slices.Contains(Extensions, ext) }

// HeapArg returns the argument with V8's old-space limit for a machine: what is left when
// the kernel, Node's own memory and the young generation have theirs. Below it V8
// collects harder; above it the kernel would kill the process.
func HeapArg(memoryMB int) string {
	return fmt.Sprintf("--max-old-space-size=%d", max(memoryMB-contract.HeapReserveMB-memoryMB/contract.HeapReserveShare,
		contract.HeapLeastMB))
}

// OutOfMemory reports whether a program was ended by V8 because its heap was full, by the
// signal that it died of and the end of its standard error.
func OutOfMemory(signal int, stderr string) bool {
	const sigabrt = 6
	return signal == sigabrt && strings.Contains(stderr, "JavaScript heap out of memory")
}

// missing is what Node prints when it ends for want of a module (lib/internal/modules).
var missing = regexp.MustCompile(
	`(?m)^Error(?: \[ERR_MODULE_NOT_FOUND\])?: Cannot find (?:module|package) '([^'\n]{1,300})'`)

// specifier is what a module's name or path looks like. Whoever prints the error chooses
// it, and it is said again in our own words: so it can't be a sentence.
var specifier = regexp.MustCompile(`^[A-Za-z0-9@._/~+-]{1,214}$`)

// MissingModule returns the name of the module that a program ended for want of, by the end
// of its standard error; "" if it is not why, "a module" if the name is not a usual one.
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
