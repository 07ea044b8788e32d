package run

import (
	"github.com/unitask/unitask/machine"
)

// EventKind is the kind of an Event.
type EventKind = machine.EventKind

const (
	EventImage    EventKind = "image"               // parts are fetched, an image is built
	EventAccel              = machine.EventAccel    // unitask tried an accelerator, which does not work
	EventFallback           = machine.EventFallback // TCG replaces hardware for the first time
	EventRetry              = machine.EventRetry    // a boot failed, and unitask tries again
	EventRecord   EventKind = "record"              // the run has an id: Message
	EventTransfer EventKind = "transfer"            // Done of Total bytes are here of what the last EventImage fetches
	EventFiles    EventKind = "files"               // progress of the run's files, twice a second
	EventStarted  EventKind = "started"             // the code has started
	EventStore    EventKind = "store"               // old runs were removed to keep the store within its bound
	EventJail     EventKind = "jail"                // this host lacks an important layer of the jail
	EventKept     EventKind = "kept"                // the guest has crashed; how to join its machine, and for how long
	EventCapture  EventKind = "capture"             // the capture has ended before the run, and why
	EventNetwork  EventKind = "network"             // the network was cut before the run's end, and why
)

// Event reports what a run, or the runtime in the background, is doing. IO.Events and Options.Events document
// which goroutine calls them.
type Event struct {
	Kind    EventKind
	Message string // one line for people
	// RunID is "" before the run has an id, and for events that belong to no run.
	RunID string
	// Done and Total are bytes of an EventTransfer, which has no message.
	Done, Total int64
}
