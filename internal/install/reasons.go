package install

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// This file finds out why packages could not be installed, from the output of pip, npm and the programs they start.

const (
	MaxToolError = 700 // bytes of a tool's words
	maxToolCause = 300 // and of the first cause
	maxToolSaid  = 100 // different errors that are considered
)

// noCompiler matches the errors of programs that need a compiler and find none: setuptools, CMake, Meson, programs in
// Python, uWSGI, node-gyp, shells.
var noCompiler = regexp.MustCompile(`(?m)` + strings.Join([]string{
	`command '[^'\n]{0,80}(?:gcc|g\+\+|cc|c\+\+|clang)' failed: No such file`,
	`unable to execute '[^'\n]{0,80}(?:gcc|cc|g\+\+)'`,
	`No such file or directory: '[^'\n]{0,80}\b(?:gcc|g\+\+|cc|c\+\+|clang|make|cmake|pkg-config)'`,
	`CMAKE_C(?:XX)?_COMPILER not set`,
	`Unknown compiler\(s\)`,
	`you need a C compiler`,
	`no acceptable C compiler found`,
	`gyp ERR! find Python`,
	`Could not find any Python installation`,
	`not found: make\b`,
	`CMake executable is not found`,
	`sh: (?:\d+: )?(?:make|gcc|g\+\+|cc|cmake|python3?): (?:command )?not found`,
}, "|"))

// noRust matches the errors of programs that need Rust's compiler, which no image of builds has.
var noRust = regexp.MustCompile(strings.Join([]string{
	`can't find Rust compiler`,
	`Cargo, the Rust package manager, is not installed`,
	`No such file or directory: '(?:cargo|rustc)'`,
	`(?:cargo|rustc): (?:command )?not found`,
}, "|"))

// compilerError matches the line in which a compiler or a linker states the error.
var compilerError = regexp.MustCompile(`(?m)^[\s│]*(?:npm (?:error|ERR!) )?(` + strings.Join([]string{
	`\S+:\d+:(?:\d+:)? (?:fatal )?error: .+`,
	`(?:\S*[/-])?(?:gcc|g\+\+|cc1|cc1plus|collect2): (?:fatal )?error: .+`,
	`(?:\S*/)?ld(?:\.\w+)?: cannot find .+`,
	`.*: undefined reference to .+`,
}, "|") + `)$`)

// missingFile matches an error that another package of Debian may fix: a missing header, library or program.
var missingFile = regexp.MustCompile(`fatal error: \S+: No such file|ld(?:\.\w+)?: cannot find -l`)

// connection matches pip's error that it could not reach an index. A pip that pip has started indents its output.
var connection = regexp.MustCompile(`(?m)^[\s│]*WARNING: Retrying .*? after connection broken by '(.+)': `)

// Why something can't be compiled.
const (
	noBinary      = "it has no wheel or prebuilt binary in the registry that fits here, and "
	wantsCompiler = noBinary + "what compiles it is missing (gcc, make, cmake or the like)"
	wantsRust     = noBinary + "there is no compiler of Rust (cargo): ask for a version that has one, " +
		"or install it over a container image that has cargo (docs/images.md)"
	withoutCompilers = ": ask for a version that has a wheel or a prebuilt binary, " +
		"or install it over a container image that has a compiler (docs/images.md)"
)

// NoCompilerError means that packages have no binary, and found no compiler.
type NoCompilerError struct{ *policy.FieldError }

func (e *NoCompilerError) Unwrap() error { return e.FieldError }

// WithoutCompilers returns the error if there is no image with compilers, either.
func (e *NoCompilerError) WithoutCompilers(err error) error {
	return policy.Bad(e.Field, e.Value, "must be compiled, and the image with compilers can't be had: %v%s",
		err, withoutCompilers)
}

// failed returns why the machine could not install the packages: a NoCompilerError if one with compilers may.
func (i *installation) failed(res *run.Result) error {
	said, more := string(res.Stderr), ""
	// A machine that had to be ended did not fail for a missing compiler, whatever it printed.
	lacks := res.Outcome == run.OutcomeExited && noCompiler.MatchString(said) && !noRust.MatchString(said)
	if o := i.to.Compilers; o != nil && (lacks || missingFile.MatchString(said)) {
		more = fmt.Sprintf("; if a package of Debian has what is missing, add it to debian in %s and build that, "+
			"`unitask image build %s`", o.File, o.Name)
	}
	err := policy.Bad("packages", strings.Join(i.want.Asked, " "),
		"can't be installed from %s: %s%s (`unitask inspect %s` has the rest)", i.want.Registry,
		i.ToolError(i.want.System, res), more, res.RunID)
	if lacks && i.to.Compilers == nil {
		return &NoCompilerError{err}
	}
	return err
}

// ToolError is why pip or npm failed, in their own words.
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

// toolWords returns the errors in a tool's output, the first cause before its consequences.
func toolWords(stderr string) string {
	var said []string
	add := func(text string) {
		if text = strings.TrimSpace(text); text != "" && len(said) < maxToolSaid && !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	if noRust.MatchString(stderr) {
		add(wantsRust)
	} else if noCompiler.MatchString(stderr) {
		add(wantsCompiler)
	}
	if m := compilerError.FindStringSubmatch(stderr); m != nil {
		add("the compiler says: " + bounded.Said(m[1], maxToolCause))
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
