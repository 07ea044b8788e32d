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

// Fleet runs on other hosts what was granted on this one; package fleet implements it. The rest
// of a run stays here: its ceiling, record, streams and artifacts.
type Fleet interface {
	// Run returns when the run or ctx has ended; its error is like Runtime.Run's. The engine ignores
	// the result's streams, artifacts and total duration. Any number may run at once.
	Run(ctx context.Context, run *FleetRun) (*run.Result, error)
}

// FleetRun is a run for a Fleet.
type FleetRun struct {
	ID     string // of its record here
	Caller string // that it is for
	// Request asks for exactly what was granted here. Its paths of this host mean nothing. Secrets
	// have their values.
	Request run.Request
	// Inputs are the granted files and folders of this host, opened.
	Inputs *hostfiles.Set
	// Image is the run's container image or custom image here, which the other host may lack; nil if there is none.
	Image  *catalog.Shipped
	Colors string // IO.Colors
	Stdin  io.Reader
	// Stdout and Stderr receive the code's output, once and in order, and bound it.
	Stdout, Stderr io.Writer
	Events         func(run.Event)

	x              *Execution
	stdout, stderr *bounded.Stream
	artifacts      *record.Artifacts
	worker         string          // that reports this run
	decided        int             // lines of its netlog
	decidedBytes   int             // of them in the record
	uses           map[string]bool // pairs of a secret and a host that the worker named
	disk           func() (io.ReadCloser, error)
}

// maxFleetConsole bounds, in bytes, the console that a worker may add to a record.
const maxFleetConsole = 4 << 20

// runElsewhere runs it on the fleet, as Execution.run does here.
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
		x.Res.Artifacts = nil // files that did not arrive are not listed
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

// narrowed returns this host's grants, without those that a worker's ceiling has cut by the worker's report. The result
// is never more than this host's grants, since a replay asks for it again. It keeps only hosts that both name.
func narrowed(here, there policy.Effective) policy.Effective {
	if there.MemoryMB == 0 { // nothing was granted there: it did not run
		return here
	}
	here.MemoryMB, here.OutputBytes = less(here.MemoryMB, there.MemoryMB), less(here.OutputBytes, there.OutputBytes)
	here.Timeout, here.MaxProcesses = less(here.Timeout, there.Timeout), less(here.MaxProcesses, there.MaxProcesses)
	here.AllowNetAny = here.AllowNetAny && there.AllowNetAny
	here.AllowNet, here.AllowTCP = both(here.AllowNet, there.AllowNet), both(here.AllowTCP, there.AllowTCP)
	if kernel := image.Kernel(there.Kernel); here.Kernel == "" && (kernel == image.Linux || kernel == image.Nanos) {
		here.Kernel = there.Kernel
	}
	return here
}

// less returns the smaller bound; 0 or less there means no bound.
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

// Again tells that another worker repeats the run from its beginning. Its output so far leaves the
// record and the result; what went to IO.Stdout can't be taken back.
func (r *FleetRun) Again(why string) {
	r.x.Rec.Restart()
	for _, c := range []*bounded.Stream{r.stdout, r.stderr} {
		c.Restart(r.x.Granted.OutputBytes)
	}
	r.x.Res.Retried = r.x.said(why)
	r.Events(run.Event{Kind: run.EventRetry, Message: why})
}

// Machine writes the worker's description of the machine into the record, without any other text.
func (r *FleetRun) Machine(text json.RawMessage) {
	var m record.Machine
	if len(text) > 64<<10 || nesting.Check(text, 16, 10_000) != nil {
		return
	}
	var held vmm.Jail
	if json.Unmarshal(text, &m) != nil || len(m.Jail) > 0 && json.Unmarshal(m.Jail, &held) != nil {
		return
	}
	if len(m.Jail) > 0 { // only known members: a repeated name would hide a value
		m.Jail, _ = json.Marshal(held)
	}
	clean, _ := r.x.Redactor.Marshal(m)
	var known record.Machine
	if json.Unmarshal(clean, &known) == nil {
		r.x.Rec.Machine = &known
	}
}

// Console writes the guest's console into the record.
func (r *FleetRun) Console(from io.Reader) error {
	plain := r.x.Redactor.Writer(r.x.Rec.Console())
	_, err := io.Copy(plain, io.LimitReader(from, maxFleetConsole))
	return errors.Join(err, plain.Close())
}

// Artifact receives a file of /out. This host's grants limit it, whatever the worker says. A file that can't be read to
// its end is not kept.
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

// notElsewhere returns an error for what a run on a fleet can't have, since its machine is on another host.
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
	case len(streams.Tools) > 0:
		what = "tools of the program"
	default:
		return nil
	}
	return policy.Bad("fleet", "with "+what, "does not go to another host: run it on this one")
}

// NotAsked returns the error if a request or a ceiling wants questions about connections. A run on a fleet
// asks nobody: the person is here, and the machine is not.
func NotAsked(granted policy.Effective) error {
	if len(granted.Tools) > 0 {
		return policy.Bad("tools", granted.Tools[0], "works on the host of the run's caller: run this here, without a fleet")
	}
	if len(granted.Ask) == 0 {
		return nil
	}
	return policy.Bad("ask", granted.Ask[0].String(),
		"can't be asked about from another host: allow it (allowNet), or run this here, without a fleet")
}
