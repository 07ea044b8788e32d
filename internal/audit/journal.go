package audit

import "time"

// Journal writes what becomes of a home into its log. The zero OnError drops errors.
type Journal struct {
	Log
	OnError func(error)
}

// Change writes down what became of the home: images, packages.
func (j *Journal) Change(kind Kind, detail map[string]any) {
	j.Write(Entry{Time: time.Now(), Kind: kind, Detail: detail})
}

// Write appends an entry, and tells OnError if that fails.
func (j *Journal) Write(e Entry) {
	if err := j.Append(e); err != nil && j.OnError != nil {
		j.OnError(err)
	}
}
