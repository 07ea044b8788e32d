package fleet

import (
	"io"
	"regexp"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/unitask/unitask"
)

// maxMessage bounds an event's text, in bytes.
const maxMessage = 2000

// event publishes an event of the worker.
func (o *outlet) event(e unitask.Event) {
	switch e.Kind {
	case unitask.EventRecord, unitask.EventStore: // of the worker's own records
		return
	}
	o.send("event", 0, []byte(string(e.Kind)+" "+e.Message))
}

// take passes on a message's content; changed means that the entry must be read. A message of an unknown attempt can't
// be used before the entry was read.
func (s *submission) take(msg *nats.Msg) (changed bool) {
	if !published(msg) {
		return false
	}
	attempt, err := strconv.Atoi(msg.Header.Get(headAttempt))
	if err != nil || attempt < s.attempt {
		return false
	}
	stream := msg.Header.Get(headStream)
	if attempt > s.attempt {
		return true
	}
	switch stream {
	case "changed":
		return true
	case "event":
		s.tell(msg.Data)
	case nameStdout:
		s.print(stream, s.run.Stdout, msg)
	case nameStderr:
		s.print(stream, s.run.Stderr, msg)
	}
	return false
}

// print passes on output without gaps: after a gap it waits for the report.
func (s *submission) print(stream string, to io.Writer, msg *nats.Msg) {
	offset, err := strconv.ParseInt(msg.Header.Get(headOffset), 10, 64)
	if err != nil || s.lag[stream] || offset > s.have[stream] {
		s.lag[stream] = true
		return
	}
	skip := s.have[stream] - offset
	if offset < 0 || skip >= int64(len(msg.Data)) {
		return
	}
	n, err := to.Write(msg.Data[skip:])
	s.have[stream] += int64(n)
	if err != nil {
		s.broken = err
	}
}

// maxEvents bounds the events of a run, which are passed to a terminal or a client at once.
const maxEvents = 1000

// eventForm is the form of an event's kind.
var eventForm = regexp.MustCompile(`^[a-zA-Z.]{1,32}$`)

// tell passes an event to the submitter's caller.
func (s *submission) tell(text []byte) {
	if s.events++; s.events > maxEvents {
		return
	}
	for i, c := range text {
		if c == ' ' && eventForm.Match(text[:i]) {
			message := string(text[i+1:])
			if len(message) > maxMessage { // a cut value would not be found
				message = "(too long)"
			}
			s.run.Events(unitask.Event{Kind: unitask.EventKind(text[:i]), Message: message})
			return
		}
	}
}
