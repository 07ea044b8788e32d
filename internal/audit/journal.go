package audit

import "time"

// Journal writes events of a home into its log. With a nil OnError, errors are dropped.
type Journal struct {
	Log
	OnError func(error)
}

// Change logs a change to the home: images, packages.
func (j *Journal) Change(kind Kind, detail map[string]any) {
	j.Write(Entry{Time: time.Now(), Kind: kind, Detail: detail})
}

// Write appends an entry, and calls OnError if that fails.
func (j *Journal) Write(e Entry) {
	if err := j.Append(e); err != nil && j.OnError != nil {
		j.OnError(err)
	}
}
