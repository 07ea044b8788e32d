package session

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/export"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/internal/realpath"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// A session's project is a folder of the host that the code may change in its machine. The record has the digests and
// texts of what came, so that what changed can be shown, and brought back.

// ProjectPlace returns where a project's folder appears, for somebody who works in dir. A folder below dir appears at
// the same relative place below /work, any other folder as /work itself.
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
	p.Guest = cmp.Or(p.Guest, contract.WorkDir)
	if p.Branch == BranchPrefix {
		p.Branch += s.ID
	}
	host, err := realpath.Of(p.Host)
	if err != nil {
		return policy.Bad("dirs", fmt.Sprintf("%.200q", p.Host), "%v", err)
	}
	wanted := run.Mount{Host: host, Guest: p.Guest, Real: host, Project: true}
	if p.Branch != "" {
		wanted = run.Mount{Host: path.Join(host, project.GitFolder), Guest: path.Join(p.Guest, project.GitFolder)}
		wanted.Real = wanted.Host
		if st, err := os.Lstat(wanted.Host); err != nil || !st.IsDir() {
			return policy.Bad("dirs", fmt.Sprintf("%.200q", p.Host), "is no git repository with a .git folder of its own: "+
				"--mode copy brings its files")
		}
	}
	b, err := s.brings(ctx, Step{Dirs: []run.Mount{wanted}})
	if err != nil {
		return err
	}
	defer b.close()
	if len(b.granted.Dirs) != 1 {
		return policy.Bad("dirs", fmt.Sprintf("%.200q", p.Host), "is the project, and the ceiling does not allow it")
	}
	detail := map[string]any{"session": s.ID, "dirs": 1, "project": host, "branch": p.Branch}
	if err := s.manager.Engine.Journal.Log.Append(audit.Entry{Time: time.Now(), Kind: audit.PolicyChanged, Run: s.ID,
		Caller: s.holder().WithDefaults().Name, Detail: detail}); err != nil && s.Policy.Effective.Audit {
		return failure.Host("audit", err)
	}
	if p.Branch == "" {
		return s.sendProject(ctx, b, host, p)
	}
	return s.cloneProject(ctx, b, host, p)
}

// cloneProject sends a clone of a repository, of which b has the .git folder. Nothing of it stays on the host.
func (s *Session) cloneProject(ctx context.Context, b *bringing, host string, p ProjectRequest) error {
	way, err := s.manager.way()
	if err != nil {
		return err
	}
	tmp, lock, err := export.PartialFolder(way)
	if err != nil {
		return err
	}
	defer lock.Close()
	defer os.RemoveAll(tmp)
	repo, err := project.NewRepository(tmp, path.Join(p.Guest, project.GitFolder))
	if err != nil {
		return err
	}
	defer repo.Close()
	if err = b.set.Put(ctx, repo, hostfiles.All, func(hostfiles.Sent) {}); err == nil {
		err = repo.CheckOut(ctx, tmp, p.Branch)
	}
	if err != nil {
		return policy.Bad("dirs", fmt.Sprintf("%.200q", p.Host), "can't be cloned: %v", err)
	}
	found, err := hostfiles.Find(tmp, true)
	if err != nil {
		return err
	}
	defer found.Close()
	clone := &bringing{done: func() {}}
	defer clone.close()
	if err := clone.set.Add(found, p.Guest, hostfiles.MaxFolderBytes); err != nil {
		return policy.Bad("dirs", fmt.Sprintf("%.200q", p.Host), "can't be cloned: %v", err)
	}
	if err := program.RoomFor(&clone.set, image.Linux, s.Policy.Effective.MemoryMB); err != nil {
		return err
	}
	return s.sendProject(ctx, clone, host, p)
}

// makePlace makes a project's folder, for the code's user, if it is outside /work: there only root can.
func (s *Session) makePlace(ctx context.Context, place string) error {
	if place == contract.WorkDir || strings.HasPrefix(place, contract.WorkDir+"/") {
		return nil
	}
	defer func(may bool) { s.client.MayRoot = may }(s.client.MayRoot)
	s.client.MayRoot = true // for this command: the code has none yet
	const script = `mkdir -p -- "$1" && chown "$(stat -c %u:%g ` + contract.WorkDir + `)" "$1"`
	return s.folderCommand(ctx, "the project", supervisor.Exec{Root: true,
		Args: []string{"/bin/sh", "-c", script, "sh", place}})
}

// sendProject sends the files of a project, and records them.
func (s *Session) sendProject(ctx context.Context, b *bringing, host string, p ProjectRequest) (err error) {
	timed, cancel := s.clocks.start(ctx, min(folderTimeout, bringTime+b.set.Patience()))
	defer cancel()
	var rec *project.Recorder
	if err := s.makePlace(timed, p.Guest); err != nil {
		return err
	}
	b.through = func(to hostfiles.Guest) (hostfiles.Guest, error) {
		r, err := project.Record(to, s.recordDir(), host, p.Guest)
		rec = r
		return r, err
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
	list, err := s.listProject(timed, p.Guest, farMark)
	if err != nil {
		return err
	}
	if err := rec.Save(s.recordDir(), s.ID, p.Branch, list); err != nil {
		return err
	}
	_, err = s.brought.open(s.recordDir()) // the first review does not wait for it
	return err
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
	b, err := s.brought.open(s.recordDir())
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

// broughtOnce is what a session got, read once.
type broughtOnce struct {
	mu   sync.Mutex
	what *project.Manifest
}

func (o *broughtOnce) open(dir string) (_ *project.Manifest, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.what == nil {
		o.what, err = project.Open(dir)
	}
	return o.what, err
}

func (s *Session) changes(ctx context.Context, b *project.Manifest, paths []string, texts bool, w io.Writer) error {
	found, err := s.compareProject(ctx, b)
	if err != nil {
		return err
	}
	digests, contents, err := s.digests(ctx, b, found)
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
	if contents == nil {
		if err := s.eachFile(ctx, b, names, &atMost{kept, report.Bytes()}, "cat"); err != nil {
			return errors.Join(project.ErrMoving, err)
		}
	}
	for _, name := range names {
		if _, err := kept.Write(contents[name]); err != nil {
			return err
		}
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

// Few files are read one by one, and hashed here: to start a program in the machine takes longer.
const (
	fewFiles     = 16
	fewFileBytes = 16 << 20
)

// digests returns the digests of the files that may have changed, and the contents of a few.
func (s *Session) digests(ctx context.Context, b *project.Manifest, of *project.Changes,
) (map[string]project.Digest, map[string][]byte, error) {
	total := int64(0)
	for _, size := range of.Sizes {
		total += min(size, fewFileBytes+1)
	}
	if len(of.Wanted) > fewFiles || total > fewFileBytes {
		var sums bytes.Buffer
		out := &atMost{&sums, project.MaxListing}
		if err := s.eachFile(ctx, b, of.Wanted, out, "sha256sum", "-z"); err != nil {
			return nil, nil, errors.Join(project.ErrMoving, err)
		}
		digests, err := project.ParseDigests(sums.Bytes(), of.Wanted)
		return digests, nil, err
	}
	digests, contents := map[string]project.Digest{}, map[string][]byte{}
	for i, name := range of.Wanted {
		text, err := s.ReadFile(ctx, path.Join(b.Guest, name), 0, of.Sizes[i]+1)
		if err == nil && int64(len(text)) != of.Sizes[i] {
			err = fmt.Errorf("%s: its size is another one", name)
		}
		if err != nil {
			return nil, nil, errors.Join(project.ErrMoving, err)
		}
		sum := sha256.Sum256(text)
		digests[name], contents[name] = sum[:], text
	}
	return digests, contents, nil
}

// compareProject lists the project, a second time with everything if folders have moved or the clock was set back.
func (s *Session) compareProject(ctx context.Context, b *project.Manifest) (*project.Changes, error) {
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
func (s *Session) eachFile(ctx context.Context, b *project.Manifest, names []string, out io.Writer,
	command ...string) error {
	if len(names) == 0 {
		return nil
	}
	var list bytes.Buffer
	for _, name := range names {
		list.WriteString("./" + name + "\x00")
	}
	return s.folderCommand(ctx, "the project", supervisor.Exec{Dir: b.Guest, Stdin: &list, Stdout: out,
		Args: append(append([]string{"/usr/bin/xargs", "-0"}, command...), "--")})
}
