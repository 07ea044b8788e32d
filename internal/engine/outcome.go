package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/guest"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/internal/stopclock"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// CollectGrace is how much longer than its time limit a run may last while its artifacts are sent. So code that ends
// just in time loses nothing. A guest that lies about its end wins that much. The default's 64 MiB take some 4 s under
// TCG.
const CollectGrace = 15 * time.Second

// collect receives what the code left in /out, until the deadline. If some of it is missing, the
// result says so, without an error.
func collect(ctx context.Context, deadline time.Time, conn *guest.Conn, to *record.Artifacts, res *run.Result) error {
	timed, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	err := conn.Collect(timed, to, to.Left())
	if e := to.Close(err == nil); e != nil && err == nil {
		err = e
	}
	slices.SortFunc(to.Kept, func(a, b record.Artifact) int { return strings.Compare(a.Path, b.Path) })
	res.Artifacts, res.ArtifactsRefused = to.Kept, to.Refused
	if ctx.Err() == nil && (errors.Is(err, guest.ErrGone) || timed.Err() != nil) {
		res.ArtifactsRefused = append(res.ArtifactsRefused,
			record.Refusal{Path: program.OutDir, Reason: "not all of it came: " + err.Error(), Missed: true})
		return nil
	}
	if errors.Is(err, record.ErrEnough) {
		return nil
	}
	return err
}

// SetEnd writes the code's own end into the result.
func SetEnd(r *run.Result, l *language.Language, end guest.End, stderrTail string) {
	if r.ProcessesRefused = end.Refused; end.Refused > 0 {
		h := run.Hint{Kind: run.HintProcesses, Text: fmt.Sprintf("the code may have %d processes and threads at once, and "+
			"%d more were refused: --max-processes gives more", r.Policy.Effective.MaxProcesses, end.Refused)}
		h.Ask("maxProcesses")
		r.Hints = append(r.Hints, h)
	}
	switch {
	case end.OOM || l.OutOfMemory(end.Signal, stderrTail):
		r.Outcome, r.ExitCode, r.OOM = run.OutcomeOOM, run.ExitOOM, true
		if l.MemoryHint != "" {
			r.Hints = append(r.Hints, run.Hint{Kind: run.HintMemory, Text: l.MemoryHint})
		}
		r.Error = outOfMemory(r.MemoryMB)
	case end.Signal != 0:
		r.Outcome, r.ExitCode, r.Error = run.OutcomeSignaled, run.ExitSignal+end.Signal,
			fmt.Sprintf("the code was ended by signal %d", end.Signal)
	default:
		r.Outcome, r.ExitCode = run.OutcomeExited, end.Code
	}
}

// classify turns an error into the outcome that it means; it returns nil for a
// time-out, which is a result.
func (x *Execution) classify(ctx context.Context, err error) error {
	res := x.Res
	if errors.Is(err, failure.ErrRetry) {
		return err
	}
	defer x.hintKernel()
	var failed failure.Failure
	op := "run"
	if errors.As(err, &failed) {
		op, err = failed.Op, failed.Err
	}
	var gone *run.GuestError
	switch {
	case errors.Is(err, stopclock.ErrTimeout):
		res.Outcome, res.ExitCode, res.TimedOut = run.OutcomeTimeout, run.ExitTimeout, true
		res.Error = fmt.Sprintf("time limit of %g s reached; --timeout gives more", res.Policy.Effective.Timeout.Seconds())
		x.hint("") // it may have waited for a host
		return nil
	case ctx.Err() != nil && !x.kept.ended():
		res.Outcome, res.ExitCode = run.OutcomeCancelled, run.ExitCancelled
		return failure.Cancelled(ctx)
	case failure.Unread(err) != nil:
		res.Outcome, res.ExitCode = run.OutcomeCancelled, run.ExitCancelled
		return failure.Unread(err)
	case errors.As(err, &gone):
		res.Outcome, res.ExitCode = run.OutcomeCrashed, run.ExitHost
		return err
	}
	res.Outcome, res.ExitCode = run.OutcomeFailed, run.ExitHost
	if errors.As(err, new(*guest.ContentError)) {
		op = "files"
	}
	if x.diskIsFull() && !errors.Is(err, syscall.ENOSPC) {
		return failure.Host("disk", fmt.Errorf("%w: UNITASK_HOME is %s; the first that failed for it: %w", syscall.ENOSPC,
			x.engine.Home, err))
	}
	return failure.Host(op, err)
}

// minRoom is the least room, in bytes, of a disk that does not count as full: a machine's files are larger.
const minRoom = 64 << 10

// diskIsFull reports whether the disk of the home, or of its records, has no room. Then any failure of the host counts
// as caused by it: QEMU is killed when a page of its memory file finds no block.
func (x *Execution) diskIsFull() bool {
	if errors.Is(x.Rec.Err(), syscall.ENOSPC) {
		return true
	}
	for _, dir := range []string{x.engine.Home, x.Rec.Dir()} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && (int64(st.Bavail)*int64(st.Bsize) < minRoom || st.Files > 0 && st.Ffree == 0) {
			return true
		}
	}
	return false
}

// outOfMemory returns the Result.Error of code that needed more memory than it had.
func outOfMemory(memoryMB int) string {
	return fmt.Sprintf("out of memory: the code needed more than its %d MiB; --memory gives more", memoryMB)
}
