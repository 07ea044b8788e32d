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

// reserveFile holds room on the disk for a record's end, while a process has the run under way.
const reserveFile = "reserve"

// reserveBytes is that room, beside the request's: the last run.json, and the run's last entries in the audit log.
const reserveBytes = 64 << 10

// reserve takes the room. It is written, since a file with holes takes none.
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

// Settle writes run.json in the reserved room, syncs it to the disk, and gives the rest of the room back.
// It works on a full disk, once: if the record is longer than the room then, its long parts are left out.
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

// settleShort writes what of the record the reserved room is for, and that the rest is missing.
func (r *Run) settleShort(why error) {
	text, err := json.Marshal(r.short(why))
	if err != nil || r.spend(append(text, '\n')) == nil {
		return
	}
	// A file system that never writes over what is there needs room first.
	_ = os.Remove(r.reserved())
	_ = atomicfile.Fill(filepath.Join(r.dir, recordFile), 0o600, func(f *os.File) error {
		_, err := f.Write(append(text, '\n'))
		return errors.Join(err, f.Sync())
	})
}

// What a short record has at most, in bytes, of each part but the request.
const (
	shortPart   = 8 << 10
	shortMember = 512 // of the result
)

// short is the record without its long parts.
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

// spend makes the reserve the record.
func (r *Run) spend(text []byte) error {
	f, err := os.OpenFile(r.reserved(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text) // over what is there: another run can't take the room in between
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
