package unitask

import (
	"os"

	"github.com/unitask/unitask/internal/catalog"
	"github.com/unitask/unitask/internal/doctor"
	"github.com/unitask/unitask/internal/engine"
	"github.com/unitask/unitask/internal/history"
	"github.com/unitask/unitask/internal/language"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/internal/program"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/run"
	"github.com/unitask/unitask/session"
)

// Types of requests, results and callbacks, from package run. Ceilings and records: see packages policy and record.
type (
	Request          = run.Request          // the code, and what it asks for
	Mount            = run.Mount            // a file or folder of the host
	InlineFile       = run.InlineFile       // a small file beside the code
	Kernel           = run.Kernel           // a guest kernel: Linux or Nanos
	Arch             = run.Arch             // an architecture: AMD64 or ARM64
	Accel            = run.Accel            // an accelerator: Auto, KVM, HVF or TCG
	Caller           = run.Caller           // whom a run is for
	IO               = run.IO               // a run's streams and callbacks
	Terminal         = run.Terminal         // the code's terminal
	TerminalSize     = run.TerminalSize     // in characters
	Keep             = run.Keep             // keeps a crashed machine for a debugger
	Event            = run.Event            // what a run, or the runtime, is doing
	EventKind        = run.EventKind        // what an Event is about
	Question         = run.Question         // what somebody is asked: may the code connect?
	Verdict          = run.Verdict          // the answer
	Approver         = run.Approver         // answers questions
	Approval         = run.Approval         // a question that was asked, and the answer
	PolicyChange     = run.PolicyChange     // changes the network of what is current
	Result           = run.Result           // the outcome of a run
	ResultJSON       = run.ResultJSON       // its wire form
	Hint             = run.Hint             // what the code lacked, and what provides it
	Outcome          = run.Outcome          // how a run ended
	Durations        = run.Durations        // the times of a run's phases
	DurationsJSON    = run.DurationsJSON    // their wire form
	Policy           = run.Policy           // what a run was granted and denied
	InstalledPackage = run.InstalledPackage // a package that a run had
)

// The errors of a run, for errors.As and errors.Is:
//
//	*policy.FieldError   a field of the request is invalid
//	*JailError           the host's jail lacks a layer or limit that this run requires
//	*HostError           unitask or the host failed
//	*GuestError          the machine or its kernel died, or the guest broke the protocol
//	*BusyError           a fleet's queue, or a session's, is full: nothing ran
//	*LostError           the worker that ran it was lost, and it may not be run twice
//	*SessionError        the session has ended
//	ErrClosed            the runtime was closed before
//	context.Cause(ctx)   the caller stopped it
type (
	HostError    = run.HostError
	GuestError   = run.GuestError
	LostError    = run.LostError
	JailError    = run.JailError
	BusyError    = run.BusyError
	SessionError = run.SessionError
)

// Limits and defaults of a request.
const (
	MaxCode       = run.MaxCode       // bytes of code
	DefaultDirMax = run.DefaultDirMax // bytes of a folder
)

// Kernels, architectures and accelerators.
const (
	Linux = run.Linux
	Nanos = run.Nanos
	AMD64 = run.AMD64
	ARM64 = run.ARM64
	Auto  = run.Auto
	KVM   = run.KVM
	HVF   = run.HVF
	TCG   = run.TCG
)

// How a run was requested.
const (
	ViaCLI  = run.ViaCLI
	ViaMCP  = run.ViaMCP
	ViaHTTP = run.ViaHTTP
	ViaAPI  = run.ViaAPI
)

// LocalOwnerPrefix is the prefix of owners that are local users.
const LocalOwnerPrefix = run.LocalOwnerPrefix

// What an Event is about.
const (
	EventImage    = run.EventImage
	EventAccel    = run.EventAccel
	EventFallback = run.EventFallback
	EventRetry    = run.EventRetry
	EventRecord   = run.EventRecord
	EventTransfer = run.EventTransfer
	EventFiles    = run.EventFiles
	EventStarted  = run.EventStarted
	EventStore    = run.EventStore
	EventJail     = run.EventJail
	EventKept     = run.EventKept
	EventCapture  = run.EventCapture
	EventNetwork  = run.EventNetwork
)

// Verdicts of questions.
const (
	Deny        = run.Deny
	AllowOnce   = run.AllowOnce
	AllowRun    = run.AllowRun
	AllowAlways = run.AllowAlways
)

// How a run ended.
const (
	OutcomeExited      = run.OutcomeExited
	OutcomeSignaled    = run.OutcomeSignaled
	OutcomeTimeout     = run.OutcomeTimeout
	OutcomeOOM         = run.OutcomeOOM
	OutcomeUndelivered = run.OutcomeUndelivered
	OutcomeCancelled   = run.OutcomeCancelled
	OutcomeCrashed     = run.OutcomeCrashed
	OutcomeFailed      = run.OutcomeFailed
	OutcomeBusy        = run.OutcomeBusy
	OutcomeLost        = run.OutcomeLost
)

// Exit codes of a run, as `unitask run` returns them.
const (
	ExitUsage       = run.ExitUsage
	ExitUndelivered = run.ExitUndelivered
	ExitTimeout     = run.ExitTimeout
	ExitHost        = run.ExitHost
	ExitCancelled   = run.ExitCancelled
	ExitOOM         = run.ExitOOM
)

// Values of Result.Compiled.
const (
	CompiledCached = run.CompiledCached
	CompiledKept   = run.CompiledKept
)

// HostArch returns the architecture of this machine.
func HostArch() Arch { return run.HostArch() }

// ParseMount takes PATH, or PATH:/GUESTPATH.
func ParseMount(s string) Mount { return run.ParseMount(s) }

// ExitCode returns the exit code for what Run returned.
func ExitCode(res *Result, err error) int { return run.ExitCode(res, err) }

// LocalOwner returns the owner of a local user's runs: "local:" and the user's name, or the uid if it has no name.
func LocalOwner(uid int) string { return run.LocalOwner(uid) }

// Upstream resolves and dials the hosts that the policy allows.
type Upstream = netstack.Upstream

// Decision is a line of a run's netlog: what the code asked of the network, and the verdict.
type Decision = netstack.Decision

// Verdicts of decisions.
const (
	Denied  = netstack.Denied
	Allowed = netstack.Allowed
)

// PausedSession is a paused session that no process holds; its machine is on the disk.
type PausedSession = paused.Session

// PausedSessions returns the sessions of a home that no process holds, sorted by id. It removes expired ones.
func PausedSessions(home string) ([]PausedSession, error) { return paused.List(home) }

// FindPausedSession returns the session with an id. The error is a SessionError if it does not exist, its life is over,
// or a process holds it.
func FindPausedSession(home, id string) (PausedSession, error) { return paused.Find(home, id) }

// ForgetSession ends a session of a home that no process holds. The error is record.ErrRunning if a process holds it,
// and a SessionError if it does not exist.
func ForgetSession(home, id string) error { return paused.Forget(home, id) }

// PausedFiles opens a tar of the files that a session's folder had when the session was paused. Nothing has checked
// them. The error is a SessionError if no such session is paused, and fs.ErrNotExist if the pause has no files.
func PausedFiles(home, id string) (*os.File, error) { return paused.Files(home, id) }

// Types of History, from package history.
type (
	Summary      = history.Summary
	Filter       = history.Filter
	Inspection   = history.Inspection
	RecordedStep = history.RecordedStep
)

// Errors of History.
var (
	ErrState    = history.ErrState    // a Filter's status does not exist
	ErrPaused   = history.ErrPaused   // the record belongs to a paused session
	ErrOwner    = history.ErrOwner    // the record belongs to another owner
	ErrRedacted = history.ErrRedacted // parts of the record's request were redacted
)

// NetlogSchema is the version of a netlog's lines.
const NetlogSchema = history.NetlogSchema

// Languages lists the names of the languages that code may be in: the name of each, then its aliases.
func Languages() []string { return language.Names() }

// Images returns the names of the bundled images.
func Images() []string { return language.Images() }

// SessionImages returns the bundled images whose language can run steps in sessions.
func SessionImages() []string { return language.SessionImages() }

// Images, as Catalog returns them.
type (
	CustomImage  = catalog.Custom    // a custom image, as it was built
	ShippedImage = catalog.Shipped   // an image that another host has shipped
	ImageInfo    = catalog.ImageInfo // an image, as shown to models and people
)

// What Runtime.Doctor reports.
type (
	Report      = doctor.Report
	Check       = doctor.Check
	AccelReport = doctor.AccelReport
)

var GuestDir = program.GuestDir

// Types for debugging a machine, and for running on other hosts.
type (
	DebugOptions = engine.DebugOptions // configure Runtime.Debug
	Trace        = engine.Trace        // what Runtime.Trace records
	Fleet        = engine.Fleet        // runs requests on other hosts
	FleetRun     = engine.FleetRun     // a run that a fleet executes
)

// DefaultTraceBytes is the size limit of a trace if the caller sets none.
const DefaultTraceBytes = engine.DefaultTraceBytes

// Sessions, from package session.
type (
	Session        = session.Session    // a machine that runs several steps
	SessionRequest = session.Request    // starts one
	Step           = session.Step       // code for a session's interpreter
	Command        = session.Command    // a process in a session's machine
	Background     = session.Background // a command that runs beside steps
	Output         = session.Output     // what a background command printed
	Forward        = session.Forward    // a port of the machine that is reachable on the host
	SessionFile    = session.File       // an entry of a session's folder
	LeftOut        = session.LeftOut    // an entry of a folder that was not copied out, and why
)

// Limits of sessions.
const (
	MaxForks        = session.MaxForks        // sessions with a common origin that exist at once
	MaxForwarded    = session.MaxForwarded    // forwarded ports of one session
	MaxWaitingSteps = session.MaxWaitingSteps // steps that wait behind the current one
	MaxKeptOutput   = session.MaxKeptOutput   // bytes of a background command's output
	MaxKeptFiles    = session.MaxKeptFiles    // bytes of files that a session returns if it can't continue
	MaxSessionFile  = session.MaxFile         // bytes of one file to read or write
	MaxSessionList  = session.MaxList         // entries of a folder's listing
	MaxSessionValue = session.MaxValue        // bytes of a value that a step returns
)

// ValuesDir is the folder where steps leave values for each other.
const ValuesDir = session.ValuesDir

// ErrEdit means that the text to replace does not occur exactly once in the file.
var ErrEdit = session.ErrEdit

// SessionMount returns the mount of a file or folder that a step brings, with its place below dir.
func SessionMount(m Mount, dir string) Mount { return session.StepMount(m, dir) }

// OpenPaused decrypts the secret data that a paused session has on the disk, and SealPaused encrypts it.
func OpenPaused(home string, text []byte) ([]byte, error) { return session.OpenPaused(home, text) }

// SealPaused is the inverse of OpenPaused.
func SealPaused(home string, text []byte) ([]byte, error) { return session.SealPaused(home, text) }
