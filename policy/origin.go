package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
)

// Origin is where a ceiling comes from. Another process can make the ceiling again from the current files.
type Origin struct {
	File string `json:"file,omitempty"` // the file that was read; with Dir, the file that the user named, if any
	// Models means that it limits models' runs (LoadForModels), narrowed by their caller's table (For).
	Models bool   `json:"models,omitempty"`
	Dir    string `json:"dir,omitempty"` // the folder whose files apply (LoadForModels, LoadForPeople)
	Shared bool   `json:"shared,omitempty"`
}

// Origin returns the ceiling's origin; nil if only the program that made it can make it again.
func (c *Ceiling) Origin() *Origin {
	if c == nil || c.origin == nil {
		return nil
	}
	o := *c.origin
	return &o
}

// Ceiling makes the ceiling again, with the requester's home, for a caller.
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

// from returns the ceiling with another origin.
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

// tabled returns the origin of a ceiling that its caller's table narrows, if the caller has one name. With
// several names, another process would know only the first, and would miss the table of another name.
func (o *Origin) tabled(names []string) *Origin {
	if o == nil || !o.Models || len(names) != 1 {
		return nil
	}
	return o
}

// Digest hashes the meaning of the ceiling, with everything that it narrows; it is "" for none. It changes with
// any of the files.
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
