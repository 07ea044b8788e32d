package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
	"github.com/unitask/unitask/record"
)

// A session's log is a resource: what each of its steps ran and printed, in the order of their starts.

// logPart is its name below the session's record.
const logPart = "log"

// maxLogSteps bounds the steps of a log, the newest ones, and maxLogLooked the records that are read for it.
const (
	maxLogSteps  = 1000
	maxLogLooked = 10_000
)

// logPiece is a piece of a log: a line about a step, or a stream of it.
type logPiece struct {
	line     string
	id, file string // of a stream
	size     int64
}

// sessionLog returns a page of a session's log.
func (s *Server) sessionLog(ctx context.Context, caller unitask.Caller, session *record.Record, from int64) (
	*sdk.ResourceContents, error) {
	if session.Session != session.ID {
		return nil, record.ErrNotFound
	}
	leave, err := s.listing.enter(ctx, caller.Name)
	if err != nil {
		return nil, err
	}
	defer leave()
	pieces, total, err := s.logPieces(ctx, caller, session)
	if err != nil {
		return nil, err
	}
	most := min(pageBytes, max(total-from, 0))
	if err := leaseOf(ctx).draw(ctx, most*escapedByte, budgetPatience); err != nil {
		return nil, err
	}
	data := make([]byte, 0, most)
	at := int64(0) // where the piece begins
	for _, p := range pieces {
		skip, room := max(from-at, 0), most-int64(len(data))
		at += p.size
		if room <= 0 || skip >= p.size {
			continue
		}
		n := min(p.size-skip, room)
		if p.file == "" {
			data = append(data, p.line[skip:skip+n]...)
		} else if data, err = s.appendStream(data, p, skip, n); err != nil {
			return nil, err
		}
	}
	more := from+int64(len(data)) < total
	if more {
		data = data[:bounded.Whole(data)]
	}
	contents := contentsOf(data, "text/plain")
	if more {
		contents.Meta = sdk.Meta{nextKey: fmt.Sprintf("%s?%s%d", partURI(session.ID, logPart), offsetQuery,
			from+int64(len(data))), totalKey: total}
	}
	return contents, nil
}

// appendStream appends n bytes of a stream. Where the stream has become shorter, blanks keep the offsets.
func (s *Server) appendStream(data []byte, p logPiece, skip, n int64) ([]byte, error) {
	end := len(data) + int(n)
	f, err := s.rt.Runs().OpenFile(p.id, p.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	read, err := f.ReadAt(data[len(data):end], skip)
	if err != nil && err != io.EOF {
		return nil, err
	}
	for i := len(data) + read; i < end; i++ {
		data[:end][i] = ' '
	}
	return data[:end], nil
}

// logPieces returns the pieces of a log, and their size in bytes. It keeps no records: requests may be large.
func (s *Server) logPieces(ctx context.Context, caller unitask.Caller, session *record.Record) (pieces []logPiece,
	total int64, err error) {
	steps, looked := [][]logPiece{}, 0
	for id, err := range s.rt.Runs().Own(session.Owner, throughMCP, "", "") {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, 0, err
		}
		if looked++; id <= session.ID || looked > maxLogLooked || len(steps) == maxLogSteps {
			break
		}
		rec, err := s.rt.Runs().Get(id)
		if err == nil && rec.Session == session.ID && sees(caller)(rec.Owner, rec.Via) {
			steps = append(steps, s.stepPieces(rec))
		}
	}
	slices.Reverse(steps)
	pieces = slices.Concat(steps...)
	for i := range pieces {
		p := &pieces[i]
		if p.file == "" {
			p.size = int64(len(p.line))
		}
		total += p.size
	}
	return pieces, total, nil
}

// stepPieces returns the pieces of a step.
func (s *Server) stepPieces(rec *record.Record) []logPiece {
	// The status has the same width at each time, and so have the offsets.
	list := []logPiece{{line: fmt.Sprintf("--- %s %s, %-11s\n", rec.ID, rec.Created.UTC().Format(time.RFC3339),
		rec.Status)}}
	if command := commandOf(rec); command != "" {
		list = append(list, logPiece{line: "--- command\n" + command + "\n"})
	}
	for _, file := range []string{rec.CodeFile, record.StdoutFile, record.StderrFile} {
		size := s.sizeOf(rec.ID, file)
		if size == 0 {
			continue
		}
		title := "--- " + map[bool]string{true: "code", false: file}[file == rec.CodeFile] + "\n"
		list = append(list, logPiece{line: title}, logPiece{id: rec.ID, file: file, size: size}, logPiece{line: "\n"})
	}
	return list
}

// maxLogCommand bounds a command line in a log, in bytes.
const maxLogCommand = 4 << 10

// commandOf returns the command line of a step that is a command, "" for other steps.
func commandOf(rec *record.Record) string {
	var asked struct {
		Args []string `json:"args"`
	}
	if !strings.HasPrefix(rec.CodeFile, "command") || json.Unmarshal(rec.Request, &asked) != nil {
		return ""
	}
	if len(asked.Args) == 3 && asked.Args[1] == "-c" { // of a shell
		return atMost(asked.Args[2], maxLogCommand)
	}
	return atMost(strings.Join(asked.Args, " "), maxLogCommand)
}

// sizeOf returns the size of a record's file, 0 if there is none.
func (s *Server) sizeOf(id, file string) int64 {
	f, err := s.rt.Runs().OpenFile(id, file)
	if err != nil {
		return 0
	}
	defer f.Close()
	var st fs.FileInfo
	if st, err = f.Stat(); err != nil || !st.Mode().IsRegular() {
		return 0
	}
	return st.Size()
}
