package jail

import (
	"slices"
	"strings"
	"testing"
)

// The profile allows the entries of this list and nothing else.
func TestSeatbelt(t *testing.T) {
	const brew = "/opt/homebrew/Cellar/qemu/10.0.3/bin/qemu-system-aarch64"
	for name, c := range map[string]struct {
		program string
		reads   []string
		listens bool
		want    []string
	}{
		"Homebrew": {
			program: brew,
			reads:   []string{"/Users/ada/.unitask/images/a/root.img"},
			want: []string{
				`process-exec (literal "` + brew + `")`,
				`file-read* (literal "` + brew + `") (literal "/Users/ada/.unitask/images/a/root.img")` + brewFolders,
				`file-map-executable (literal "` + brew + `")` + brewFolders,
				`file-read-metadata (literal "/") (literal "/Users") (literal "/Users/ada") (literal "/Users/ada/.unitask") ` +
					`(literal "/Users/ada/.unitask/images")` +
					` (literal "/Users/ada/.unitask/images/a") (literal "/opt") (literal "/opt/homebrew") (literal ` +
					`"/opt/homebrew/Cellar") (literal "/opt/homebrew/Cellar/qemu")` +
					` (literal "/opt/homebrew/Cellar/qemu/10.0.3") (literal "/opt/homebrew/Cellar/qemu/10.0.3/bin") (literal ` +
					`"/opt/homebrew/share")`,
			},
		},
		"MacPorts, a console, a name that would end the string": {
			program: "/opt/local/bin/qemu",
			reads:   []string{`/a")(allow default)`, `/b\`},
			listens: true,
			want: []string{
				`process-exec (literal "/opt/local/bin/qemu")`,
				`file-read* (literal "/opt/local/bin/qemu") (literal "/a\")(allow default)") (literal "/b\\")` + portFolders,
				`file-map-executable (literal "/opt/local/bin/qemu")` + portFolders,
				`file-read-metadata (literal "/") (literal "/opt") (literal "/opt/local") (literal "/opt/local/bin") (literal ` +
					`"/opt/local/share")`,
				`network-inbound (local unix-socket)`,
			},
		},
	} {
		want := []string{"(version 1)", "(deny default)", `(import "system.sb")`}
		for _, rule := range append(c.want, "sysctl-read", "signal (target self)", "dynamic-code-generation",
			`iokit-open (iokit-registry-entry-class "AppleHVClient")`) {
			want = append(want, "(allow "+rule+")")
		}
		got := strings.Split(strings.TrimSpace(strings.ReplaceAll(seatbelt(c.program, c.reads, c.listens), "\n  ", " ")),
			"\n")
		if len(got) < 3 || !slices.Equal(got[:3], want[:3]) { // the default comes before the allowed calls
			t.Errorf("%s: it begins with %q", name, got)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

const (
	brewFolders = ` (subpath "/opt/homebrew/lib") (subpath "/opt/homebrew/libexec") (subpath ` +
		`"/opt/homebrew/share/qemu") (subpath "/opt/homebrew/Cellar") (subpath "/opt/homebrew/opt")`
	portFolders = ` (subpath "/opt/local/lib") (subpath "/opt/local/libexec") (subpath "/opt/local/share/qemu")`
)
