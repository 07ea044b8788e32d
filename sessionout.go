package unitask

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest/session"
	"github.com/unitask/unitask/record"
)

// What steps and commands of a session leave in /out comes back with each, as a run's does. It stays there, so only what
// is new or was changed since is taken.

// outBox is what a session has in /out.
type outBox struct {
	held chan struct{}       // by who takes what is new
	seen map[string]outStamp // by the path below; what is there and has come back, or was refused
	old  time.Time           // what was changed before this has come back from another process's machine, or from what this one was forked from
}

// outStamp is what a file that was changed has another of.
type outStamp struct {
	mode     fs.FileMode
	size     int64
	modified time.Time
}

// Bounds of what is looked at.
const (
	maxOutEntries = 4 * 1000 // more than a run's artifacts
	maxOutList    = 4 << 20  // bytes of their list
	outDepth      = "32"     // of folders
)

func newOutBox() outBox { return outBox{held: make(chan struct{}, 1), seen: map[string]outStamp{}} }

// collect takes what a step or a command has left in /out.
func (x *stepping) collect(ctx context.Context) error {
	s, most := x.s, x.res.Policy.Effective.MaxArtifacts
	if most <= 0 || ctx.Err() != nil || !s.client.Out() {
		return nil
	}
	timed, cancel := s.clocks.start(ctx, s.rt.grace)
	defer cancel()
	to := x.rec.Artifacts(most, s.redactor)
	more, err := s.out.take(timed, s.client, to)
	if e := to.Close(err == nil); e != nil && err == nil {
		err = e
	}
	x.res.Artifacts, x.res.ArtifactsRefused = to.Kept, to.Refused
	if more {
		x.res.ArtifactsRefused = append(x.res.ArtifactsRefused, record.Refusal{Path: outDir, Reason: fmt.Sprintf("has more than %d files and folders", maxOutEntries)})
	}
	switch over := (*SessionError)(nil); {
	case errors.Is(err, record.ErrEnough):
		return nil
	case err != nil && ctx.Err() == nil && (timed.Err() != nil || errors.As(err, &over)): // the step has ended all the same
		x.res.ArtifactsRefused = append(x.res.ArtifactsRefused, record.Refusal{Path: outDir, Reason: "not all of it came: " + err.Error()})
		return nil
	}
	return err
}

// take hands over what is new. more says that there is more than is looked at.
func (o *outBox) take(ctx context.Context, from *session.Client, to *record.Artifacts) (more bool, err error) {
	select {
	case o.held <- struct{}{}:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	defer func() { <-o.held }()
	text, err := from.File(ctx, nil, maxOutList, "list", outDir, outDepth)
	if errors.As(err, new(syscall.Errno)) { // it is gone, or is no folder that can be read
		return false, nil
	}
	if err != nil {
		return false, err
	}
	list, more := session.Entries(text, maxOutEntries)
	slices.SortFunc(list, func(a, b session.Entry) int { return strings.Compare(a.Path, b.Path) })
	there := map[string]outStamp{}
	defer func() { o.seen = there }()
	for _, e := range list {
		name, below := strings.CutPrefix(e.Path, outDir+"/")
		if !below || e.Mode.IsDir() {
			continue
		}
		stamp := outStamp{e.Mode, e.Size, e.ModTime}
		was, seen := o.seen[name]
		if seen && was == stamp || !seen && e.ModTime.Before(o.old) {
			there[name] = stamp
			continue
		}
		if err := to.Begin(e.Mode.Type(), e.Mode.Perm(), name); err != nil {
			return more, err
		}
		if e.Mode.IsRegular() {
			err := from.FileTo(ctx, nil, data(to.Data), "read", e.Path, "0", fmt.Sprint(e.Size))
			if errors.As(err, new(syscall.Errno)) { // it can't be read, or is gone
				to.Cut()
			} else if err != nil {
				return more, err
			}
		}
		there[name] = stamp
	}
	return more, nil
}

// data is a writer to what is begun.
type data func([]byte) error

func (f data) Write(p []byte) (int, error) {
	if err := f(p); err != nil {
		return 0, err
	}
	return len(p), nil
}
