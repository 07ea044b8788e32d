package policy

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/unitask/unitask/internal/userdir"
)

// The ceiling files that apply in a folder are every CeilingFile in it and above it. They are searched on the typed
// path and on the real path, because a link must not hide files above. Each narrows those above it. A file that the
// user trusts replaces all above it on its path.

// found is a file that applies.
type found struct {
	*Ceiling
	trusted bool
	why     string // why it is not trusted
}

// findCeilings reads the files that apply in a folder, the nearest first.
func findCeilings(trust Trust, dir string) (list []found, err error) {
	paths, err := pathsOf(dir)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{} // by real names: whether it is trusted
	for _, dir := range paths {
		for {
			name := filepath.Join(dir, CeilingFile)
			file, err := findOne(trust, name)
			if err != nil {
				return nil, err
			}
			if file != nil {
				real, err := realName(name)
				if err != nil {
					return nil, &CeilingError{Path: name, Err: err}
				}
				if _, again := seen[real]; !again {
					list = append(list, *file)
				}
				if seen[real] = file.trusted; file.trusted {
					break
				}
			}
			parent := filepath.Dir(dir)
			if parent == dir {
				break
			}
			dir = parent
		}
	}
	return list, nil
}

// pathsOf returns a folder's path as typed, and the real one if it differs.
func pathsOf(dir string) ([]string, error) {
	typed, err := absolute(dir)
	if err != nil {
		return nil, err
	}
	real, err := realFolder(typed)
	if err != nil {
		return nil, err
	}
	if real == typed {
		return []string{typed}, nil
	}
	return []string{typed, real}, nil
}

// absolute returns a folder's path from the root. A typed path may have .. after a link, and so may $PWD. Such a
// .. leads out of the link's target, and the typed names before it are not part of the path.
func absolute(dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		wd, err := userdir.Working()
		if err != nil {
			return "", err
		}
		dir = wd + "/" + dir
	}
	clean := filepath.Clean(dir)
	there, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return clean, nil
	}
	if err != nil {
		return "", err
	}
	if seen, err := os.Stat(clean); err == nil && os.SameFile(there, seen) {
		return clean, nil
	}
	return filepath.EvalSymlinks(dir)
}

// realFolder returns a folder's path without links. If the folder does not exist, it resolves the existing part.
func realFolder(typed string) (string, error) {
	real, err := filepath.EvalSymlinks(typed)
	if !errors.Is(err, fs.ErrNotExist) || typed == "/" {
		return real, err
	}
	above, err := realFolder(filepath.Dir(typed))
	return filepath.Join(above, filepath.Base(typed)), err
}

// findOne reads a file, if it exists.
func findOne(trust Trust, name string) (*found, error) {
	if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, &CeilingError{Path: name, Err: err}
	}
	c, err := ReadCeiling(name)
	if err != nil {
		return nil, err
	}
	file := &found{Ceiling: c}
	switch err := trust.Of(c); {
	case err == nil:
		file.trusted = true
	case errors.Is(err, ErrNotTrusted):
		file.why = err.Error()
	default:
		return nil, err
	}
	return file, nil
}

// NearestCeiling reads the first CeilingFile in a folder or above it; nil if there is none.
func NearestCeiling(dir string) (*Ceiling, error) {
	list, err := findCeilings(Trust{}, dir)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return list[0].Ceiling, nil
}

// ForPeople is the ceiling on runs of a person who types commands.
type ForPeople struct {
	Ceiling *Ceiling // nil if no file applies
	Files   []string // the files that apply, the nearest first
	Origin  *Origin  // the ceiling's source, or its source if a file existed

	Defaults []Defaults // of these files, the nearest first
}

// LoadForPeople makes the ceiling for commands typed in a folder. Every file there and above narrows it, up to the
// first on its path in the home's list. named is a file that the user named. It also narrows them, unless it is on that
// list.
func LoadForPeople(home, dir, named string) (*ForPeople, error) {
	dir, err := absolute(dir)
	if err != nil {
		return nil, err
	}
	origin := &Origin{Dir: dir}
	trust := OpenTrust(home)
	var list []found
	if named != "" {
		if origin.File, err = filepath.Abs(named); err != nil {
			return nil, err
		}
		c, err := ReadCeiling(named)
		if err != nil {
			return nil, err
		}
		err = trust.Of(c)
		if err != nil && !errors.Is(err, ErrNotTrusted) {
			return nil, err
		}
		list = append(list, found{Ceiling: c, trusted: err == nil})
	}
	if named == "" || !list[0].trusted {
		above, err := findCeilings(trust, dir)
		if err != nil {
			return nil, err
		}
		list = append(list, above...)
	}
	p := &ForPeople{Origin: origin}
	for i := len(list) - 1; i >= 0; i-- {
		if !list[i].trusted {
			list[i].Ceiling = list[i].withoutTools()
		}
		p.Ceiling = p.Ceiling.NarrowedBy(list[i].Ceiling)
	}
	for _, f := range list {
		p.Files = append(p.Files, f.Path)
		if f.Defaults != nil {
			p.Defaults = append(p.Defaults, Defaults{File: f.Path, Flags: f.Defaults, Trusted: f.trusted})
		}
	}
	if p.Ceiling != nil {
		p.Ceiling = p.Ceiling.from(origin)
	}
	return p, nil
}

// String describes which files apply.
func (p *ForPeople) String() string {
	if len(p.Files) == 0 {
		return "no " + CeilingFile + " here or above"
	}
	return strings.Join(p.Files, ", which narrows ")
}

// FindCeiling makes the ceiling from every CeilingFile in dir and above it, each of which narrows those above;
// nil if there is none. It fails on a file that it can't parse exactly. Unlike LoadForPeople, it ignores which
// files the user trusts.
func FindCeiling(dir string) (*Ceiling, error) {
	list, err := findCeilings(Trust{}, dir)
	var c *Ceiling
	for i := len(list) - 1; i >= 0; i-- {
		c = c.NarrowedBy(list[i].Ceiling)
	}
	return c, err
}
