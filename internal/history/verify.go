package history

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/audit/runlog"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Verification says whether a run's record is as it was when the run ended.
type Verification struct {
	Run string `json:"run"`
	*record.Comparison
	// AuditLog means that the audit log has the digest of run.json, which has those of the other files.
	AuditLog bool `json:"auditLog"`
}

// ErrNotEnded means that a run's record is still being written, or that nothing completed it.
var ErrNotEnded = errors.New("has not ended")

// ErrNoDigests means that a run's record has no digests of its files.
var ErrNoDigests = errors.New("its record has no digests of its files")

// Verify compares the files of a run's record with the digests in run.json, and run.json with the one in the audit log.
func (h *Store) Verify(ctx context.Context, id string) (*Verification, error) {
	rec, err := h.Records.Get(id)
	switch {
	case err != nil:
		return nil, err
	case rec.Status == record.Interrupted:
		return nil, fmt.Errorf("run %s %w: its process died before it wrote digests", id, ErrNotEnded)
	case rec.Status != record.Done && rec.Status != record.Failed:
		return nil, fmt.Errorf("run %s %w: it is %.20s, verify it later", id, ErrNotEnded, rec.Status)
	}
	digest, err := loggedDigest(ctx, audit.In(h.Home), id)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var res run.Result
	unreadable := rec.Result != nil && json.Unmarshal(rec.Result, &res) != nil
	if rec.Files == nil {
		return nil, fmt.Errorf("run %s: %w: it is of an older unitask, or its record was not written whole or was changed",
			id, ErrNoDigests)
	}
	c, err := h.Records.Compare(ctx, id, rec, res.Artifacts, digest)
	if err != nil {
		return nil, err
	}
	if unreadable {
		c.Differences = append(c.Differences, record.Difference{Path: "run.json", Change: record.Differs,
			Detail: "its result can't be read, and so no artifact was compared"})
	}
	return &Verification{id, c, digest != ""}, nil
}

// loggedDigest returns the digest of a run's record in the audit log, "" if it has none.
func loggedDigest(ctx context.Context, log audit.Log, id string) (digest string, err error) {
	err = log.Read(func(_ int64, line []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !bytes.Contains(line, []byte(id)) {
			return nil
		}
		var e struct {
			Kind   audit.Kind
			Run    string
			Detail map[string]json.RawMessage
		}
		if json.Unmarshal(line, &e) != nil || e.Run != id || e.Kind != audit.RunEnded && e.Kind != audit.SessionEnded {
			return nil
		}
		digest = ""
		_ = json.Unmarshal(e.Detail[runlog.RecordDigest], &digest)
		return nil
	})
	return digest, err
}
