package record

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
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
// It works on a full disk, once.
func (r *Run) Settle() error {
	text, err := json.MarshalIndent(&r.Record, "", "  ")
	if err == nil {
		if err = r.spend(append(text, '\n')); err != nil {
			_ = os.Remove(r.reserved())
			err = r.write(true)
		}
	}
	if err != nil {
		r.failed(err)
	}
	return err
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
