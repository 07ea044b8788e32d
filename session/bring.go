package session

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/internal/userdir"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/run"
)

// Files and folders of the host in a session. The code runs in /work, and relative paths begin there: files below
// the working directory on the host appear below /work.

// StepMount returns a mount for a session, as requested from a folder of the host. A path in that folder, without a
// guest path, is placed below /work at the same relative path.
func StepMount(m run.Mount, dir string) run.Mount {
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

// inWork resolves a request's mounts with relative paths, which begin at this process's working directory.
func inWork(mounts []run.Mount) ([]run.Mount, error) {
	var list []run.Mount
	for _, m := range mounts {
		if !filepath.IsAbs(m.Host) {
			dir, err := userdir.Working()
			if err != nil {
				return nil, err
			}
			m = StepMount(m, dir)
		}
		list = append(list, m)
	}
	return list, nil
}

// bringing is the set of files that a step adds.
type bringing struct {
	set         hostfiles.Set
	inlineFiles []run.InlineFile
	granted     policy.Effective
	denials     []policy.Denial
	done        func() // allows the session to be paused
	// through, if set, returns what passes the files on to the machine.
	through func(to hostfiles.Guest) (hostfiles.Guest, error)
}

func (b *bringing) close() {
	b.set.Close()
	b.done()
}

// brings checks a step's files against the session's ceiling. A paused session resumes first and reads its ceiling
// again. Only the running step opens files. Close the result.
func (s *Session) brings(ctx context.Context, step Step) (b *bringing, err error) {
	b = &bringing{inlineFiles: step.InlineFiles, denials: []policy.Denial{}, done: func() {}}
	if len(step.Files)+len(step.Dirs)+len(step.InlineFiles) == 0 {
		return b, nil
	}
	if err := program.CheckInlineFiles(step.InlineFiles, contract.WorkDir+"/."); err != nil {
		return nil, err
	}
	if err := s.hasCommands("files of the host for a step, which takes commands,"); err != nil {
		return nil, err
	}
	req := catalog.Request{Request: run.Request{Kernel: s.Kernel, MemoryMB: s.Policy.Effective.MemoryMB}}
	if req.Files, err = inWork(step.Files); err == nil {
		req.Dirs, err = inWork(step.Dirs)
	}
	if err == nil {
		b.done, err = s.use(ctx)
	}
	if err != nil {
		return nil, err
	}
	if _, b.granted, b.denials, err = program.Resolve(req, s.ceiling(), &b.set); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

// bringTime bounds the transfer of a step's files, in addition to their Patience.
const bringTime = time.Minute

// bring copies a step's files into the machine, as the code's user, and replaces existing ones.
func (s *Session) bring(ctx context.Context, x *stepping, b *bringing) error {
	x.res.Policy.Denials = b.denials
	if len(b.granted.Files)+len(b.granted.Dirs) > 0 {
		x.res.Policy.Effective.Files, x.res.Policy.Effective.Dirs = b.granted.Files, b.granted.Dirs
		x.rec.Effective, _ = s.redactor.Marshal(x.res.Policy.Effective)
	}
	x.rec.Denials, _ = s.redactor.Marshal(b.denials)
	if err := s.auditBrought(x, b); err != nil {
		return err
	}
	if b.set.Count()+len(b.inlineFiles) == 0 {
		return nil
	}
	limit := min(folderTimeout, cmp.Or(s.manager.BringTime, bringTime)+b.set.Patience())
	timed, cancel := s.clocks.start(ctx, limit)
	defer cancel()
	err := b.send(timed, func(from io.Reader) error {
		return s.folderCommand(
			timed,
			"what the step brings",
			supervisor.Exec{Args: []string{"/bin/tar", "-x", "-f", "-", "-C", "/"}, Stdin: from},
		)
	})
	if errors.Is(err, stopclock.ErrTimeout) { // not the step's own time limit
		err = fmt.Errorf("copy what the step brings: the machine did not take it within %v", limit)
	}
	return err
}

// auditBrought logs the host's files that a step was granted, and its denials.
func (s *Session) auditBrought(x *stepping, b *bringing) error {
	a := runlog.New(s.manager.Engine.Journal.Log, x.rec, x.rec.Via, s.redactor, s.manager.Engine.Events)
	var list []audit.Entry
	if files, dirs := len(b.granted.Files), len(b.granted.Dirs); files+dirs > 0 {
		list = append(list, a.Entry(audit.PolicyChanged, map[string]any{"session": s.ID, "files": files, "dirs": dirs}))
	}
	if len(b.denials) > 0 {
		list = append(list, a.Denied(b.denials))
	}
	if len(list) > 0 {
		a.Write(list...)
	}
	return a.Missing(s.Policy.Effective)
}

// send passes the tar of a step's files to use. When it returns, nothing reads the set any more.
func (b *bringing) send(ctx context.Context, use func(io.Reader) error) error {
	from, to := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := b.pack(ctx, to)
		to.CloseWithError(err)
		packed <- err
	}()
	err := use(from)
	from.Close()
	var content *guest.ContentError
	if e := <-packed; errors.As(e, &content) &&
		!errors.As(err, new(*run.SessionError)) { // tar reports that the rest is missing
		return fmt.Errorf("copy what the step brings: %w", content)
	}
	return err
}

// packAtOnce is the size of the pieces in which a tar is sent: each takes a frame, and the machine's time.
const packAtOnce = 64 << 10

func (b *bringing) pack(ctx context.Context, to io.Writer) error {
	buffered := bufio.NewWriterSize(to, packAtOnce)
	w := hostfiles.NewArchive(buffered)
	var in hostfiles.Guest = w
	var err error
	if b.through != nil {
		in, err = b.through(w)
	}
	if err == nil {
		err = b.set.Put(ctx, in, hostfiles.All, func(hostfiles.Sent) {})
	}
	for _, n := range b.inlineFiles {
		if err == nil {
			f := guest.File{Path: path.Join(contract.WorkDir, n.Name), Mode: 0o644, Size: int64(len(n.Content))}
			err = w.Put(f, strings.NewReader(n.Content))
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(w.Close(), buffered.Flush())
}
