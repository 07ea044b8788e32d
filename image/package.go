package image

import (
	"path"
	"regexp"
	"strings"
)

// leftOut are the folders of packages, relative to usr/, that no program reads when it runs.
var leftOut = []string{
	"share/doc", "share/doc-base", "share/man", "share/info", "share/lintian", "share/bug", "share/locale", "share/menu",
	"share/applications",
	"share/pixmaps", "share/icons", "share/bash-completion", "share/zsh", "share/apport", "share/binfmts", "share/perl5",
	"share/gitweb", "share/git-core/contrib",
	"share/javascript", "share/matplotlib/sample_data", "share/gdb", "share/glib-2.0", "share/python3-brotli",
	"share/zoneinfo/posix", "share/zoneinfo/right", "src", "games", "lib/systemd", "lib/udev", "lib/sysusers.d",
	"lib/tmpfiles.d", "lib/valgrind",
}

// pythonConfig matches the files for embedding Python.
var pythonConfig = regexp.MustCompile(`^lib/python3\.[0-9]+/config-`)

// wholePackage selects the files of a package that a program may need when it runs, and the headers of a developers'
// package. The files have the same paths in the guest, in which /bin and /sbin are those of /usr.
func wholePackage(name string) (string, bool) {
	if ok, _ := path.Match("usr/share/doc/*/copyright", name); ok {
		return "licences/" + path.Base(path.Dir(name)), true
	}
	if rest, ok := strings.CutPrefix(name, "usr/include/"); ok {
		return "include/" + rest, true
	}
	top, rest, _ := strings.Cut(name, "/")
	switch top {
	case "bin", "sbin":
		return "root/usr/" + name, rest != ""
	case "lib", "lib64":
		return "root/" + name, !strings.HasPrefix(rest, "systemd/") && !strings.HasPrefix(rest, "udev/")
	case "etc":
		return "root/" + name, rest != "" && !strings.HasPrefix(rest, "init.d/") && !strings.HasPrefix(rest, "cron.") &&
			!strings.HasPrefix(rest, "default/")
	case "usr":
	default:
		return "", false
	}
	for _, folder := range leftOut {
		if rest == folder || strings.HasPrefix(rest, folder+"/") {
			return "", false
		}
	}
	static := pythonConfig.MatchString(rest) || strings.HasSuffix(rest, ".a") || strings.HasSuffix(rest, ".o") ||
		strings.Contains(rest, "/pkgconfig/")
	tests := strings.HasPrefix(rest, "lib/python3/dist-packages/") && strings.Contains(rest, "/tests/") &&
		path.Base(rest) != "_natype.py" // numpy 2 imports this one itself
	if rest == "" || static || tests {
		return "", false
	}
	return "root/" + name, true
}
