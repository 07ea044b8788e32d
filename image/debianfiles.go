package image

import (
	"path"
	"strings"

	"github.com/unitask/unitask/internal/bounded"
)

// wanted names files of a package. The folders in pattern are those of Debian 12; later releases have the same files
// below usr.
type wanted struct {
	pattern string
	dst     string // in the part; a trailing slash means a folder for files that keep their names
}

// debianParts returns the files to extract from each Debian part. All of them must exist.
func debianParts(part string, arch Arch) []wanted {
	lib := "lib/" + arch.triplet() + "/"
	switch name, _ := plainPart(part); name {
	case libcPart:
		return inRoot(arch.loader(), lib+"ld-linux-*", lib+"libc.so.6", lib+"libm.so.6", lib+"libdl.so.2", lib+
			"libpthread.so.0",
			lib+"librt.so.1", lib+"libresolv.so.2", lib+"libutil.so.1", lib+"libnsl.so.1", lib+"libanl.so.1")
	case "libstdc++":
		return inRoot("usr/"+lib+"libstdc++.so.6", "usr/"+lib+"libstdc++.so.6.*")
	case "libmvec": // of libc's package, on architectures that have it
		return inRoot(lib + "libmvec.so.1")
	case "libgcc":
		return inRoot(lib + "libgcc_s.so.1")
	case "busybox":
		return inRoot("bin/busybox")
	case certificatesPart:
		return []wanted{{"usr/share/ca-certificates/mozilla/*.crt", "certs/"}}
	case PipTool:
		return []wanted{{"usr/share/python-wheels/pip-*.whl", toolFiles[PipTool]}}
	case kernelPart:
		return []wanted{{"boot/vmlinuz-*", "vmlinuz"}, {"lib/modules/*/vmlinuz", "vmlinuz"}} // since Debian 14
	}
	return nil
}

// inRoot returns files that go to the same path in the guest's root filesystem.
func inRoot(patterns ...string) []wanted {
	var list []wanted
	for _, p := range patterns {
		list = append(list, wanted{p, "root/" + path.Dir(p) + "/"})
	}
	return list
}

// debianFiles selects the files of a Debian part.
func debianFiles(part string, arch Arch) selector {
	part, _ = plainPart(part)
	files := debianParts(part, arch)
	if files == nil {
		return func(name string) (string, bool) {
			dst, ok := wholePackage(name)
			if strings.HasPrefix(dst, "include/") && !strings.HasSuffix(part, "-dev") {
				return "", false // a link of numpy's
			}
			if part == "util-linux" && (strings.HasPrefix(dst, "root/usr/sbin/") || dst == "root/usr/bin/su" ||
				dst == "root/usr/bin/lslogins") {
				return "", false // for root or other users, which a guest does not have
			}
			return dst, ok
		}
	}
	return func(name string) (string, bool) {
		merged, base := strings.TrimPrefix(name, "usr/"), path.Base(name)
		for _, w := range files {
			if ok, _ := path.Match(strings.TrimPrefix(w.pattern, "usr/"), merged); ok {
				if strings.HasSuffix(w.dst, "/") {
					return w.dst + base, true
				}
				return w.dst, true
			}
		}
		if ok, _ := path.Match("usr/share/doc/*/copyright", name); ok {
			return "licences/" + path.Base(path.Dir(name)), true
		}
		if part == kernelPart && strings.HasPrefix(merged, "lib/modules/") && wantedModule(base) {
			return "modules/" + base, true
		}
		return "", false
	}
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		s = s[i+1:]
	}
	return bounded.Said(s, 300)
}
