package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/unitask/unitask/internal/audit"
	"github.com/unitask/unitask/internal/paused"
	"github.com/unitask/unitask/record"
)

// AuditLacks are the entries of ended runs that a home's audit log lacks.
type AuditLacks struct {
	Starts, Ends int      // runs without an entry of it
	FirstStarts  []string // their ids, some of them
	FirstEnds    []string
}

// String is "" if nothing is missing.
func (l AuditLacks) String() string {
	var parts []string
	for _, part := range []struct {
		what  string
		n     int
		first []string
	}{{"start", l.Starts, l.FirstStarts}, {"end", l.Ends, l.FirstEnds}} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("the %s of %d runs (%s)", part.what, part.n, strings.Join(part.first, ", ")))
		}
	}
	return strings.Join(parts, " and ")
}

const (
	// maxLacking bounds the ids that are named.
	maxLacking = 5
	// lacksAtOnce bounds the runs of one search: for more, the log is read again.
	lacksAtOnce = 200_000
	// lacksAfter is how long after the end of its record a run may write its last entry.
	lacksAfter = 10 * time.Second
)

// logged tells which entries of a run are in the log.
type logged uint8

const (
	startLogged logged = 1 << iota
	endLogged
)

// FindAuditLacks compares a home's ended records with its audit log. A record that is older than the log need not be in
// it. A step has the entries of its session.
func FindAuditLacks(home string, now time.Time) (lacks AuditLacks, err error) {
	log, runs := audit.In(home), paused.Open(home).Records
	since, err := firstEntry(log)
	if err != nil || since.IsZero() {
		return lacks, err
	}
	ids, err := runs.IDs()
	if err != nil {
		return lacks, err
	}
	for some := range slices.Chunk(ids, lacksAtOnce) {
		found := map[string]logged{}
		for _, id := range some {
			rec, err := runs.Get(id)
			if err != nil || rec.Status != record.Done && rec.Status != record.Failed || rec.Finished == nil ||
				rec.Session != "" && rec.Session != rec.ID {
				continue
			}
			if rec.Created.After(since) && rec.Finished.Before(now.Add(-lacksAfter)) {
				found[id] = 0
			}
		}
		if len(found) == 0 {
			continue
		}
		if err := markLogged(log, found); err != nil {
			return lacks, err
		}
		for _, id := range slices.Sorted(maps.Keys(found)) {
			lacks.add(id, found[id])
		}
	}
	return lacks, nil
}

func (l *AuditLacks) add(id string, is logged) {
	if is&startLogged == 0 {
		if l.Starts++; l.Starts <= maxLacking {
			l.FirstStarts = append(l.FirstStarts, id)
		}
	}
	if is&endLogged == 0 {
		if l.Ends++; l.Ends <= maxLacking {
			l.FirstEnds = append(l.FirstEnds, id)
		}
	}
}

// firstEntry returns the time of the log's first line, zero if it has none.
func firstEntry(log audit.Log) (at time.Time, err error) {
	enough := errors.New("enough")
	err = log.Read(func(_ int64, line []byte) error {
		var e struct{ Time time.Time }
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		at = e.Time
		return enough
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return at, err
}

// markLogged notes which entries of runs are in the log.
func markLogged(log audit.Log, found map[string]logged) error {
	return log.Read(func(_ int64, line []byte) error {
		var e struct {
			Kind audit.Kind
			Run  string
		}
		if json.Unmarshal(line, &e) != nil {
			return nil // Verify tells
		}
		is, ours := found[e.Run]
		switch {
		case !ours:
		case e.Kind == audit.RunStarted || e.Kind == audit.SessionStarted:
			found[e.Run] = is | startLogged
		case e.Kind == audit.RunEnded || e.Kind == audit.SessionEnded:
			found[e.Run] = is | endLogged
		}
		return nil
	})
}
