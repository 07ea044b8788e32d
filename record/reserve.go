package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/unitask/unitask/internal/atomicfile"
)

// reserveFile reserves disk space for a record's end while a process executes the run.
const reserveFile = "reserve"

// reserveBytes is the size of that space, in addition to the request's size. It has room for the last run.json, and the
// run's last entries in the audit log.
const reserveBytes = 64 << 10

// reserve allocates the space. It writes bytes, since a file with holes takes no space.
func (r *Run) reserve() error {
	f, err := os.OpenFile(r.reserved(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, reserveBytes+len(r.Request)))
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(r.reserved())
	}
	return err
}

func (r *Run) reserved() string { return filepath.Join(r.dir, reserveFile) }

// Settle writes run.json into the reserved space, syncs it to the disk, and frees the rest of the space. It works on a
// full disk, once: if the record does not fit, Settle leaves out its long parts.
func (r *Run) Settle() error {
	text, err := json.MarshalIndent(&r.Record, "", "  ")
	if err == nil && r.spend(append(text, '\n')) != nil {
		if err = r.write(true); full(err) {
			r.settleShort(err)
		}
	}
	_ = os.Remove(r.reserved())
	if err != nil {
		r.failed(err)
	}
	return err
}

func full(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// settleShort writes the parts of the record that fit the reserved space, and notes that the rest is missing.
func (r *Run) settleShort(why error) {
	text, err := json.Marshal(r.short(why))
	if err != nil || r.spend(append(text, '\n')) == nil {
		return
	}
	// A file system that never overwrites in place needs free space first.
	_ = os.Remove(r.reserved())
	_ = atomicfile.Fill(filepath.Join(r.dir, recordFile), 0o600, func(f *os.File) error {
		_, err := f.Write(append(text, '\n'))
		return errors.Join(err, f.Sync())
	})
}

// Limits of a short record's parts, in bytes, except the request.
const (
	shortPart   = 8 << 10
	shortMember = 512 // of the result
)

// short returns the record without its long parts.
func (r *Run) short(why error) Record {
	s := r.Record
	if s.Status != Paused {
		s.Status = Failed
	}
	if s.Error == "" {
		s.Error = fmt.Sprintf("the record is cut short: %v", why)
	}
	if len(s.Error) > shortPart {
		s.Error = strings.ToValidUTF8(s.Error[:shortPart], "") + "…"
	}
	for _, part := range []*json.RawMessage{&s.Effective, &s.Denials, &s.Drops} {
		if len(*part) > shortPart {
			*part = nil
		}
	}
	if s.Machine != nil && len(s.Machine.Jail) > shortPart {
		m := *s.Machine
		m.Jail, s.Machine = nil, &m
	}
	var members map[string]json.RawMessage
	_ = json.Unmarshal(s.Result, &members)
	maps.DeleteFunc(members, func(_ string, v json.RawMessage) bool { return len(v) > shortMember })
	if s.Result = nil; len(members) > 0 {
		s.Result, _ = json.Marshal(members)
	}
	return s
}

// spend writes the record into the reserve.
func (r *Run) spend(text []byte) error {
	f, err := os.OpenFile(r.reserved(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text) // overwrites: another run can't take the space in between
	if err == nil {
		err = f.Truncate(int64(len(text)))
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(r.reserved(), filepath.Join(r.dir, recordFile))
}
