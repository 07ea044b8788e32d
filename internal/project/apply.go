package project

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff"

	"github.com/unitask/unitask/internal/changes"
	"github.com/unitask/unitask/internal/export"
)

// ConflictEnding ends the name of a file with the session's text. If session and host changed the same lines, it lies
// beside the host's file.
const ConflictEnding = ".conflict"

// Proposal is what would change in the project's folder.
type Proposal struct {
	Files     []changes.File
	Left      []export.Left // what stays as it is
	Conflicts []string      // files that both sides changed
	Merged    []string      // the same, with changes of both
}

// ErrFolder means that the project's folder is not there any more.
var ErrFolder = errors.New("the project can't be changed")

// proposing makes a Proposal.
type proposing struct {
	*Report
	Proposal
	brought *Manifest
	root    *os.Root
	paths   []string
}

// Propose proposes the changes for the project's folder, with the changes that the folder's user made since the session
// got it. paths are the paths that the user named.
func (r *Report) Propose(b *Manifest, paths []string) (*Proposal, error) {
	root, err := changes.OpenDir(r.Host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	defer root.Close()
	p := &proposing{Report: r, brought: b, root: root, paths: paths}
	for i := range r.Changes {
		if err := p.one(i); err != nil {
			return nil, err
		}
	}
	return &p.Proposal, nil
}

func (p *proposing) leave(name, reason string) {
	p.Left = append(p.Left, export.Left{Path: name, Reason: reason})
}

func (p *proposing) one(i int) error {
	c := p.Changes[i]
	named := Named(c, p.paths)
	switch status := c.Status(); {
	case c.After != nil && c.After.Kind == IsLink:
		p.leave(c.Path, "it is a link in the session, and links are not written")
	case c.After != nil && c.After.Kind == IsOther:
		p.leave(c.Path, "it is a pipe, a socket or a device in the session")
	case status == Deleted:
		return p.remove(c.Path, c.Before, named)
	case status == Mode:
		p.leave(c.Path, "only its executable bit changed, which stays as it is here")
	case !c.Sent:
		p.leave(c.Path, fmt.Sprintf("has more than %d MiB", MaxFile>>20))
	case !named && export.Barred(c.Path) != "":
		p.leave(c.Path, export.Barred(c.Path))
	case !named && (status == Added || status == Renamed) && export.RunByTools(c.Path):
		p.leave(c.Path, "tools run a file of that name because it is there: name it to write it")
	case !named && c.After.Exec && !c.Before.isExec():
		p.leave(c.Path, "it can be executed in the session: name it to write it, without that right")
	default:
		if c.After.Exec && !c.Before.isExec() {
			p.leave(c.Path+", its right to be executed", "no file becomes executable")
		}
		left := len(p.Left)
		if err := p.write(i, named); err != nil || c.From == "" {
			return err
		}
		if len(p.Left) > left || p.same(c.Path, c.From) { // the new file is not written
			return nil
		}
		return p.remove(c.From, c.Before, named || Named(Change{Path: c.From}, p.paths))
	}
	return nil
}

// same reports whether two names lead to one file here, as on a disk that ignores case.
func (p *proposing) same(a, b string) bool {
	one, errA := p.root.Lstat(a)
	other, errB := p.root.Lstat(b)
	return errA == nil && errB == nil && os.SameFile(one, other)
}

func (s *State) isExec() bool { return s != nil && s.Exec }

// there returns the digest of the host's file, "" for none; ok is false if it was left out.
func (p *proposing) there(name string) (digest, text string, isText, ok bool, err error) {
	f, st, err := changes.OpenFile(p.root, name)
	if errors.Is(err, changes.ErrKind) {
		p.leave(name, err.Error())
		return "", "", false, false, nil
	}
	if err != nil || f == nil {
		return "", "", true, err == nil, err
	}
	defer f.Close()
	if digest, err = changes.DigestOf(f); err != nil || st.Size() > maxText {
		return digest, "", false, err == nil, err
	}
	all, err := io.ReadAll(io.NewSectionReader(f, 0, maxText+1))
	return digest, string(all), IsText(all), err == nil, err
}

// remove proposes to remove a file.
func (p *proposing) remove(name string, before *State, named bool) error {
	if before.Kind != IsFile {
		p.leave(name, "it is a link, and links are not removed")
		return nil
	}
	digest, _, _, ok, err := p.there(name)
	switch {
	case err != nil || !ok || digest == "":
		return err
	case digest != before.Digest:
		p.Conflicts = append(p.Conflicts, name)
		p.leave(name, "the session deleted it, and it was changed here since: it stays")
		return nil
	}
	p.Files = append(p.Files, changes.File{Path: name, Named: named, Was: &digest})
	return nil
}

// write proposes the new text of a file.
func (p *proposing) write(i int, named bool) error {
	c, base := p.Changes[i], ""
	if c.Before != nil && c.From == "" && c.Before.Kind == IsFile {
		base = c.Before.Digest
	}
	digest, text, isText, ok, err := p.there(c.Path)
	if err != nil || !ok || digest == c.After.Digest {
		return err
	}
	file := changes.File{Path: c.Path, Named: named, Was: &digest, Open: func() (io.ReadCloser, error) {
		return io.NopCloser(p.Text(i)), nil
	}}
	if digest == base {
		p.Files = append(p.Files, file)
		return nil
	}
	if digest != "" && base != "" && isText {
		before, after, both, err := p.Texts(i, p.brought)
		if err != nil {
			return err
		}
		if merged, ok := merge(before, text, after); both && ok {
			if merged == text {
				return nil
			}
			file.Open = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(merged)), nil }
			p.Files, p.Merged = append(p.Files, file), append(p.Merged, c.Path)
			return nil
		}
	}
	beside := c.Path + ConflictEnding
	there, _, _, ok, err := p.there(beside)
	if err != nil || !ok {
		return err
	}
	p.Conflicts = append(p.Conflicts, c.Path)
	p.leave(c.Path, "both sides changed it: the session's text goes to "+path.Base(beside))
	file.Path, file.Was = beside, &there
	p.Files = append(p.Files, file)
	return nil
}

// merge merges two texts that were made of one, by lines. Like git, it merges no changes that touch each other, unless
// they are the same.
func merge(base, ours, theirs string) (string, bool) {
	x, y := udiff.Lines(base, ours), udiff.Lines(base, theirs)
	var both []udiff.Edit
	for len(x) > 0 && len(y) > 0 {
		switch {
		case x[0] == y[0]:
			both, x, y = append(both, x[0]), x[1:], y[1:]
		case x[0].End < y[0].Start:
			both, x = append(both, x[0]), x[1:]
		case y[0].End < x[0].Start:
			both, y = append(both, y[0]), y[1:]
		default:
			return "", false
		}
	}
	text, err := udiff.Apply(base, slices.Concat(both, x, y))
	return text, err == nil
}
