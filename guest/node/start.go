package node

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/guest/contract"
)

// Node's own arguments and variables. In a clone, Node is already running: whatever it reads only at its start needs a
// separate process. The preload can still apply a few settings (adopt). Nothing is ignored.

// whileRunning are the arguments that Node can apply while it runs.
var whileRunning = []string{"--expose-gc", "--expose_gc", "--no-warnings"}

// atStart are the variables that Node reads at its start; the value tells whether the variable alone requires a
// fresh process. NODE_PATH, NODE_NO_WARNINGS and NODE_EXTRA_CA_CERTS are not included because the preload applies
// them; nor are variables that Node reads when it needs them.
var atStart = map[string]bool{
	"NODE_OPTIONS": true, "NODE_DEBUG": true, "NODE_DEBUG_NATIVE": true, "NODE_V8_COVERAGE": true,
	"NODE_COMPILE_CACHE":       true,
	"NODE_PENDING_DEPRECATION": true, "NODE_PRESERVE_SYMLINKS": true, "NODE_PRESERVE_SYMLINKS_MAIN": true,
	"NODE_REDIRECT_WARNINGS": true, "NODE_ICU_DATA": true, "NODE_USE_ENV_PROXY": true, "NODE_USE_SYSTEM_CA": true,
	"OPENSSL_CONF": true, "UV_USE_IO_URING": true,
	"UV_THREADPOOL_SIZE": true, "LC_ALL": true, "LC_MESSAGES": true, "LANG": true,
	"SSL_CERT_FILE": false, "SSL_CERT_DIR": false, "NODE_PATH": false, "NODE_NO_WARNINGS": false,
}

// asStarted matches a locale with which Node behaves as without any.
var asStarted = regexp.MustCompile(`^(en_US|C|POSIX)(\.(?i:utf-?8))?$`)

// noProgram are arguments that make Node run no program, or another one.
var noProgram = []string{"-", "--", "-e", "--eval", "-p", "--print", "-pe", "-c", "--check", "-i", "--interactive",
	"-v", "--version",
	"-h", "--help", "--v8-options", "--completion-bash", "--run", "--watch", "--watch-path", "--test", "--build-snapshot",
	"--prof-process"}

// CheckArg returns an error if an argument for Node is invalid.
func CheckArg(arg string) error {
	name, _, _ := strings.Cut(arg, "=")
	if len(name) > 2 { // as Node reads it
		name = name[:2] + strings.ReplaceAll(name[2:], "_", "-")
	}
	switch {
	case !strings.HasPrefix(arg, "-"):
		return errors.New("must begin with -; give a value behind =, as in --require=./setup.js")
	case strings.ContainsRune(arg, 0):
		return errors.New("must not hold a NUL byte")
	case slices.Contains(noProgram, name):
		return errors.New("would have Node run something else than the code")
	}
	return nil
}

// NeedsProcess returns the first argument or variable that requires a fresh process, "" if there is none.
func NeedsProcess(args []string, env map[string]string) string {
	for _, arg := range args {
		if !slices.Contains(whileRunning, arg) {
			return arg
		}
	}
	var names []string
	for name, value := range env {
		locale := name == "LANG" || strings.HasPrefix(name, "LC_")
		if atStart[name] && value != "" && !(locale && asStarted.MatchString(value)) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return slices.Min(names)
}

// Process returns the arguments and the environment of a fresh process.
func Process(args []string, env map[string]string) (allArgs, variables []string) {
	for name := range atStart {
		value := env[name]
		if name == "NODE_OPTIONS" {
			// The preload runs before whatever the options load.
			allArgs = append(allArgs, heapOptions(value)...)
			value = "--require=" + contract.Preload + " " + value
		}
		if value != "" {
			variables = append(variables, name+"="+value)
		}
	}
	slices.Sort(variables)
	return append(allArgs, args...), append(variables, contract.EnvFresh+"=1")
}

// heapOptions returns the heap limits in NODE_OPTIONS. On the command line, which also has the machine's own
// limit, they take precedence.
func heapOptions(options string) (found []string) {
	for _, option := range strings.Fields(options) {
		if strings.HasPrefix(strings.ReplaceAll(option, "_", "-"), "--max-old-space-size=") {
			found = append(found, option)
		}
	}
	return found
}

// Refused returns a readable form of Node's output when it rejects its arguments.
func Refused(words string) string {
	first, _, _ := strings.Cut(words, "\n")
	return fmt.Sprintf("Node does not take it: %s", strings.TrimPrefix(first, Program+": "))
}
