package run

import (
	"github.com/unitask/unitask/machine"
)

// EventKind says what an Event is about.
type EventKind = machine.EventKind

const (
	EventImage    EventKind = "image"               // parts are fetched, an image is built
	EventAccel              = machine.EventAccel    // an accelerator was tried and does not work
	EventFallback           = machine.EventFallback // TCG takes hardware's place, for the first time
	EventRetry              = machine.EventRetry    // a boot did not come up and is tried again
	EventRecord   EventKind = "record"              // the run has an id: Message
	EventFiles    EventKind = "files"               // how far the files that the run brings have come, twice a second if that takes long
	EventStarted  EventKind = "started"             // the code has started
	EventStore    EventKind = "store"               // old runs were removed to keep the store within its bound
	EventJail     EventKind = "jail"                // this host refuses a layer that matters much
	EventKept     EventKind = "kept"                // the guest has crashed; how its machine can be joined, and for how long
	EventCapture  EventKind = "capture"             // the capture has ended before the run, and why
	EventNetwork  EventKind = "network"             // the network was cut before the run's end, and why
)

// Event tells what a run, or the runtime in the background, is doing. IO.Events and
// Options.Events say which goroutine calls them.
type Event struct {
	Kind    EventKind
	Message string // one line for people
	// RunID is "" before the run has an id, and for events that belong to no run.
	RunID string
}
