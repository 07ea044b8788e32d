package skill

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/regular"
)

// maxTrusted bounds the file with the trusted skills.
const maxTrusted = 64 << 20

// Trusted is a skill as it was when the user trusted it.
type Trusted struct {
	Source string            `json:"source"` // its folder
	Name   string            `json:"name"`
	Files  map[string]string `json:"files"`
	At     time.Time         `json:"at"`
}

// Trust is a file with the skills that the user trusts.
type Trust struct{ Path, Lock string }

// List returns the trusted skills, by their folders.
func (t Trust) List() ([]Trusted, error) {
	text, err := regular.Read(t.Path, maxTrusted)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []Trusted
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: remove it, and trust your skills again", t.Path, err)
	}
	return list, nil
}

// Of returns a skill as it was trusted, nil if it was not.
func (t Trust) Of(source string) (*Trusted, error) {
	list, err := t.List()
	for i := range list {
		if list[i].Source == source {
			return &list[i], err
		}
	}
	return nil, err
}

// Set trusts a skill as it is.
func (t Trust) Set(s *Skill, now time.Time) error {
	return t.change(s.Source, &Trusted{Source: s.Source, Name: s.Name, Files: s.Files, At: now})
}

// Forget removes a skill by its folder, and tells whether it was trusted.
func (t Trust) Forget(source string) (there bool, err error) {
	found, err := t.Of(source)
	if err != nil || found == nil {
		return false, err
	}
	return true, t.change(source, nil)
}

func (t Trust) change(source string, to *Trusted) error {
	lock, err := filelock.Take(t.Lock)
	if err != nil {
		return err
	}
	defer lock.Unlock()
	list, err := t.List()
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(one Trusted) bool { return one.Source == source })
	if to != nil {
		list = append(list, *to)
	}
	slices.SortFunc(list, func(a, b Trusted) int { return strings.Compare(a.Source, b.Source) })
	text, err := json.Marshal(list)
	if err == nil && len(text) > maxTrusted {
		err = errors.New("too many skills are trusted: unitask skill trust --forget removes one")
	}
	if err != nil {
		return err
	}
	return atomicfile.Write(t.Path, text, 0o600)
}

// Changed returns what differs from the trusted skill, a line for each file.
func (t *Trusted) Changed(now map[string]string) (list []string) {
	for name, digest := range now {
		switch t.Files[name] {
		case digest:
		case "":
			list = append(list, "new: "+name)
		default:
			list = append(list, "changed: "+name)
		}
	}
	for name := range t.Files {
		if now[name] == "" {
			list = append(list, "gone: "+name)
		}
	}
	slices.Sort(list)
	return list
}
