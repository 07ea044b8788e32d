// Package shell is what the guest has of bash and the tools that scripts use. It knows neither
// images nor machines; unitask hands its values to them.
package shell

import (
	"errors"

	"github.com/unitask/unitask/guest/contract"
)

// Program is where bash lies in the guest.
const Program = "/usr/bin/bash"

// Parts are the vendored parts of the image. The first one holds Program.
var Parts = []string{"bash", "libc", "libgcc", "libtinfo6"}

// Folders are those with many files.
var Folders = []string{"/usr/bin", "/usr/share"}

// Args is bash's command line, its own name included.
var Args = []string{"bash", contract.MainLink}

// Env is the environment that bash is started in; the code sees its own.
var Env = []string{"PATH=" + contract.SearchPath, "HOME=" + contract.HomeDir}

// Extensions are those that a main file may have.
var Extensions = []string{".sh", ".bash"}

// Rehearsal is the throw-away program.
const Rehearsal = "echo rehearsal\n"

// CheckArg says what is wrong with one of bash's own arguments.
func CheckArg(string) error { return errors.New("is for JavaScript only") }
