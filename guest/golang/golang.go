// Package golang is the guest's part for Go: its toolchain, which compiles and runs the code. It knows neither images
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

// Program is what waits in a machine for the code, and becomes `go run` then.
const Program = "/unitask/lib/start"

// ProgramSources are compiled into Program; they are in guest.Sources.
var ProgramSources = []string{"golang/program/golang.c", "golang/program/build.c", "start/start.c"}

// Parts are the vendored parts of the image. The toolchain is static and has its own time zones.
var Parts = []string{"go", "libc"}

// Folders are those with many files.
var Folders = []string{"/usr/local/go"}

// Links are for what looks for the programs in PATH.
var Links = map[string]string{"/usr/local/bin/go": "../go/bin/go", "/usr/local/bin/gofmt": "../go/bin/gofmt"}

// Args is Program's command line, its own name included.
var Args = []string{"start"}

// Env is the environment that it is started in; the code sees its own.
var Env = []string{"PATH=" + contract.SearchPath, "HOME=" + contract.HomeDir, "LANG=" + contract.Locale}

// Files returns the texts of an image, by their path in the guest. go.env is in the place of the toolchain's: there
// is this toolchain and no other, and no module proxy unless the code's environment names one.
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

// Patience is for the first rehearsal, which reads compiler and linker from the disk.
const Patience = 2 * time.Minute

// Check is the program that checks another one's syntax: a script.
//
//go:embed check.sh
var Check string

// Extensions are those that a main file may have.
var Extensions = []string{".go"}

// CheckArg says what is wrong with one of the language's own arguments.
func CheckArg(string) error { return errors.New("is for JavaScript only") }

// NeedsProcess is "": every run has a process of its own.
func NeedsProcess([]string, map[string]string) string { return "" }

// Process returns the arguments and the environment of a fresh process.
func Process(args []string, _ map[string]string) (allArgs, variables []string) { return args, nil }

// Refused returns a readable form of what is printed when it does not take its arguments.
func Refused(words string) string { return "Go does not take it: " + words }

// OutOfMemory reports whether a program ended for want of memory: only the kernel can say so. What go run prints of a
// child that was killed says not why.
func OutOfMemory(int, string) bool { return false }

// MemoryHint is for a program that ended for want of memory. What would have it end with a trace is not ours to do: the
// program would import another package, and change another limit's value for code that asks for it.
const MemoryHint = "a Go stack may grow to 1 GB, for which a machine needs some 2 GiB: if this was an endless recursion, " +
	"debug.SetMaxStack(64 << 20) of runtime/debug ends it with a trace"

// Alone reports whether nothing but a text goes into what it is compiled to: it takes no other files in, and the
// arguments do not begin with one, which go run would take for a part of the program.
func Alone(text string, args []string) bool {
	return !strings.Contains(text, "go:embed") && (len(args) == 0 || !strings.HasSuffix(args[0], ".go"))
}

// Built returns where a program that a file was compiled to is put: where go run would have it.
func Built(file string) string {
	return fmt.Sprintf("/tmp/go-build%d/b001/exe/%s", rand.Uint32(), strings.TrimSuffix(path.Base(file), ".go"))
}

// MissingModule is "": a message of Go's own names the package and what to do.
func MissingModule(string) string { return "" }
