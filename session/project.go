package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// A session's project is a folder of the host that the code may change in its machine. The record has the digests and
// texts of what came, so that what changed can be shown, and brought back.

// ProjectPlace returns where a project's folder appears, for somebody who works in dir: a folder below dir at the same
// relative place below /work, any other one as /work itself.
func ProjectPlace(host, dir string) string {
	if rel, err := filepath.Rel(dir, host); err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(filepath.Join(contract.WorkDir, rel))
	}
	return contract.WorkDir
}

// BranchPrefix begins the name of a clone's branch; a session without a name has its id behind it.
const BranchPrefix = "unitask/"

// bringProject copies the request's project into the new machine.
func (s *Session) bringProject(ctx context.Context, p ProjectRequest) error {
	if p.Host == "" {
		return nil
	}
	if p.Guest == "" {
		p.Guest = contract.WorkDir
	}
	wanted := run.Mount{Host: p.Host, Guest: p.Guest, Project: true}
	b, err := s.brings(ctx, Step{Dirs: []run.Mount{wanted}})
	if err != nil {
		return err
	}
	defer b.close()
	if len(b.granted.Dirs) != 1 {
		return policy.Bad("dirs", fmt.Sprintf("%.200q", p.Host), "is the project, and the ceiling does not allow it")
	}
	detail := map[string]any{"session": s.ID, "dirs": 1, "project": b.granted.Dirs[0].Real}
	if err := s.manager.Engine.Journal.Log.Append(audit.Entry{Time: time.Now(), Kind: audit.PolicyChanged, Run: s.ID,
		Caller: s.holder().WithDefaults().Name, Detail: detail}); err != nil && s.Policy.Effective.Audit {
		return failure.Host("audit", err)
	}
	dir := s.recordDir()
	timed, cancel := s.clocks.start(ctx, min(folderTimeout, bringTime+b.set.Patience()))
	defer cancel()
	var rec *project.Recorder
	b.through = func(to hostfiles.Guest) (hostfiles.Guest, error) {
		rec, err = project.Record(to, dir, b.granted.Dirs[0].Real, b.granted.Dirs[0].Guest)
		return rec, err
	}
	err = b.send(timed, func(from io.Reader) error {
		return s.folderCommand(timed, "the project",
			supervisor.Exec{Args: []string{"/bin/tar", "-x", "-f", "-", "-C", "/"}, Stdin: from})
	})
	if rec != nil {
		err = errors.Join(err, rec.Close())
	}
	if err != nil {
		return err
	}
	list, err := s.listProject(timed, b.granted.Dirs[0].Guest, farMark)
	if err != nil {
		return err
	}
	return rec.Save(dir, s.ID, "", list)
}

// farMark is a time before which everything happened.
const farMark = "99999999999"

// recordDir returns the folder of the session's record.
func (s *Session) recordDir() string { return s.manager.Engine.Runs.Path(s.ID, "") }

// listProject lists the files of a project's folder.
func (s *Session) listProject(ctx context.Context, guest, mark string) (*project.Listing, error) {
	var text bytes.Buffer
	out := &atMost{&text, project.MaxListing}
	err := s.folderCommand(ctx, "the project", supervisor.Exec{
		Args: []string{"/bin/sh", "-c", project.ListScript, "sh", guest, mark}, Stdout: out})
	if err != nil {
		return nil, err
	}
	return project.ParseListing(text.Bytes())
}

// projectTries is how often a project is read whose files change meanwhile.
const projectTries = 3

// Changes writes what the session changed in its project, at or below paths: a project.Report, and with texts also the
// new texts. The error is project.ErrNone if the session has no project.
func (s *Session) Changes(ctx context.Context, paths []string, texts bool, w io.Writer) error {
	b, err := project.Open(s.recordDir())
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		err := s.changes(ctx, b, paths, texts, w)
		if try == projectTries || !errors.Is(err, project.ErrMoving) {
			return err
		}
	}
}

func (s *Session) changes(ctx context.Context, b *project.Brought, paths []string, texts bool, w io.Writer) error {
	found, err := s.compareProject(ctx, b)
	if err != nil {
		return err
	}
	var sums bytes.Buffer
	if err := s.eachFile(ctx, b, found.Wanted, &atMost{&sums, project.MaxListing}, "sha256sum", "-z"); err != nil {
		return errors.Join(project.ErrMoving, err)
	}
	digests, err := project.ParseDigests(sums.Bytes(), found.Wanted)
	if err != nil {
		return err
	}
	report := project.Report{Session: s.ID, Host: b.Host, Branch: b.Branch, Ignored: found.Ignored,
		Changes: project.Select(found.End(digests), paths)}
	if !texts {
		return report.Write(w, strings.NewReader(""))
	}
	kept, err := s.manager.anonymousFile()
	if err != nil {
		return err
	}
	defer kept.Close()
	names := report.Send()
	if err := s.eachFile(ctx, b, names, &atMost{kept, report.Bytes()}, "cat"); err != nil {
		return errors.Join(project.ErrMoving, err)
	}
	size, err := kept.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if err := report.Check(io.NewSectionReader(kept, 0, size)); err != nil {
		return err
	}
	return report.Write(w, io.NewSectionReader(kept, 0, size))
}

// compareProject lists the project, a second time with everything if folders have moved or the clock was set back.
func (s *Session) compareProject(ctx context.Context, b *project.Brought) (*project.Changes, error) {
	list, err := s.listProject(ctx, b.Guest, b.Mark)
	if err != nil {
		return nil, err
	}
	found, err := b.Compare(list)
	if err != nil || !found.Again {
		return found, err
	}
	if list, err = s.listProject(ctx, b.Guest, "0"); err != nil {
		return nil, err
	}
	if found, err = b.Compare(list); err == nil && found.Again {
		err = project.ErrMoving
	}
	return found, err
}

// eachFile runs a command of the machine on files of the project.
func (s *Session) eachFile(ctx context.Context, b *project.Brought, names []string, out io.Writer,
	command ...string) error {
	if len(names) == 0 {
		return nil
	}
	var list bytes.Buffer
	for _, name := range names {
		list.WriteString("./" + name + "\x00")
	}
	args := []string{"/bin/sh", "-c", `cd -P -- "$1" && shift && exec xargs -0 "$@" --`, "sh", b.Guest}
	return s.folderCommand(ctx, "the project",
		supervisor.Exec{Args: append(args, command...), Stdin: &list, Stdout: out})
}
