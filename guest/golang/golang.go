// Package golang is the guest's part for Go: its toolchain compiles and runs the code. It knows neither images
// nor machines; unitask passes its values to them.
package golang

import (
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// Program waits in a machine for the code, and then becomes `go run`.
const Program = "/unitask/lib/start"

// ProgramSources are compiled into Program; they are in guest.Sources.
var ProgramSources = []string{"golang/program/golang.c", "golang/program/build.c", "start/start.c"}

// Parts are the vendored parts of the image. The toolchain is static and has its own time zones.
var Parts = []string{"go", "libc"}

// Folders are the folders with many files.
var Folders = []string{"/usr/local/go"}

// Links serve programs that search for go and gofmt in PATH.
var Links = map[string]string{"/usr/local/bin/go": "../go/bin/go", "/usr/local/bin/gofmt": "../go/bin/gofmt"}

// Args is Program's command line, its own name included.
var Args = []string{"start"}

// Env is the environment of Program's start; the code sees its own.
var Env = []string{"PATH=" + contract.SearchPath, "HOME=" + contract.HomeDir, "LANG=" + contract.Locale}

// Files returns the texts of an image, by their path in the guest. Its go.env replaces the toolchain's: there is
// only this toolchain, and no module proxy unless the code's environment names one.
func Files() map[string]string {
	return map[string]string{
		contract.Trusted:       "",
		"/usr/local/go/go.env": "GOPROXY=off\nGOSUMDB=off\nGOTOOLCHAIN=local\n",
	}
}

// Rehearsal is the throw-away program.
//
//go:embed rehearsal.go.txt
var Rehearsal string

// Patience is the extra time of the first rehearsal, which reads compiler and linker from the disk.
const Patience = 2 * time.Minute

// Check is the program that checks another program's syntax: a script.
//
//go:embed check.sh
var Check string

// Extensions are the extensions of a main file.
var Extensions = []string{".go"}

// CheckArg returns an error if an argument for the language is invalid.
func CheckArg(string) error { return errors.New("is for JavaScript only") }

// NeedsProcess returns "": every run has a separate process.
func NeedsProcess([]string, map[string]string) string { return "" }

// Process returns the arguments and the environment of a fresh process.
func Process(args []string, _ map[string]string) (allArgs, variables []string) { return args, nil }

// Refused returns a readable form of the output of a process that rejects its arguments.
func Refused(words string) string { return "Go does not take it: " + words }

// OutOfMemory returns false: only the kernel can report that a program ran out of memory. go run does not print
// why a child was killed.
func OutOfMemory(int, string) bool { return false }

// MemoryHint is for a program that ran out of memory. unitask does not limit the stack itself: the program would
// import another package, and code that sets the limit would get a different previous value.
const MemoryHint = "a Go stack may grow to 1 GB, for which a machine needs some 2 GiB: " +
	"if this was an endless recursion, " +
	"debug.SetMaxStack(64 << 20) of runtime/debug ends it with a trace"

// Alone reports whether the compiled program depends only on a text. So the text embeds no files, and the first
// argument is not a file that go run would treat as a part of the program.
func Alone(text string, args []string) bool {
	return !strings.Contains(text, "go:embed") && (len(args) == 0 || !strings.HasSuffix(args[0], ".go"))
}

// Built returns a path for the compiled program: where go run would put it.
func Built(file string) string {
	return fmt.Sprintf("/tmp/go-build%d/b001/exe/%s", rand.Uint32(), strings.TrimSuffix(path.Base(file), ".go"))
}

// MissingModule returns "": Go's own message names the package and the remedy.
func MissingModule(string) string { return "" }
