package session

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/record"
)

// A session's steps and commands return the files in /out, as runs do. The files stay in the machine, so unitask
// returns only new or changed ones.

// outBox tracks a session's files in /out.
type outBox struct {
	held chan struct{}     // held while new files are collected
	seen map[outStamp]bool // files that were already returned, or can't be
}

// outStamp identifies a version of a file: its name, mode, size and time.
type outStamp [16]byte

func stampOf(e supervisor.File) outStamp {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %o %d %d", e.Path, e.Mode, e.Size, e.ModTime.UnixNano()))
	return outStamp(sum[:])
}

// Limits on the inspected entries.
const (
	maxOutEntries = 4 * 1000 // more than a run's artifacts
	maxOutList    = 4 << 20  // bytes of their list
	outDepth      = "32"     // of folders
)

func newOutBox() outBox { return outBox{held: make(chan struct{}, 1), seen: map[outStamp]bool{}} }

// kept encodes the stamps of returned files for the process that resumes the session; restore reads them.
func (o *outBox) kept() (stamps []byte) {
	for stamp := range o.seen {
		stamps = append(stamps, stamp[:]...)
	}
	return stamps
}

func (o *outBox) restore(stamps []byte) {
	for stamp := range slices.Chunk(stamps[:min(len(stamps), maxOutEntries*len(outStamp{}))], len(outStamp{})) {
		if len(stamp) == len(outStamp{}) {
			o.seen[outStamp(stamp)] = true
		}
	}
}

// collect collects the files in /out after a step or command. Later failures of the guest do not fail the step.
func (x *stepping) collect(ctx context.Context) error {
	s, most := x.s, x.res.Policy.Effective.MaxArtifacts
	if most <= 0 || ctx.Err() != nil {
		return nil
	}
	if x.released {
		done, err := s.useRunning(ctx)
		switch {
		case errors.Is(err, errPaused): // the next step returns them
			return nil
		case err != nil:
			x.miss(err)
			return nil
		}
		defer done()
	}
	if !s.client.Out() {
		return nil
	}
	timed, cancel := s.clocks.start(ctx, s.manager.Engine.Grace)
	defer cancel()
	to := x.rec.Artifacts(most, s.redactor)
	left, err := s.artifacts.take(timed, s.client, to, most)
	if e := to.Close(err == nil && left == nil); e != nil && err == nil {
		err = e
	}
	x.res.Artifacts, x.res.ArtifactsRefused = to.Kept, to.Refused
	if left != nil && ctx.Err() == nil {
		x.miss(left)
	}
	if errors.Is(err, record.ErrEnough) {
		return nil
	}
	return err
}

// miss notes that not all of /out came.
func (x *stepping) miss(why error) {
	x.res.ArtifactsRefused = append(x.res.ArtifactsRefused,
		record.Refusal{Path: program.OutDir, Reason: "not all of it came: " + why.Error(), Missed: true})
}

// take copies the new files. left explains why the guest has not sent all of them; err is an error of the record.
func (o *outBox) take(ctx context.Context, from *supervisor.Client, to *record.Artifacts, most int64,
) (left, err error) {
	select {
	case o.held <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx), nil
	}
	defer func() { <-o.held }()
	text, err := from.File(ctx, nil, maxOutList, "list", program.OutDir, outDepth)
	if ofFile(err) { // the folder is gone or not readable
		return nil, nil
	}
	if err != nil {
		return err, nil
	}
	list, more := supervisor.Entries(text, maxOutEntries)
	if more {
		left = fmt.Errorf("it has more than %d files and folders", maxOutEntries)
	}
	slices.SortFunc(list, func(a, b supervisor.File) int { return strings.Compare(a.Path, b.Path) })
	there := map[outStamp]bool{}
	stopped := false
	for _, e := range list {
		name, below := strings.CutPrefix(e.Path, program.OutDir+"/")
		if !below || e.Mode.IsDir() {
			continue
		}
		stamp := stampOf(e)
		if o.seen[stamp] {
			there[stamp] = true
			continue
		}
		if stopped {
			continue
		}
		done, why, failed := fetch(ctx, from, to, e, name, most)
		if done {
			there[stamp] = true
		}
		if why != nil || failed != nil {
			err, stopped = failed, true
		}
		if why != nil {
			left = why
		}
	}
	for stamp := range o.seen { // the rest of the list may contain it
		if more && len(there) < maxOutEntries {
			there[stamp] = true
		}
	}
	o.seen = there
	return left, err
}

// fetch copies one file. done means that this version need not be sent again; why and failed are like take's.
func fetch(
	ctx context.Context,
	from *supervisor.Client,
	to *record.Artifacts,
	e supervisor.File,
	name string,
	most int64,
) (done bool, why, failed error) {
	if e.Mode.IsRegular() && e.Size > to.Left() {
		return e.Size > most, nil, to.Large(name)
	}
	if err := to.Begin(e.Mode.Type(), e.Mode.Perm(), name); err != nil || !e.Mode.IsRegular() {
		return err == nil, nil, err
	}
	sink := &sink{to: to}
	err := from.FileTo(ctx, nil, sink, "read", e.Path, "0", fmt.Sprint(e.Size))
	switch {
	case sink.err != nil:
		return false, nil, sink.err
	case ofFile(err): // it can't be read, or is gone
		to.Cut()
	case err != nil:
		return false, err, nil
	}
	return true, nil, nil
}

// ofFile reports whether an error is about a file in the guest, not about its reader.
func ofFile(err error) bool {
	return errors.As(err, new(syscall.Errno)) && !errors.As(err, new(*supervisor.StartError))
}

// sink receives the bytes of a file, and remembers its first error.
type sink struct {
	to  *record.Artifacts
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	if s.err = s.to.Data(p); s.err != nil {
		return 0, s.err
	}
	return len(p), nil
}
