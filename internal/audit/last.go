package audit

import (
	"encoding/json"
	"errors"
	"slices"
	"time"
)

// Line is an entry of the log, with its line's number, from 1.
type Line struct {
	Line int64 `json:"line"`
	Entry
	Detail json.RawMessage `json:"detail,omitempty"`
}

// Malformed is the kind of a line that is not an entry.
const Malformed Kind = "malformed"

// KindNames returns the kinds that lines of the log can have, sorted.
func KindNames() []string {
	list := []string{string(Malformed)}
	for _, kind := range Kinds {
		list = append(list, string(kind))
	}
	slices.Sort(list)
	return list
}

// Filter selects lines of the log; the zero value of a field selects all.
type Filter struct {
	Kind       Kind
	Run, Owner string
	Since      time.Time
}

func (f Filter) matches(e *Entry) bool {
	return (f.Kind == "" || e.Kind == f.Kind) && (f.Run == "" || e.Run == f.Run) &&
		(f.Owner == "" || e.Caller == f.Owner) && !e.Time.Before(f.Since)
}

// errEnough ends the reading of lines.
var errEnough = errors.New("enough lines")

// Last returns the last entries that a filter selects, in order, at most limit. It reads the lines from one number,
// from 0, up to another.
func (l Log) Last(f Filter, from, to int64, limit int) ([]Line, error) {
	list := []Line{}
	err := l.ReadFrom(from, func(n int64, line []byte) error {
		if n >= to {
			return errEnough
		}
		e := Line{}
		if json.Unmarshal(line, &e) != nil {
			e = Line{Entry: Entry{Kind: Malformed}}
		}
		if e.Line = n + 1; !f.matches(&e.Entry) {
			return nil
		}
		if list = append(list, e); len(list) > 2*limit {
			list = append(list[:0], list[len(list)-limit:]...)
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return list[max(0, len(list)-limit):], err
}
