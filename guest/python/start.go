package python

import (
	"errors"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// atStart are the beginnings of variables that Python, or libc for it, reads at its start
// only: in a clone it runs already, so they need a process of their own. Nothing is ignored.
var atStart = []string{"PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_TUNABLES",
	"MPL", "MATPLOTLIBRC", "NPY_", "NUMPY_", "OMP_"} // of what a template of the image data has imported

// anyTime are those among them that Python reads when it needs them.
var anyTime = []string{"PYTHONBREAKPOINT", "PYTHONASYNCIODEBUG", "LANGUAGE"}

// CheckArg says what is wrong with one of Python's own arguments.
func CheckArg(string) error { return errors.New("is for JavaScript only") }

// NeedsProcess names the first argument or variable that only a fresh process can heed, ""
// if there is none. Python looks for the user's own packages below HOME at its start, too.
func NeedsProcess(_ []string, env map[string]string) string {
	var names []string
	for name, value := range env {
		begins := func(s string) bool { return strings.HasPrefix(name, s) }
		if value == contract.Locale && (name == "LANG" || name == "LC_ALL" || name == "LC_CTYPE") {
			continue // as it was started
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

// Process returns the arguments and the environment of a fresh process: it waits for its start
// before it is Python, and has all it needs from that.
func Process([]string, map[string]string) (args, variables []string) {
	return nil, []string{contract.EnvFresh + "=1"}
}

// Refused returns a readable form of what a fresh process prints that does not come to its start.
func Refused(words string) string {
	first, _, _ := strings.Cut(words, "\n")
	return "Python does not start with it: " + strings.TrimSpace(first)
}

// OutOfMemory reports whether a program ended for want of memory: a MemoryError is an exception
// like others, of a size that no machine has, and what needs more than the machine's is
// ended by the kernel.
func OutOfMemory(int, string) bool { return false }
