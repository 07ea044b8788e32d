package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// This file unpacks Debian packages for custom images, without running their scripts.

// DebFolder describes the files that UnpackDebs has unpacked.
type DebFolder struct {
	Scripts []string // packages with an installation program, which did not run
	Crowded []string // folders of the guest with many files, the largest first
	Tops    []string // folders at the root that images don't have
}

// crowded is the number of files from which on a folder stays on the disk as a whole.
const crowded = 60

// UnpackDebs puts the files of fetched packages below dir, at their paths in the guest. It also makes the links that
// the packages' scripts would make with update-alternatives. It runs no program.
func UnpackDebs(ctx context.Context, from string, list []Deb, arch Arch, dir string) (found DebFolder, err error) {
	return unpackDebs(ctx, from, list, arch, dir, maxDebFiles)
}

func unpackDebs(ctx context.Context, from string, list []Deb, arch Arch, dir string, left int64) (found DebFolder,
	err error) {
	var links []alternative
	for _, d := range list {
		if ctx.Err() != nil {
			return found, context.Cause(ctx)
		}
		file, err := DebFile(from, d)
		if err != nil {
			return found, err
		}
		scripts, err := debScripts(file)
		if err != nil {
			return found, fmt.Errorf("read %s: %w", filepath.Base(file), err)
		}
		if len(scripts) > 0 {
			found.Scripts = append(found.Scripts, d.Name)
		}
		for _, text := range scripts {
			links = append(links, alternatives(text)...)
		}
		if err := unpackDebOf(file, dir, debRoot, &left); err != nil {
			return found, err
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return found, err
	}
	defer root.Close()
	slices.SortStableFunc(links, func(a, b alternative) int { return b.priority - a.priority })
	for _, l := range links {
		at, ok := debRoot(l.link[1:])
		to, leads := debRoot(l.path[1:])
		if !ok || !leads {
			continue
		}
		if _, err := root.Lstat(to); err != nil { // another package's file, or made by a script
			continue
		}
		if err := root.MkdirAll(path.Dir(at), 0o755); err != nil {
			return found, err
		}
		if err := root.Symlink("/"+to, at); err != nil && !errors.Is(err, fs.ErrExist) {
			return found, err
		}
	}
	return found, found.look(dir, arch)
}

// look finds the folders to report to the guest.
func (f *DebFolder) look(dir string, arch Arch) error {
	count := map[string]int{}
	shared := []string{"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib/" + arch.triplet(), "/usr/share", "/usr/libexec",
		"/usr/local", "/lib", "/lib/" + arch.triplet(), "/etc"}
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		at := strings.TrimPrefix(name, dir)
		top, _, _ := strings.Cut(at[1:], "/")
		if top = "/" + top; !slices.Contains([]string{"/usr", "/etc", "/lib", "/lib64"}, top) {
			if !slices.Contains(f.Tops, top) {
				f.Tops = append(f.Tops, top)
			}
			return nil
		}
		for below := path.Dir(at); below != "/"; below = path.Dir(below) {
			if !slices.Contains(shared, below) && slices.Contains(shared, path.Dir(below)) {
				count[below]++
			}
		}
		return nil
	})
	for below, n := range count {
		if n >= crowded {
			f.Crowded = append(f.Crowded, below)
		}
	}
	slices.SortFunc(f.Crowded, func(a, b string) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return strings.Compare(a, b)
	})
	slices.Sort(f.Tops)
	return err
}

// debRoot selects the files of a package that programs need, at their paths in the guest. /bin and /sbin become those
// of /usr.
func debRoot(name string) (string, bool) {
	top, rest, _ := strings.Cut(name, "/")
	switch top {
	case "bin", "sbin":
		return "usr/" + name, rest != ""
	case "usr", "lib", "lib64", "etc", "opt", "srv", "var":
	default:
		return "", false
	}
	for _, out := range []string{"usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/lintian", "usr/share/bug",
		"usr/share/menu", "usr/lib/systemd", "lib/systemd", "lib/udev", "etc/init.d", "etc/systemd", "var/run", "var/lock"} {
		if name == out || strings.HasPrefix(name, out+"/") {
			return "", false
		}
	}
	return name, rest != ""
}

// alternative is a link that update-alternatives would make.
type alternative struct {
	link, path string
	priority   int
}

var (
	alternativeForm = regexp.MustCompile(
		`--(install|slave)\s+(/[A-Za-z0-9/._+-]+)\s+\S+\s+(/[A-Za-z0-9/._+-]+)(?:\s+([0-9]{1,6}))?`)
	continued = regexp.MustCompile(`\\\n\s*`)
)

// alternatives reads the links that a script would make, if the script names them literally. A slave has the priority
// of the entry before it.
func alternatives(script string) (list []alternative) {
	for line := range strings.Lines(continued.ReplaceAllString(script, " ")) {
		if !strings.Contains(line, "update-alternatives") {
			continue
		}
		priority := 0
		for _, m := range alternativeForm.FindAllStringSubmatch(line, maxMembers) {
			if path.Clean(m[2]) != m[2] || path.Clean(m[3]) != m[3] {
				continue
			}
			if m[1] == "install" {
				_, _ = fmt.Sscan(m[4], &priority)
			}
			list = append(list, alternative{m[2], m[3], priority})
		}
	}
	return list
}

// maxScript bounds a package's script.
const maxScript = 1 << 20

// debScripts returns the scripts that would run when the package is installed.
func debScripts(file string) (texts []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	control, err := debMember(f, "control.tar")
	if err != nil {
		return nil, err
	}
	defer control.Close()
	dir, err := os.MkdirTemp(filepath.Dir(file), ".control-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := unpackTar(control, dir, func(name string) (string, bool) {
		return name, name == "preinst" ||
			name == "postinst"
	}); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, name := range []string{"preinst", "postinst"} {
		st, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && !st.Mode().IsRegular() {
			err = fmt.Errorf("its %s is no file", name)
		}
		if err != nil {
			return nil, err
		}
		script, err := root.Open(name)
		if err != nil {
			return nil, err
		}
		text, err := io.ReadAll(io.LimitReader(script, maxScript))
		script.Close()
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(text))
	}
	return texts, nil
}
