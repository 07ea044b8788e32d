package python

import (
	"errors"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// atStart are prefixes of variables that Python, or libc for it, reads only at its start. In a clone Python is already
// running, so they require a separate process. Nothing is ignored.
var atStart = []string{"PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_TUNABLES",
	"MPL", "MATPLOTLIBRC", "NPY_", "NUMPY_", "OMP_"} // modules that a template of the image data has imported

// anyTime are the exceptions: Python reads them only when it needs them.
var anyTime = []string{"PYTHONBREAKPOINT", "PYTHONASYNCIODEBUG", "LANGUAGE"}

// CheckArg returns an error if an argument for Python is invalid.
func CheckArg(string) error { return errors.New("is for JavaScript only") }

// NeedsProcess returns the first argument or variable that requires a fresh process, "" if there is none. Python
// also looks for the user's own packages below HOME at its start.
func NeedsProcess(_ []string, env map[string]string) string {
	var names []string
	for name, value := range env {
		begins := func(s string) bool { return strings.HasPrefix(name, s) }
		if value == contract.Locale && (name == "LANG" || name == "LC_ALL" || name == "LC_CTYPE") {
			continue // already set so at its start
		}
		if value != "" && !slices.Contains(anyTime, name) && slices.ContainsFunc(atStart, begins) ||
			name == "HOME" && value != contract.HomeDir {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// Process returns the arguments and the environment of a fresh process. The process waits for its start before it
// becomes Python, and the start contains all it needs.
func Process([]string, map[string]string) (args, variables []string) {
	return nil, []string{contract.EnvFresh + "=1"}
}

// Refused returns a readable form of the output of a fresh process that fails before its start.
func Refused(words string) string {
	first, _, _ := strings.Cut(words, "\n")
	return "Python does not start with it: " + strings.TrimSpace(first)
}

// OutOfMemory returns false. A MemoryError is an ordinary exception, for a size that no machine has. The kernel kills a
// program that needs more than the machine's memory.
func OutOfMemory(int, string) bool { return false }
