package unitask

import "github.com/unitask/unitask/machine"

// EventKind says what an Event is about.
type EventKind = machine.EventKind

const (
	EventImage   EventKind = "image"            // parts are fetched, an image is built
	EventAccel             = machine.EventAccel // an accelerator was tried and does not work
	EventRetry             = machine.EventRetry // a boot did not come up and is tried again
	EventRecord  EventKind = "record"           // the run has an id: Message
	EventStarted EventKind = "started"          // the code has started
	EventCapture EventKind = "capture"          // the capture has ended before the run, and why
)

// Event tells what a run is doing. It is the only thing that goes upwards while
// a run is under way.
type Event struct {
	Kind    EventKind
	Message string // one line for people
}
