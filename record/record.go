// Package record keeps what happened: one folder per run, written while it runs.
//
// A folder holds run.json (what was asked, what was given, how it ended), the code, stdout,
// stderr, netlog.jsonl (one line for each network decision), console.log (the serial port) and
// out (what the code left to come back). The process that runs it holds a lock; a record that
// says "running" but whose lock is free was interrupted.
//
// Folders are 0700 and files 0600. Everything is bounded: the streams by the caller, the rest
// here.
package record

import (
	"encoding/json"
	"time"
)

// SchemaVersion is the version of run.json; readers accept every version up to their own.
const SchemaVersion = 1

// Status is how far a run got.
type Status string

const (
	Running     Status = "running"
	Done        Status = "done"        // the code ran and ended, however
	Failed      Status = "failed"      // unitask or the host failed; Error says why
	Interrupted Status = "interrupted" // the process that ran it is gone
	Paused      Status = "paused"      // its machine lies on the disk: a session's
)

// Via says how a run was requested.
type Via string

const (
	ViaCLI  Via = "cli"  // the command line
	ViaMCP  Via = "mcp"  // MCP over stdin and stdout
	ViaHTTP Via = "http" // MCP over HTTP
	ViaAPI  Via = "api"  // the Go package

	ViaFleet Via = "fleet" // a fleet's queue, on a worker
)

// Record is run.json. Request, Effective and Denials are the policy package's,
// Result the root package's, kept as they were given.
type Record struct {
	SchemaVersion int        `json:"schemaVersion"`
	ID            string     `json:"id"`
	Status        Status     `json:"status"`
	Created       time.Time  `json:"created"`
	Finished      *time.Time `json:"finished,omitempty"`
	Owner         string     `json:"owner,omitempty"` // whom the run was for
	Via           Via        `json:"via,omitempty"`   // through what it was asked for
	CodeFile      string     `json:"codeFile"`        // its name in the folder
	// Session is the session that it is a step of; a session's own record names itself.
	Session string `json:"session,omitempty"`
	// Background says that it is a command that was left in the background of its session.
	Background bool `json:"background,omitempty"`
	// Parent is the session that a session was forked from.
	Parent    string          `json:"parent,omitempty"`
	Request   json.RawMessage `json:"request"`
	Effective json.RawMessage `json:"effective,omitempty"`
	Denials   json.RawMessage `json:"denials,omitempty"`
	Machine   *Machine        `json:"machine,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Drops     json.RawMessage `json:"networkDrops,omitempty"` // frames dropped, by kind
	// Redacted are the fields of the request that hold a secret, "code" among them: the
	// record has Redacted in its place, and can't be run again.
	Redacted []string `json:"redacted,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// Machine is the machine that a run ran on.
type Machine struct {
	Kernel        string `json:"kernel"`
	KernelVersion string `json:"kernelVersion"`
	Image         string `json:"image,omitempty"`   // its name: node, python
	Runtime       string `json:"runtime,omitempty"` // the version of the language's program
	Node          string `json:"node,omitempty"`    // Runtime in records that are older than Image
	Arch          string `json:"arch"`
	ImageDigest   string `json:"imageDigest"`
	Accelerator   string `json:"accelerator"`
	// WhySlow says why the accelerator is tcg and not hardware, where unitask chose it.
	WhySlow string `json:"whySlow,omitempty"`
	QEMU    string `json:"qemu"`
	// Jail says what held its process, as package vmm gives it: an object with two lists,
	// layers and limits, of objects: name; holds, a boolean; detail, what it is; and why,
	// where it does not hold.
	Jail     json.RawMessage `json:"jail,omitempty"`
	MemoryMB int             `json:"memoryMb"`
	Cloned   bool            `json:"cloned"` // of a template; else booted for this run
	Pooled   bool            `json:"pooled"` // and the clone stood ready
	// Template is the folder's name of the template that it was cloned from; "" where it was booted.
	Template string `json:"template,omitempty"`
	// Rehearsed is how many throw-away programs it had run before: what they use is compiled, and in the last
	// of a clone that stood ready translated, too. 0 is a first program in a new process.
	Rehearsed int `json:"rehearsed,omitempty"`
	// Debugged says that the machine was started for a debugger.
	Debugged bool `json:"debugged,omitempty"`
	// KeptUntil says until when the machine was kept for a debugger after its guest crashed.
	KeptUntil *time.Time `json:"keptUntil,omitempty"`
}
