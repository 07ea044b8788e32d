// Package shell is the guest's part for bash and the tools that scripts use. It knows neither images nor machines;
// unitask passes its values to them.
package shell

import (
	_ "embed"
	"errors"
	"slices"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/system"
)

// Program waits in a machine for the code, and then becomes Bash.
const Program = "/unitask/lib/start"

// ProgramSources are compiled into Program; they are in guest.Sources.
var ProgramSources = []string{"shell/program/shell.c", "start/start.c"}

// Parts are the vendored parts of the image.
var Parts = slices.Concat([]string{
	"bash", "grep", "sed", "gawk", "diffutils", "jq", "bc", "file", "curl", "git", "sqlite3",
	"zip", "unzip", "tar", "gzip", "bzip2", "patch", "libjq1", "libonig5", "libmagic1", "libmagic-mgc", "libacl1",
	"libmpfr6", "libsigsegv2", "libcurl4", "libcurl3-gnutls", "libbrotli1", "libgssapi-krb5-2",
	"libk5crypto3", "libkrb5-3", "libkrb5support0", "libcom-err2", "libkeyutils1", "libidn2-0", "libldap2",
	"libsasl2-2", "libnghttp2-14", "libpsl5", "librtmp1", "libssh2-1", "libgnutls30", "libhogweed6", "libnettle8",
	"libp11-kit0", "libtasn1-6", "libunistring5", "libreadline8", "libbz2-1.0", "libnghttp3-9", "libngtcp2-16",
	"libngtcp2-crypto-gnutls8", "libsqlite3-0",
	"tzdata",
}, system.Libraries, system.Commands)

// Folders are the folders with many files.
var Folders = []string{"/usr/bin", "/usr/share"}

// Links are the links that Debian's alternatives would create.
var Links = map[string]string{"/usr/bin/awk": "gawk", "/usr/bin/pager": "less"}

// Args is Program's command line, its own name included.
var Args = []string{"start"}

// Env is the environment of Program's start; the code sees its own.
var Env = []string{"PATH=" + contract.SearchPath, "HOME=" + contract.HomeDir, "LANG=" + contract.Locale}

// Files returns the texts of an image, by their path in the guest.
func Files() map[string]string { return map[string]string{contract.Trusted: ""} }

// Rehearsal is the throw-away program.
//
//go:embed rehearsal.sh
var Rehearsal string

// Check is the program that checks another program's syntax.
//
//go:embed check.sh
var Check string

// Extensions are the extensions of a main file.
var Extensions = []string{".sh", ".bash"}

// CheckArg returns an error if an argument for the language is invalid.
func CheckArg(string) error { return errors.New("is for JavaScript only") }

// NeedsProcess returns "": every run has a separate process.
func NeedsProcess([]string, map[string]string) string { return "" }

// Process returns the arguments and the environment of a fresh process.
func Process(args []string, _ map[string]string) (allArgs, variables []string) { return args, nil }

// Refused returns a readable form of the output of a process that rejects its arguments.
func Refused(words string) string { return "Bash does not take it: " + words }

// OutOfMemory returns false: only the kernel can report that a program ran out of memory.
func OutOfMemory(int, string) bool { return false }

// MissingModule returns "": a shell has no modules.
func MissingModule(string) string { return "" }
