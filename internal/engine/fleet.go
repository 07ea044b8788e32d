package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/internal/nesting"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
	"github.com/unitask/unitask/vmm"
)

// Fleet runs on other hosts what was granted on this one; package fleet has it. Everything else
// of a run stays here: its ceiling, its record, its streams, its artifacts.
type Fleet interface {
	// Run returns when the run has ended, or when ctx has; its error is as Runtime.Run's. The
	// result's streams, artifacts and total duration are not looked at. Any number may run at once.
	Run(ctx context.Context, run *FleetRun) (*run.Result, error)
}

// FleetRun is a run as a Fleet gets it.
type FleetRun struct {
	ID     string // of its record here
	Caller string // whom it is for
	// Request asks for what was granted here, and nothing else; a path of the host in it means
	// nothing. Secrets have their values.
	Request run.Request
	// Inputs are the host's files and folders that were granted, opened.
	Inputs *hostfiles.Set
	// Image is the container image, or the user's own, that the run has here, which the other host may lack; nil is none.
	Image  *catalog.Shipped
	Colors string // IO.Colors
	Stdin  io.Reader
	// Stdout and Stderr take what the code prints, once and in order; they bound it.
	Stdout, Stderr io.Writer
	Events         func(run.Event)

	x              *Execution
	stdout, stderr *bounded.Stream
	artifacts      *record.Artifacts
	worker         string          // that says what follows
	decided        int             // lines of its netlog
	decidedBytes   int             // of them in the record
	uses           map[string]bool // pairs of a secret and a host that it named
	disk           func() (io.ReadCloser, error)
}

// maxFleetConsole bounds, in bytes, the console that a worker may add to a record.
const maxFleetConsole = 4 << 20

// runElsewhere has the fleet run it. It does for a run there what Execution.run does for one here.
func (x *Execution) runElsewhere(ctx context.Context, req catalog.Request, caller string) error {
	begin := time.Now()
	request, err := req.GrantedOnly(x.Granted)
	if err != nil {
		x.Res.Outcome, x.Res.ExitCode = run.OutcomeFailed, run.ExitHost
		return failure.Host("fleet", err)
	}
	stdout := bounded.NewStream(x.Granted.OutputBytes, x.Rec.Stdout(), x.streams.Stdout)
	stderr := bounded.NewStream(x.Granted.OutputBytes, x.Rec.Stderr(), x.streams.Stderr)
	plainOut, plainErr := x.Redactor.Writer(stdout), x.Redactor.Writer(stderr)
	remote := &FleetRun{ID: x.Rec.ID, Caller: caller, Request: request, Inputs: &x.Code.Inputs, Colors: x.streams.Colors,
		Stdin: x.streams.Stdin, Stdout: plainOut, Stderr: plainErr, x: x, stdout: stdout, stderr: stderr}
	remote.Events = x.saidEvent
	var res *run.Result
	if err = x.bringImage(remote, req); err == nil {
		res, err = x.engine.Fleet.Run(ctx, remote)
		err = x.saidError(err)
	}
	err = errors.Join(err, plainOut.Close(), plainErr.Close())
	x.Res.Outcome, x.Res.ExitCode = run.OutcomeFailed, run.ExitHost
	if res != nil {
		history.BoundSaidResult(res, x.Redactor)
		here := x.Res.Policy
		id, redacted, again := x.Res.RunID, x.Res.Redacted, x.Res.Retried
		*x.Res = *res
		x.Res.RunID, x.Res.Redacted, x.Res.Retried, x.Res.Policy.Ceiling = id, redacted, cmp.Or(again, res.Retried),
			here.Ceiling
		if res.Policy.Effective.MemoryMB == 0 { // nothing was granted there: it did not run
			x.Res.MemoryMB = here.Effective.MemoryMB
		}
		x.Res.Policy.Denials = append(slices.Clone(here.Denials), res.Policy.Denials...)
		x.Res.Policy.Effective = narrowed(here.Effective, res.Policy.Effective)
		x.Rec.Effective, _ = x.Redactor.Marshal(x.Res.Policy.Effective)
		x.Rec.Denials, _ = x.Redactor.Marshal(x.Res.Policy.Denials)
	}
	if remote.artifacts != nil {
		err = errors.Join(err, remote.artifacts.Close(true))
		x.Res.Artifacts, x.Res.ArtifactsRefused = remote.artifacts.Kept,
			append(remote.artifacts.Refused, x.Res.ArtifactsRefused...)
		slices.SortFunc(x.Res.Artifacts, func(a, b record.Artifact) int { return strings.Compare(a.Path, b.Path) })
	} else {
		x.Res.Artifacts = nil // what did not come is not there
	}
	x.Res.Stdout, x.Res.Stderr = stdout.Bytes(), stderr.Bytes()
	x.Res.Truncated = x.Res.Truncated || stdout.Truncated || stderr.Truncated
	if x.Res.Duration.Run == 0 {
		x.Res.Duration.Run = time.Since(begin)
	}
	if ctx.Err() != nil && err != nil {
		x.Res.Outcome, x.Res.ExitCode = run.OutcomeCancelled, run.ExitCancelled
		return failure.Cancelled(ctx)
	}
	return err
}

// narrowed returns what was granted here, less what a worker's ceiling has cut, as the worker says. It is never more:
// a replay asks for it again. Of hosts only those stay that both name.
func narrowed(here, there policy.Effective) policy.Effective {
	if there.MemoryMB == 0 { // nothing was granted there: it did not run
		return here
	}
	here.MemoryMB, here.OutputBytes = less(here.MemoryMB, there.MemoryMB), less(here.OutputBytes, there.OutputBytes)
	here.Timeout = less(here.Timeout, there.Timeout)
	here.AllowNetAny = here.AllowNetAny && there.AllowNetAny
	here.AllowNet, here.AllowTCP = both(here.AllowNet, there.AllowNet), both(here.AllowTCP, there.AllowTCP)
	if kernel := image.Kernel(there.Kernel); here.Kernel == "" && (kernel == image.Linux || kernel == image.Nanos) {
		here.Kernel = there.Kernel
	}
	return here
}

// less returns the smaller bound, where 0 or less there is none.
func less[N ~int | ~int64](here, there N) N {
	if there > 0 && (here <= 0 || there < here) {
		return there
	}
	return here
}

// both returns the entries that both lists have.
func both[R comparable](here, there []R) []R {
	return slices.DeleteFunc(slices.Clone(here), func(r R) bool { return !slices.Contains(there, r) })
}

// Again says that the run is made again from its beginning, on another worker: what it had
// printed goes out of the record and the result. What went to IO.Stdout can't be taken back.
func (r *FleetRun) Again(why string) {
	r.x.Rec.Restart()
	for _, c := range []*bounded.Stream{r.stdout, r.stderr} {
		c.Restart(r.x.Granted.OutputBytes)
	}
	r.x.Res.Retried = r.x.said(why)
	r.Events(run.Event{Kind: run.EventRetry, Message: why})
}

// Machine puts into the record what the worker says of the machine; text that is none is left out.
func (r *FleetRun) Machine(text json.RawMessage) {
	var m record.Machine
	if len(text) > 64<<10 || nesting.Check(text, 16, 10_000) != nil {
		return
	}
	var held vmm.Jail
	if json.Unmarshal(text, &m) != nil || len(m.Jail) > 0 && json.Unmarshal(m.Jail, &held) != nil {
		return
	}
	if len(m.Jail) > 0 { // only what we know of: a name that is there twice hides a value
		m.Jail, _ = json.Marshal(held)
	}
	clean, _ := r.x.Redactor.Marshal(m)
	var known record.Machine
	if json.Unmarshal(clean, &known) == nil {
		r.x.Rec.Machine = &known
	}
}

// Console puts the guest's console into the record.
func (r *FleetRun) Console(from io.Reader) error {
	plain := r.x.Redactor.Writer(r.x.Rec.Console())
	_, err := io.Copy(plain, io.LimitReader(from, maxFleetConsole))
	return errors.Join(err, plain.Close())
}

// Artifact takes a file that the code left in /out: it is held to what was granted here, whatever
// the worker says. One that can't be read to its end is not kept.
func (r *FleetRun) Artifact(name string, perm fs.FileMode, content io.Reader) error {
	if r.x.Granted.MaxArtifacts <= 0 {
		return nil
	}
	if r.artifacts == nil {
		r.artifacts = r.x.Rec.Artifacts(r.x.Granted.MaxArtifacts, r.x.Redactor)
	}
	if err := r.artifacts.Begin(0, perm, name); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := content.Read(buf)
		if e := r.artifacts.Data(buf[:n]); e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			r.artifacts.Cut()
			return err
		}
	}
}

// notElsewhere says what of a run a fleet can't have: its machine is on another host.
func notElsewhere(streams run.IO, purpose Purpose) error {
	what := ""
	switch {
	case purpose.build != nil:
		what = "the build of an image"
	case purpose != Purpose{}:
		what = "a debugger or a trace"
	case streams.Keep != nil:
		what = "a machine that is kept when it crashes"
	case streams.Capture != nil:
		what = "a capture"
	case streams.Terminal != nil:
		what = "a terminal"
	default:
		return nil
	}
	return policy.Bad("fleet", "with "+what, "does not go to another host: run it on this one")
}

// NotAsked says that a run on a fleet asks nobody about connections, whether its request or a ceiling
// wants it: who would answer is here, and the machine is not.
func NotAsked(granted policy.Effective) error {
	if len(granted.Ask) == 0 {
		return nil
	}
	return policy.Bad("ask", granted.Ask[0].String(),
		"can't be asked about from another host: allow it (allowNet), or run this here, without a fleet")
}
