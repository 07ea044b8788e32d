// Package record keeps a record of each run: one folder per run, written while it runs.
//
// A folder holds run.json (what was asked, what was given, how it ended), the code, stdout and stderr. It also holds
// netlog.jsonl (one line for each network decision), console.log (the serial port) and out (the artifacts). The process
// that runs it holds a lock. If a record says "running" and its lock is free, the run was interrupted.
//
// Folders have mode 0700 and files 0600. Everything has a limit: the caller limits the streams, this package the rest.
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
	Done        Status = "done"        // the code ran and ended, with any result
	Failed      Status = "failed"      // unitask or the host failed; Error explains why
	Interrupted Status = "interrupted" // the process that ran it is gone
	Paused      Status = "paused"      // the machine of a session is saved on the disk
)

// Via says how a run was requested.
type Via string

const (
	ViaCLI  Via = "cli"  // the command line
	ViaMCP  Via = "mcp"  // MCP over stdin and stdout
	ViaHTTP Via = "http" // MCP over HTTP
	ViaAPI  Via = "api"  // the Go package

	ViaFleet Via = "fleet" // a fleet's queue, on a worker
	ViaTools Via = "tools" // a run, for a server of its tools
)

// Record is run.json. Request, Effective and Denials come from package policy, Result from the root package; this
// package keeps them unchanged.
type Record struct {
	SchemaVersion int        `json:"schemaVersion"`
	ID            string     `json:"id"`
	Status        Status     `json:"status"`
	Created       time.Time  `json:"created"`
	Finished      *time.Time `json:"finished,omitempty"`
	Owner         string     `json:"owner,omitempty"` // for whom the run was made
	Via           Via        `json:"via,omitempty"`   // how it was requested
	CodeFile      string     `json:"codeFile"`        // its name in the folder
	// Session is the session of a step; a session's own record names itself.
	Session string `json:"session,omitempty"`
	// Background means that it is a background command of its session.
	Background bool `json:"background,omitempty"`
	// User is the machine's user of a session's command, if it names one.
	User string `json:"user,omitempty"`
	// Root means that a session's code may become its machine's root.
	Root bool `json:"root,omitempty"`
	// Parent is the session that a session was forked from.
	Parent    string          `json:"parent,omitempty"`
	Request   json.RawMessage `json:"request"`
	Effective json.RawMessage `json:"effective,omitempty"`
	Denials   json.RawMessage `json:"denials,omitempty"`
	// OwnTools are the embedding program's tools that the code could call: digests of their lists, by server.
	OwnTools map[string]string `json:"ownTools,omitempty"`
	Machine  *Machine          `json:"machine,omitempty"`
	Result   json.RawMessage   `json:"result,omitempty"`
	Drops    json.RawMessage   `json:"networkDrops,omitempty"` // frames dropped, by kind
	// Redacted lists the fields of the request that contained a secret, "code" among them. The record contains
	// the text Redacted instead, and can't be run again.
	Redacted []string `json:"redacted,omitempty"`
	Error    string   `json:"error,omitempty"`
	// Files are the other files of the folder as they were when the run ended, without the artifacts.
	Files []File `json:"files,omitempty"`
}

// Machine is the machine that a run ran on.
type Machine struct {
	Kernel        string `json:"kernel"`
	KernelVersion string `json:"kernelVersion"`
	Image         string `json:"image,omitempty"`   // its name: node, python
	Runtime       string `json:"runtime,omitempty"` // the version of the language's program
	Node          string `json:"node,omitempty"`    // Runtime in records older than Image
	Arch          string `json:"arch"`
	ImageDigest   string `json:"imageDigest"`
	Accelerator   string `json:"accelerator"`
	// WhySlow explains why the accelerator is tcg and not hardware, if unitask chose it.
	WhySlow string `json:"whySlow,omitempty"`
	QEMU    string `json:"qemu"`
	// Jail describes the jail of QEMU, as package vmm does: an object with two lists, layers and limits. Each entry has a
	// name; holds, a boolean; detail, a description; and why, if it does not hold.
	Jail     json.RawMessage `json:"jail,omitempty"`
	MemoryMB int             `json:"memoryMb"`
	Cloned   bool            `json:"cloned"` // from a template; otherwise booted for this run
	Pooled   bool            `json:"pooled"` // the clone was ready
	// Template is the folder name of the template that it was cloned from; "" if it booted.
	Template string `json:"template,omitempty"`
	// Rehearsed is the number of throw-away programs that the machine had run before. The code they use is
	// already compiled and, after the last rehearsal of a pooled clone, translated. 0 means a first program in a
	// new process.
	Rehearsed int `json:"rehearsed,omitempty"`
	// Debugged means that the machine was started for a debugger.
	Debugged bool `json:"debugged,omitempty"`
	// KeptUntil says until when the machine was kept for a debugger after its guest crashed.
	KeptUntil *time.Time `json:"keptUntil,omitempty"`
}
