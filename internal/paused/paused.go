// Package paused manages the sessions that no process holds: machines on a home's disk, each with a note of what its
// resumption needs. Session daemons, the fleet and MCP list them; package session writes and resumes them. The lock of
// a paused session's record is free (record.Store.Held): a process that resumes the session takes it.
package paused

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/failure"
	"github.com/unitask/unitask/internal/home"
	"github.com/unitask/unitask/internal/project"
	"github.com/unitask/unitask/machine"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Session is a session that no process holds. Its machine is on the disk.
type Session struct {
	ID       string
	Parent   string
	Owner    string     // the caller's name
	Via      record.Via // the interface that requested it
	Image    string
	Language string
	Began    time.Time // as Session.Began
	Expires  time.Time
	// At is the time of the pause. A Since that is not zero means that the session resumed then in a process that ended
	// without another pause. What the session did since then is lost.
	At, Since time.Time
	// Secrets are the names whose values Revive needs.
	Secrets []string
	// Ceiling is the name of the ceiling at its start, "" if there was none. Origin says where the ceiling is read from,
	// or would be if its file existed. It is nil if only the program that made the ceiling can make it again.
	Ceiling string
	Origin  *policy.Origin

	Digest string // the ceiling's digest
}

// ReadCeiling reads the session's ceiling again from the current files; nil if it had none.
func (p Session) ReadCeiling(home string) (*policy.Ceiling, error) {
	switch {
	case p.Origin != nil:
		return p.Origin.Ceiling(home, p.Owner)
	case p.Ceiling != "":
		return nil,
			policy.Bad("ceiling", p.Ceiling,
				"was made by the program that session %s is of, and only there can it go on; unitask session rm ends it", p.ID)
	}
	return nil, nil
}

// CeilingChanged reports whether the ceiling's files differ from those at the session's start, or can't be read.
func (p Session) CeilingChanged(home string) bool {
	if p.Origin == nil || p.Digest == "" && p.Ceiling != "" { // from an older version
		return false
	}
	now, err := p.ReadCeiling(home)
	return err != nil || now.Digest() != p.Digest
}

// Store is a home's store of paused sessions: a folder for each, and the records.
type Store struct {
	Dir     string
	Records *record.Store
}

// Open returns the store of a home.
func Open(dir string) Store {
	return Store{home.Dir(dir).Sessions(), record.Open(home.Dir(dir).Runs())}
}

// Folder returns the folder of a session.
func (s Store) Folder(id string) string { return filepath.Join(s.Dir, id) }

// IDs returns the ids of all folders, including those of running sessions.
func (s Store) IDs() (list []string, err error) {
	folders, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, f := range folders {
		name := f.Name()
		if folder, ok := machine.AsideOf(name); ok { // reading restores the name
			name = folder
		}
		if f.IsDir() && !strings.HasPrefix(name, ".") && !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list, err
}

// List returns the sessions of a home that no process holds, sorted by id. It removes sessions whose life is over.
func List(home string) (list []Session, err error) {
	s := Open(home)
	ids, err := s.IDs()
	if err != nil {
		return nil, failure.Host("sessions", err)
	}
	for _, id := range ids {
		if p, err := Find(home, id); err == nil {
			list = append(list, p)
		}
	}
	return list, nil
}

// Find returns the session with an id. The error is a SessionError if it does not exist, its life is over, or a process
// holds it.
func Find(home, id string) (Session, error) {
	s := Open(home)
	p, k, err := s.Read(id)
	switch {
	case err != nil:
		return Session{}, err
	case s.Records.Held(id):
		return Session{}, &run.SessionError{ID: id, Why: "or lives"}
	case !time.Now().Before(k.Expires):
		_ = Forget(home, id)
		return Session{}, &run.SessionError{ID: id, Why: "or never was"}
	}
	return s.View(p, k), nil
}

// View returns a session's public description.
func (s Store) View(p machine.Pause, k Note) Session {
	v := Session{ID: k.ID, Parent: k.Parent, Owner: k.Owner, Via: k.Via, Image: k.Image, Language: k.Language,
		Began: BegunAt(k.ID, k.Began), Expires: k.Expires, At: p.At, Ceiling: k.Policy.Ceiling, Origin: k.Policy.Origin,
		Digest: k.Policy.Digest}
	if text, err := os.ReadFile(filepath.Join(s.Folder(k.ID), ResumedName)); err == nil {
		v.Since, _ = time.Parse(time.RFC3339Nano, string(text))
	}
	for _, secret := range k.Granted.Secrets {
		v.Secrets = append(v.Secrets, secret.Name)
	}
	return v
}

// maxSessionID limits an id to look up, in bytes. No folder has a longer name.
const maxSessionID = 255

// Read reads the note of a paused session. The error is a SessionError if it does not exist.
func (s Store) Read(id string) (p machine.Pause, k Note, err error) {
	gone := &run.SessionError{ID: id, Why: "or never was"}
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") || len(id) > maxSessionID ||
		strings.ContainsRune(id, 0) { // can't be a folder's name
		return p, k, gone
	}
	p, err = machine.ReadPause(s.Folder(id))
	if errors.Is(err, fs.ErrNotExist) {
		return p, k, gone
	}
	if err == nil {
		err = json.Unmarshal(p.Note, &k)
	}
	if err == nil {
		err = json.Unmarshal(k.Policy.Effective, &k.Granted)
	}
	if err == nil && k.ID != id {
		err = fmt.Errorf("it is session %.80q", k.ID)
	}
	if err == nil {
		err = s.ReadChanges(id, &k.Changes)
	}
	if err != nil {
		return p, k, failure.Host("session", fmt.Errorf("session %s can't be read: %w", id, err))
	}
	return p, k, nil
}

// Forget ends a session of a home that no process holds, and removes its machine from the disk. The error is
// record.ErrRunning if a process holds it, and a SessionError if it does not exist.
func Forget(home, id string) error {
	s := Open(home)
	if _, _, err := s.Read(id); errors.As(err, new(*run.SessionError)) {
		return err
	}
	rec, err := s.Records.Reopen(id)
	if err != nil && !errors.Is(err, record.ErrNotFound) {
		return failure.Host("session", err)
	}
	project.Forget(s.Records.Path(id, ""))
	err = machine.RemovePause(s.Folder(id))
	if rec != nil {
		rec.Status = record.Done
		err = errors.Join(err, rec.Finish(time.Now()))
		err = errors.Join(err, audit.In(home).Append(audit.Entry{Time: time.Now(), Kind: audit.SessionEnded, Run: id,
			Caller: rec.Owner, Via: string(rec.Via), Detail: map[string]any{"outcome": "removed"}}))
	}
	if err != nil {
		return failure.Host("session", err)
	}
	return nil
}
