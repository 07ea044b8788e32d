package jail

import (
	"path/filepath"
	"slices"
	"strings"
)

// systemProfile is macOS's own profile with what every program needs: its loader, frameworks, /dev/null. It allows
// neither network nor users' files.
const systemProfile = "system.sb"

// seatbelt returns a profile, in the language of sandbox-exec(1), for a program that may read its own files and some
// others, and use macOS's hypervisor. Everything else is denied: writing, creating sockets, other programs. Paths must
// be absolute, with links resolved, since the kernel compares those.
func seatbelt(program string, reads []string, listens bool) string {
	folders := libraryFolders(program)
	files := append([]string{program}, reads...)
	var b strings.Builder
	b.WriteString("(version 1)\n(deny default)\n(import " + quoted(systemProfile) + ")\n")
	rule := func(operations string, filters ...string) {
		b.WriteString("(allow " + operations)
		for _, f := range filters {
			b.WriteString("\n  " + f)
		}
		b.WriteString(")\n")
	}
	rule("process-exec", of("literal", program)...)
	rule("file-read*", append(of("literal", files...), of("subpath", folders...)...)...)
	rule("file-map-executable", append(of("literal", program), of("subpath", folders...)...)...)
	rule("file-read-metadata", of("literal", above(append(files, folders...))...)...) // realpath(3) examines each
	rule("sysctl-read")
	rule("signal", "(target self)")
	rule("dynamic-code-generation")                                    // TCG's translations
	rule("iokit-open", `(iokit-registry-entry-class "AppleHVClient")`) // HVF; the signature's entitlement is also checked
	if listens {
		rule("network-inbound", "(local unix-socket)")
	}
	return b.String()
}

// libraryFolders returns the folders with libraries and firmware of a program from Homebrew, from MacPorts, or
// installed by hand.
func libraryFolders(program string) (list []string) {
	prefix := filepath.Dir(filepath.Dir(program))
	sub := []string{"lib", "libexec", "share/qemu"}
	if before, _, ok := strings.Cut(program, "/Cellar/"); ok {
		prefix, sub = before, append(sub, "Cellar", "opt")
	}
	for _, name := range sub {
		list = append(list, filepath.Join(prefix, name))
	}
	return list
}

// above returns the parent folders of paths, each once, sorted.
func above(paths []string) (list []string) {
	for _, p := range paths {
		for dir := filepath.Dir(p); ; dir = filepath.Dir(dir) {
			list = append(list, dir)
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// of returns filters by path.
func of(filter string, paths ...string) (list []string) {
	for _, p := range paths {
		list = append(list, "("+filter+" "+quoted(p)+")")
	}
	return list
}

// quoted returns a string literal in the profile's language.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
