package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// Origin is where a ceiling comes from: what another process needs to make it again, of the files as they are by then.
type Origin struct {
	File string `json:"file,omitempty"` // that was read; with Dir that was named, if one was
	// Models says that it is on models' runs (LoadForModels), narrowed by the table of their caller (For).
	Models bool   `json:"models,omitempty"`
	Dir    string `json:"dir,omitempty"` // whose files hold (LoadForModels, LoadForPeople)
	Shared bool   `json:"shared,omitempty"`
}

// Origin is the ceiling's; nil where only the program that made it can.
func (c *Ceiling) Origin() *Origin {
	if c == nil || c.origin == nil {
		return nil
	}
	o := *c.origin
	return &o
}

// Ceiling makes the ceiling again: home is who asked's, and caller whom it is for.
func (o Origin) Ceiling(home, caller string) (*Ceiling, error) {
	if !o.Models && o.Dir != "" {
		p, err := LoadForPeople(home, o.Dir, o.File)
		if err != nil {
			return nil, err
		}
		return p.Ceiling, nil
	}
	if !o.Models {
		return ReadCeiling(o.File)
	}
	m, err := LoadForModels(home, o.Dir, o.File, o.Shared)
	if err != nil {
		return nil, err
	}
	return m.Ceiling.For(caller), nil
}

// from is the ceiling with another origin.
func (c *Ceiling) from(o *Origin) *Ceiling {
	own := *c
	own.origin = o
	return &own
}

// fromFile notes that a ceiling was read from a file.
func (c *Ceiling) fromFile(name string) (*Ceiling, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, &CeilingError{Path: name, Err: err}
	}
	return c.from(&Origin{File: abs}), nil
}

// tabled is the origin of a ceiling that is narrowed by the table of its caller, who has one name: who makes it again
// knows the first of several only, and would miss the table that another one has.
func (o *Origin) tabled(names []string) *Origin {
	if o == nil || !o.Models || len(names) != 1 {
		return nil
	}
	return o
}

// Digest is over what the ceiling means, with all that it narrows, "" for none: it is another one where one of the
// files has changed.
func (c *Ceiling) Digest() string {
	if c == nil {
		return ""
	}
	if c.over == nil {
		return c.digest()
	}
	sum := sha256.Sum256([]byte(c.digest() + c.over.Digest()))
	return "sha256:" + hex.EncodeToString(sum[:])
}
