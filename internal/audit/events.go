package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Event is an entry in the form of CloudEvents 1.0 (its JSON format). Source and ID together identify one entry:
// the log, and the line in it.
type Event struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Time        time.Time       `json:"time"`
	Subject     string          `json:"subject,omitempty"`
	ContentType string          `json:"datacontenttype"`
	Data        json.RawMessage `json:"data"` // the entry
}

const (
	// EventSource begins an event's source; a hash of the log's first line follows.
	EventSource = "urn:unitask:audit:"
	eventType   = "unitask." // and the entry's kind
)

// Kind returns the entry's kind.
func (e *Event) Kind() string { return strings.TrimPrefix(e.Type, eventType) }

// Line returns the entry's number in its log, from 1 on; 0 if the event is not from such a log.
func (e *Event) Line() int64 {
	n, _ := strconv.ParseInt(e.ID, 10, 64)
	return n
}

// Source returns the source of the log's events, "" if it has none yet, and their number.
func (l Log) Source() (source string, lines int64, err error) {
	if lines, err = l.Len(); err != nil || lines == 0 {
		return "", 0, err
	}
	first := errors.New("the first line is read")
	if err := l.Read(func(_ int64, line []byte) error {
		source = sourceOf(line)
		return first
	}); !errors.Is(err, first) {
		return "", 0, err
	}
	return source, lines, nil
}

func sourceOf(firstLine []byte) string {
	sum := sha256.Sum256(firstLine)
	return EventSource + hex.EncodeToString(sum[:8])
}

// Events returns a log's entries as events, in order.
type Events struct {
	log    Log
	source string
	given  int64 // lines
}

// Events begins with the log's first entry.
func (l Log) Events() *Events { return &Events{log: l} }

// Next calls each with the events of new entries, except the first after ones.
func (e *Events) Next(after int64, each func(event []byte) error) error {
	first := errors.New("the first line is read")
	if err := e.log.Read(func(_ int64, line []byte) error {
		source := sourceOf(line)
		if e.source != "" && e.source != source {
			return errors.New("the log is another one now")
		}
		e.source = source
		return first
	}); !errors.Is(err, first) {
		return err
	}
	return e.log.ReadFrom(max(e.given, after), func(n int64, line []byte) error {
		var entry Entry
		if err := json.Unmarshal(line, &entry); err != nil || entry.Kind == "" {
			return fmt.Errorf("line %d is no entry: `unitask audit verify` says more", n+1)
		}
		event, err := json.Marshal(Event{SpecVersion: "1.0", ID: strconv.FormatInt(n+1, 10), Source: e.source,
			Type: eventType + string(entry.Kind),
			Time: entry.Time, Subject: entry.Run, ContentType: "application/json", Data: line})
		if err != nil {
			return err
		}
		if err := each(event); err != nil {
			return err
		}
		e.given = n + 1
		return nil
	})
}
