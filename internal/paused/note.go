package paused

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/unitask/unitask/guest/supervisor"
	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/netstack/broker"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// BegunAt returns when the session with an id was made. The id contains that time; since is for an id without it.
func BegunAt(id string, since time.Time) time.Time {
	if at, ok := record.CreatedAt(id); ok {
		return at
	}
	return since
}

// Note is the note (machine.Pause.Note) of a session's pause.
type Note struct {
	ID       string               `json:"id"`
	Parent   string               `json:"parent,omitempty"`
	Owner    string               `json:"owner"`
	Via      record.Via           `json:"via"`
	Image    string               `json:"image"`
	Language string               `json:"language"`
	Began    time.Time            `json:"began"`
	Expires  time.Time            `json:"expires"`
	Limits   policy.SessionLimits `json:"limits"`
	Request  run.Request          `json:"request"`
	Policy   NotePolicy           `json:"policy"`
	Kernel   run.Kernel           `json:"kernel"`
	Cloned   bool                 `json:"cloned"`
	Dir      string               `json:"dir"`
	Env      []string             `json:"env"`
	CA       string               `json:"ca,omitempty"`
	Client   supervisor.State     `json:"client"`
	Out      []byte               `json:"out,omitempty"` // the files of /out that were copied out
	Broker   *broker.Kept         `json:"broker,omitempty"`
	Changes  []run.PolicyChange   `json:"changes,omitempty"` // changes of its policy; later ones are in ChangesName

	BytesUp   int64 `json:"bytesUp,omitempty"` // network traffic so far, which the ceiling may limit
	BytesDown int64 `json:"bytesDown,omitempty"`

	Granted policy.Effective `json:"-"` // from Policy
}

// NotePolicy is what a session was granted, and under which ceiling.
type NotePolicy struct {
	Effective json.RawMessage `json:"effective"`
	Denials   []policy.Denial `json:"denials"`
	Ceiling   string          `json:"ceiling,omitempty"` // the ceiling's name
	Origin    *policy.Origin  `json:"origin,omitempty"`
	Digest    string          `json:"ceilingDigest,omitempty"` // the digest of the ceiling at its start
}

// ResumedName is the file in a pause's folder that says when the machine resumed.
const ResumedName = "resumed"

// ChangesName is the file in a pause's folder with all changes of the session's policy, if there was one since the
// pause.
const ChangesName = "changes"

// WriteChanges stores the changes of a paused session's policy. They apply when another process resumes the session.
func (s Store) WriteChanges(id string, taken []run.PolicyChange) error {
	if _, err := os.Lstat(s.Folder(id)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	text, err := json.Marshal(taken)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(s.Folder(id), ChangesName), text, 0o600)
}

// MaxChangesText limits how much of that file is read, in bytes. The file may come from another host.
const MaxChangesText = 16 << 20

// ReadChanges reads what WriteChanges wrote; without the file it returns none.
func (s Store) ReadChanges(id string, into *[]run.PolicyChange) error {
	f, err := os.OpenFile(filepath.Join(s.Folder(id), ChangesName), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxChangesText+1))
	if err == nil && len(text) > MaxChangesText {
		err = fmt.Errorf("%s has more than %d bytes", ChangesName, MaxChangesText)
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
