package run

import (
	"context"
	"io"
	"time"

	"github.com/unitask/unitask/guest"
)

// KeepTime is the most that a machine is kept after a crash: it holds its memory, and
// whoever waits for the run.
const KeepTime = 10 * time.Minute

// Keep has a run boot its machine and keep it when its guest crashes: a kernel that gives up,
// an agent that is lost, a fault that QEMU reports. The machine is stopped, has lost its
// network, and waits for consoles to join it (attach.Client.Join). It ends when its time is up,
// when a console releases it, or with the context.
type Keep struct {
	// Time is how long; 0 is ten minutes, which is the most.
	Time time.Duration
	// WithSecrets lets the run have secrets: whoever joins the machine can read them.
	WithSecrets bool
}

// Approver answers a question, or has no answer: "". It must return soon after its context has ended.
type Approver = func(context.Context, Question) Verdict

// IO holds a run's streams and callbacks.
type IO struct {
	// Stdin is the code's standard input; nil is empty. An error of its Read is an end for the code; where
	// that ends with 0, it is Run's error, as os/exec has it. What the code leaves of a file or a connection
	// can be read by somebody else when Run has returned, without a read deadline.
	Stdin io.Reader
	// Stdout and Stderr receive the streams while the code runs. Where one is
	// nil, the stream is collected in the Result instead.
	Stdout, Stderr io.Writer
	// Terminal, if not nil, is a terminal that the code gets in the place of its streams:
	// Stdin is what is typed on it, all that it shows goes to Stdout. It takes the linux
	// kernel and a fresh process, and does not come back with a replay.
	Terminal *Terminal
	// Colors is FORCE_COLOR for code whose Env does not mention colours; "" is none.
	Colors string
	// Capture, if not nil, receives a pcap of the guest's network.
	Capture io.Writer
	// Out, if not "", is a folder of the host, which exists, that artifacts are copied
	// into. Result.ArtifactsLeft says which were not (record.Store.CopyArtifacts).
	Out string
	// OutReplace lets copies replace files that exist in Out.
	OutReplace bool
	// Keep, if not nil, has the machine stopped and kept for a debugger when its guest
	// crashes; Run returns when it is gone.
	Keep *Keep
	// Approve, if not nil, asks somebody about a connection (Request.Ask), one at a time, while
	// the machine stands still. It returns "" for no answer, and soon after its context has
	// ended: the time for an answer is over, or it came by Runtime.Approve.
	Approve func(context.Context, Question) Verdict
	// Events, if not nil, receives this run's events instead of Options.Events. It is called
	// from the goroutine that called Run, before Run returns; if it blocks, so does the run.
	Events func(Event)
}

// Terminal describes the code's terminal.
type Terminal struct {
	// Name is TERM's value, if the Env has none; "" is xterm-256color.
	Name string
	Size TerminalSize
	// Resized, if not nil, has each later size.
	Resized <-chan TerminalSize
}

// TerminalSize is in characters.
type TerminalSize = guest.Size
