package record

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"unicode"
)

// CopyArtifacts copies artifacts of a run into a folder of the user's. Their names are
// the untrusted code's choice, so the folder's own files are safe from them:
//
//   - what exists stays as it is, unless replace says otherwise; then a file is replaced
//     in one step, and so is a link, which is never followed;
//   - no name with a component that begins with a dot is copied (.git/hooks/pre-commit,
//     .envrc, .unitask.toml): such files are read and run by other programs;
//   - no link in the folder is followed;
//   - a copy is not executable.
//
// It returns what stayed in the record alone, and why. The error is that of a write.
func (s *Store) CopyArtifacts(id string, list []Artifact, dir string, replace bool) (left []Refusal, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	c := copying{store: s, id: id, replace: replace}
	for _, a := range list {
		reason, err := c.copy(a.Path, root)
		if err != nil {
			return left, fmt.Errorf("copy %q to %s: %w", a.Path, dir, err)
		}
		if reason != "" {
			left = append(left, Refusal{a.Path, reason})
		}
	}
	return left, nil
}

// copying is one call of CopyArtifacts.
type copying struct {
	store   *Store
	id      string
	replace bool
	made    []madeFile
}

// madeFile is a copy, by its name and by what the file system says it is.
type madeFile struct {
	name string
	info fs.FileInfo
}

// copy copies one artifact, or says why not.
func (c *copying) copy(name string, root *os.Root) (reason string, err error) {
	if reason := barred(name); reason != "" {
		return reason, nil
	}
	from, err := c.store.OpenArtifact(c.id, name)
	if err != nil {
		return "", err
	}
	defer from.Close()
	parts := strings.Split(name, "/")
	dir := root
	for _, part := range parts[:len(parts)-1] {
		sub, err := enter(dir, part)
		if dir != root {
			dir.Close()
		}
		if err != nil {
			return plainError(err).Error(), nil
		}
		dir = sub
	}
	if dir != root {
		defer dir.Close()
	}
	base := path.Base(name)
	to, err := dir.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	tmp := ""
	if errors.Is(err, fs.ErrExist) {
		if reason := c.mayReplace(dir, base); reason != "" {
			return reason, nil
		}
		tmp = ".unitask-" + c.id
		_ = dir.Remove(tmp)
		to, err = dir.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	}
	if err != nil {
		return plainError(err).Error(), nil
	}
	_, err = io.Copy(to, from)
	info, e := to.Stat()
	if err = errors.Join(err, e, to.Close()); err == nil && tmp != "" {
		err = dir.Rename(tmp, base)
	}
	if err != nil {
		if tmp == "" {
			tmp = base
		}
		_ = dir.Remove(tmp)
		return "", err
	}
	c.made = append(c.made, madeFile{name, info})
	return "", nil
}

// mayReplace says why what exists may not be replaced, or "".
func (c *copying) mayReplace(dir *os.Root, base string) string {
	there, err := dir.Lstat(base)
	if err != nil {
		return plainError(err).Error()
	}
	// Whether two names are one is the file system's to say: it may ignore case, or
	// Unicode's forms.
	for _, m := range c.made {
		if os.SameFile(m.info, there) {
			return fmt.Sprintf("the folder's file system takes its name for that of %q, which was copied", m.name)
		}
	}
	switch kind := there.Mode().Type(); {
	case kind != 0 && kind != fs.ModeSymlink:
		return "exists and is not a file"
	case !c.replace:
		return "exists; --out-replace replaces it"
	}
	return ""
}

// enter opens the folder name in dir, which is made if it is missing. A link is not
// followed, also one that takes the folder's place meanwhile.
func enter(dir *os.Root, name string) (*os.Root, error) {
	if err := dir.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	there, err := dir.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !there.IsDir() {
		return nil, fmt.Errorf("%q is there and is not a folder", name)
	}
	sub, err := dir.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	if now, err := sub.Stat("."); err != nil || !os.SameFile(there, now) {
		sub.Close()
		return nil, fmt.Errorf("%q was exchanged meanwhile", name)
	}
	return sub, nil
}

// barred says why no file of that name is copied, or "".
func barred(name string) string {
	for part := range strings.SplitSeq(name, "/") {
		// HFS+ ignores characters without width: U+200C before ".git" is ".git" to it
		// (git's CVE-2014-9390).
		seen := strings.TrimLeftFunc(part, func(r rune) bool {
			return unicode.In(r, unicode.Cf, unicode.Cc, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
		})
		switch {
		case strings.HasPrefix(seen, "."):
			return "a name that begins with a dot is not copied"
		case shortName(strings.TrimRight(seen, ". ")): // GIT~1 is .git, and so is "GIT~1.....": what ends a name there is dropped
			return "a name of the form NAME~1, which FAT and NTFS give to other files too, is not copied"
		}
	}
	return ""
}

// shortName says that a name has the form that FAT and NTFS give to short ones: up to
// eight characters that end in ~ and a digit, and an extension of up to three.
func shortName(name string) bool {
	stem, ext, _ := strings.Cut(name, ".")
	head, digits, ok := strings.Cut(stem, "~")
	return ok && head != "" && digits != "" && strings.Trim(digits, "0123456789") == "" && len(stem) <= 8 && len(ext) <= 3
}
