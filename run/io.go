package run

import (
	"context"
	"io"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask/guest"
)

// KeepTime bounds how long a machine is kept after a crash. Meanwhile the machine uses its memory, and the caller
// of the run waits.
const KeepTime = 10 * time.Minute

// Keep makes a run boot its machine and keep it when its guest crashes. A crash is a kernel panic, a lost agent, or a
// fault that QEMU reports. The machine is then stopped, without a network, and waits for consoles to join it
// (attach.Client.Join). It ends when its time is up, when a console releases it, or with the context.
type Keep struct {
	// Time bounds how long the machine is kept; 0 means ten minutes, which is the maximum.
	Time time.Duration
	// WithSecrets allows the run to have secrets: whoever joins the machine can read them.
	WithSecrets bool
}

// Approver answers a question, or returns "" for no answer. It must return soon after its context has ended.
type Approver = func(context.Context, Question) Verdict

// IO holds a run's streams and callbacks.
type IO struct {
	// Stdin is the code's standard input; nil means empty. The code sees an error of Stdin's Read as the end of
	// input. If the code then ends with 0, Run returns that error, as os/exec does. When Run has returned, others
	// can read the unread rest of a file or a connection, without a read deadline.
	Stdin io.Reader
	// Stdout and Stderr receive the streams while the code runs. If one is nil, the Result collects the stream instead.
	Stdout, Stderr io.Writer
	// Terminal, if not nil, gives the code a terminal instead of its streams: Stdin is the keyboard input, and
	// all output goes to Stdout. It needs the linux kernel and a fresh process, and a replay does not have it.
	Terminal *Terminal
	// Colors is the value of FORCE_COLOR if the Env does not set colours; "" sets nothing.
	Colors string
	// Capture, if not nil, receives a pcap of the guest's network.
	Capture io.Writer
	// Out, if not "", is an existing folder of the host that artifacts are copied into. Result.ArtifactsLeft
	// lists those that were not copied (record.Store.CopyArtifacts).
	Out string
	// OutReplace allows copies to replace files that exist in Out.
	OutReplace bool
	// Tools are MCP servers of this program, which the code imports by these names. A ceiling with clientTools = false
	// forbids them, else none restricts them. Nobody reviews their lists, and Request.Tools does not name them. Each has
	// the limits of a ceiling's table that sets none: 1000 calls, a minute for each, results of 4 MiB. Their handlers get
	// arguments that the code chose.
	Tools map[string]*mcp.Server
	// ToolsOf, if not "", is the id of a recorded run whose calls of tools are answered again, in place of the servers.
	ToolsOf string
	// Keep, if not nil, stops the machine and keeps it for a debugger when its guest crashes; Run returns when the machine
	// is gone.
	Keep *Keep
	// Approve, if not nil, asks somebody about a connection (Request.Ask), one at a time, while the machine is
	// stopped. It returns "" for no answer. It must return soon after its context has ended: the time for an
	// answer is over, or Runtime.Approve answered.
	Approve func(context.Context, Question) Verdict
	// Events, if not nil, receives this run's events instead of Options.Events. The goroutine that called Run calls it,
	// before Run returns; if it blocks, so does the run.
	Events func(Event)
}

// Terminal describes the code's terminal.
type Terminal struct {
	// Name is TERM's value, if the Env has none; "" means xterm-256color.
	Name string
	Size TerminalSize
	// Resized, if not nil, delivers each later size.
	Resized <-chan TerminalSize
}

// TerminalSize is a size in characters.
type TerminalSize = guest.Size
