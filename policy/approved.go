package policy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/exact"
	"github.com/unitask/unitask/internal/filelock"
)

// ApprovedFile is the file in a home with its user's permanent answers to runs' questions.
const ApprovedFile = "approved.toml"

// maxApproved bounds the number of entries.
const maxApproved = 256

// Approved is one host and port that runs under one ceiling need not ask about again. It widens nothing: it only
// answers a question that a rule of a run (ask) raises.
type Approved struct {
	Host    string    `toml:"host"`    // HOST:PORT, a name in normal form or an address
	Ceiling string    `toml:"ceiling"` // the ceiling file of the run; "" is none
	By      string    `toml:"by"`      // the owner of the run; the entry is for that owner's runs
	Run     string    `toml:"run"`     // the run that asked
	At      time.Time `toml:"at"`
}

// Approvals is a home's list of permanent answers.
type Approvals struct{ file string }

// OpenApprovals returns the list of a home; it reads nothing yet.
func OpenApprovals(home string) Approvals { return Approvals{filepath.Join(home, ApprovedFile)} }

// approvedText is the content of the file.
type approvedText struct {
	Approved []Approved `toml:"approved"`
}

const approvedHead = `# Permanent approvals, given when a run asked (--ask). This file may be edited: a run that ` +
	`asks about a host
# and port of an entry, under the same ceiling and of the same user, is allowed without a question.
# unitask approve --always lists it; unitask approve --remove HOST:PORT takes entries out.

`

// List returns the entries, the oldest first. It fails on a file that it can't parse completely.
func (a Approvals) List() ([]Approved, error) {
	text, err := readPrivate("the approved hosts", a.file)
	if err != nil || text == nil {
		return nil, err
	}
	var all approvedText
	if _, err = exact.Decode(string(text), &all); err == nil && len(all.Approved) > maxApproved {
		err = fmt.Errorf("more than %d entries", maxApproved)
	}
	for _, e := range all.Approved {
		if err == nil {
			err = e.check()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the approved hosts: %s: %v: correct it, or remove it", a.file, err)
	}
	return all.Approved, nil
}

// check returns why an entry is invalid: it must name one host and one port, in normal form.
func (e Approved) check() error {
	r, err := ParseNetRule(e.Host)
	switch {
	case err != nil:
		return fmt.Errorf("host %.100q %w", e.Host, err)
	case r.Wildcard || r.Port == 0 || r.String() != e.Host:
		return fmt.Errorf("host %.100q: must be one HOST:PORT, in lower case", e.Host)
	case e.By == "":
		return fmt.Errorf("host %s: by is missing", e.Host)
	}
	return nil
}

// same reports whether two entries answer the same questions.
func (e Approved) same(o Approved) bool {
	return e.Host == o.Host && e.Ceiling == o.Ceiling && e.By == o.By
}

// Find returns the entry that answers a question of a run, by host, ceiling and owner.
func (a Approvals) Find(host, ceiling, owner string) (found Approved, ok bool, err error) {
	list, err := a.List()
	i := slices.IndexFunc(list, func(e Approved) bool { return e.same(Approved{Host: host, Ceiling: ceiling, By: owner}) })
	if i < 0 {
		return Approved{}, false, err
	}
	return list[i], true, nil
}

// Add adds an entry, and replaces the one that answers the same questions.
func (a Approvals) Add(e Approved) error { return a.change(a.adding(e)) }

// adding returns the change that adds an entry.
func (a Approvals) adding(e Approved) func([]Approved) ([]Approved, error) {
	return func(list []Approved) ([]Approved, error) {
		if err := e.check(); err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, e.same)
		if len(list) == maxApproved {
			return nil, fmt.Errorf("%s has %d entries, which is the most: unitask approve --remove takes some out", a.file,
				maxApproved)
		}
		e.At = e.At.UTC().Truncate(time.Second)
		return append(list, e), nil
	}
}

// With returns the file's text now and with one more entry, and its name. It writes nothing.
func (a Approvals) With(e Approved) (before, after, name string, err error) {
	text, err := readPrivate("the approved hosts", a.file)
	if err != nil {
		return "", "", a.file, err
	}
	list, err := a.List()
	if err == nil {
		list, err = a.adding(e)(list)
	}
	if err != nil {
		return "", "", a.file, err
	}
	after, err = approvedFile(list)
	return string(text), after, a.file, err
}

// AddTo adds an entry as Add does, if the file still has the text that With has returned. Otherwise it fails with
// ErrCeilingChanged.
func (a Approvals) AddTo(e Approved, before string) error {
	return a.change(func(list []Approved) ([]Approved, error) {
		if text, err := readPrivate("the approved hosts", a.file); err != nil || string(text) != before {
			return nil, errors.Join(err, fmt.Errorf("%s: %w", a.file, ErrCeilingChanged))
		}
		return a.adding(e)(list)
	})
}

// ErrNotApproved means that no entry names a host.
var ErrNotApproved = errors.New("is not approved")

// Remove removes the entries for a host and port, and returns them.
func (a Approvals) Remove(host string) (removed []Approved, err error) {
	err = a.change(func(list []Approved) ([]Approved, error) {
		about := func(e Approved) bool { return e.Host == host }
		removed = slices.DeleteFunc(slices.Clone(list), func(e Approved) bool { return !about(e) })
		if len(removed) == 0 {
			return nil, fmt.Errorf("%.300q: %w", host, ErrNotApproved)
		}
		return slices.DeleteFunc(list, about), nil
	})
	if err != nil {
		return nil, err
	}
	return removed, nil
}

func (a Approvals) change(by func([]Approved) ([]Approved, error)) error {
	lock, err := filelock.Take(a.file + ".lock")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	list, err := a.List()
	if err != nil {
		return err
	}
	if list, err = by(slices.Clone(list)); err != nil {
		return err
	}
	text, err := approvedFile(list)
	if err != nil {
		return err
	}
	return atomicfile.Fill(a.file, 0o600, func(f *os.File) error {
		_, err := f.WriteString(text)
		return errors.Join(err, f.Sync())
	})
}

// approvedFile returns the file's text.
func approvedFile(list []Approved) (string, error) {
	var text bytes.Buffer
	text.WriteString(approvedHead)
	enc := toml.NewEncoder(&text)
	enc.Indent = ""
	err := enc.Encode(approvedText{list})
	return text.String(), err
}

// String returns the entry in one line, for a person.
func (e Approved) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s by %s in run %s", e.Host, e.By, e.Run))
}
