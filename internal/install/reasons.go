package install

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/run"
)

// Why packages could not be installed, of all that pip, npm and what these start have said.

const (
	MaxToolError = 700 // bytes of what a tool said
	maxToolCause = 300 // and of the first cause
)

// noCompiler are the words of those that want a compiler and find none: setuptools, CMake, Meson, Rust's callers,
// node-gyp.
var noCompiler = regexp.MustCompile(`(?m)` + strings.Join([]string{
	`command '[^'\n]{0,80}(?:gcc|g\+\+|cc|c\+\+|clang)' failed: No such file`,
	`unable to execute '[^'\n]{0,80}(?:gcc|cc|g\+\+)'`,
	`CMAKE_C(?:XX)?_COMPILER not set`,
	`Unknown compiler\(s\)`,
	`can't find Rust compiler`,
	`Cargo, the Rust package manager, is not installed`,
	`gyp ERR! find Python`,
	`Could not find any Python installation`,
	`not found: make\b`,
	`sh: (?:\d+: )?(?:make|gcc|g\+\+|cc|cmake|python3?): (?:command )?not found`,
}, "|"))

// connection is how pip says that it could not reach an index; what a pip says that pip has started is indented.
var connection = regexp.MustCompile(`(?m)^[\s│]*WARNING: Retrying .*? after connection broken by '(.+)': `)

const wantsCompiler = "it has no wheel or prebuilt binary in the registry that fits here, " +
	"and to compile it there is no compiler (gcc, make and the like): " +
	"ask for a version that has one, or install it over a container image that has a compiler (docs/images.md)"

// ToolError is why pip or npm failed, by their own words.
func (in *Installer) ToolError(system string, res *run.Result) string {
	reason := toolWords(string(res.Stderr))
	if reason == "" {
		reason = res.Error
	}
	reason += in.DeniedHosts(res.RunID)
	if reason == "" {
		reason = fmt.Sprintf("%s ended with %d", system, res.ExitCode)
	}
	return reason
}

// toolWords returns the errors among what a tool has said, the first cause before what came of it.
func toolWords(stderr string) string {
	var said []string
	add := func(text string) {
		if text = strings.TrimSpace(text); text != "" && !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	if noCompiler.MatchString(stderr) {
		add(wantsCompiler)
	}
	if m := connection.FindStringSubmatch(stderr); m != nil {
		add("no connection: " + bounded.Said(m[1], maxToolCause))
	}
	for line := range strings.Lines(stderr) {
		line = strings.TrimLeft(line, " \t│")
		for _, mark := range []string{"ERROR:", "npm error", "npm ERR!"} {
			if rest, ok := strings.CutPrefix(line, mark); ok && !strings.Contains(rest, "A complete log of this run") {
				add(rest)
			}
		}
	}
	reason := bounded.Said(strings.Join(said, "; "), MaxToolError)
	if len(reason) == MaxToolError {
		reason += "…"
	}
	return reason
}
