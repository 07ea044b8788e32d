package unitask

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/session"
	"github.com/unitask/unitask/hostfiles"
	"github.com/unitask/unitask/policy"
)

// Files and folders of the host in a session. Its code runs in /work, and relative paths lead there: what lies below the
// working directory comes below /work.

// SessionMount is a mount as a session has it that is asked for from a folder of the host. What lies in that folder, and
// has no path of its own inside, comes below /work by the same relative path.
func SessionMount(m Mount, dir string) Mount {
	if m.Host == "" {
		return m
	}
	if !filepath.IsAbs(m.Host) {
		m.Host = filepath.Join(dir, m.Host)
	}
	if rel, err := filepath.Rel(dir, m.Host); err == nil && m.Guest == "" && filepath.IsLocal(rel) {
		m.Guest = path.Join(contract.WorkDir, filepath.ToSlash(rel))
	}
	return m
}

// inWork are the mounts of a request whose relative paths are this process'.
func inWork(mounts []Mount) ([]Mount, error) {
	var list []Mount
	for _, m := range mounts {
		if !filepath.IsAbs(m.Host) {
			dir, err := os.Getwd()
			if err != nil {
				return nil, fmt.Errorf("find the working folder: %w: change to one that exists", err)
			}
			m = SessionMount(m, dir)
		}
		list = append(list, m)
	}
	return list, nil
}

// bringing is what a step brings along.
type bringing struct {
	set        hostfiles.Set
	neighbours []Neighbour
	granted    policy.Effective
	denials    []policy.Denial
}

// brings holds what a step brings against the session's ceiling. Close its set.
func (s *Session) brings(step Step) (b *bringing, err error) {
	b = &bringing{neighbours: step.Neighbours, denials: []policy.Denial{}}
	if len(step.Files)+len(step.Dirs)+len(step.Neighbours) == 0 {
		return b, nil
	}
	if err := checkNeighbours(step.Neighbours, contract.WorkDir+"/."); err != nil {
		return b, err
	}
	if err := s.hasCommands("files of the host for a step, which takes commands,"); err != nil {
		return b, err
	}
	req := Request{Kernel: s.Kernel, MemoryMB: s.Policy.Effective.MemoryMB}
	if req.Files, err = inWork(step.Files); err == nil {
		req.Dirs, err = inWork(step.Dirs)
	}
	if err != nil {
		return b, err
	}
	if _, b.granted, b.denials, err = req.resolve(s.ceiling(), &b.set); err != nil {
		b.set.Close()
	}
	return b, err
}

// bring puts what a step brings into the machine, as the code's user, in place of what is there.
func (s *Session) bring(ctx context.Context, x *stepping, b *bringing) error {
	x.res.Policy.Denials = b.denials
	if b.set.Count()+len(b.neighbours) == 0 {
		return nil
	}
	x.res.Policy.Effective.Files, x.res.Policy.Effective.Dirs = b.granted.Files, b.granted.Dirs
	x.rec.Effective, _ = clean(s.redactor, x.res.Policy.Effective)
	from, to := io.Pipe()
	go func() {
		w := tar.NewWriter(to)
		err := b.set.Put(ctx, tarGuest{w}, hostfiles.All, func(hostfiles.Sent) {})
		for _, n := range b.neighbours {
			if err == nil {
				err = tarGuest{w}.Put(guest.File{Path: path.Join(contract.WorkDir, n.Name), Mode: 0o644, Size: int64(len(n.Content))}, strings.NewReader(n.Content))
			}
		}
		if err == nil {
			err = w.Close()
		}
		to.CloseWithError(err)
	}()
	defer from.Close()
	return s.folderCommand(ctx, "what the step brings", session.Exec{Args: []string{"/bin/tar", "-x", "-f", "-", "-C", "/"}, Stdin: from})
}

// tarGuest writes files as an archive of paths below the root.
type tarGuest struct{ *tar.Writer }

func (t tarGuest) Put(f guest.File, content io.Reader) error {
	h := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: int64(f.Mode.Perm()), ModTime: f.ModTime}
	if f.ModTime.IsZero() {
		h.ModTime = time.Now()
	}
	switch f.Mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, f.Target
	default:
		h.Typeflag, h.Size = tar.TypeReg, f.Size
	}
	if err := t.WriteHeader(h); err != nil || content == nil {
		return err
	}
	_, err := io.Copy(t, content)
	return err
}
