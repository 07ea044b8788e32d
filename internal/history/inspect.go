package history

import (
	"encoding/json"
	"strings"

	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/netstack"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// Inspection is a record with the files beside it, each cut to the requested number of bytes.
type Inspection struct {
	*record.Record
	Code    string            `json:"code"`
	Stdout  string            `json:"stdout"`
	Stderr  string            `json:"stderr"`
	Netlog  []json.RawMessage `json:"netlog"`
	Console string            `json:"console"`
	Tools   []toolhost.Call   `json:"tools,omitempty"` // calls of tools
	Cut     []string          `json:"cut,omitempty"`   // files that were cut

	// Decoded parts of the record and the netlog; the JSON has them as recorded.
	Ended     *run.Result         `json:"-"` // nil while the run has no result
	Denied    []policy.Denial     `json:"-"`
	Decisions []netstack.Decision `json:"-"`
	Dropped   map[string]uint64   `json:"-"` // frames of the guest, by kind
}

// Inspect reads a run's record and the files beside it, at most that many bytes of each file; 0 means all.
func (h *Store) Inspect(id string, most int64) (*Inspection, error) {
	rec, err := h.Records.Get(id)
	if err != nil {
		return nil, err
	}
	in := &Inspection{Record: rec, Netlog: []json.RawMessage{}}
	var netlog string
	var more bool
	for _, part := range []struct {
		name string
		to   *string
	}{{rec.CodeFile, &in.Code}, {record.StdoutFile, &in.Stdout}, {record.StderrFile, &in.Stderr},
		{record.NetlogFile, &netlog}, {record.ConsoleFile, &in.Console}} {
		text, cut, err := h.Records.Read(id, part.name, most)
		if err != nil {
			return nil, err
		}
		if cut {
			in.Cut = append(in.Cut, part.name)
		}
		*part.to = string(text)
	}
	for line := range strings.Lines(netlog) {
		var d netstack.Decision
		if json.Unmarshal([]byte(line), &d) == nil { // the last line of an interrupted run may be cut
			in.Netlog, in.Decisions = append(in.Netlog, json.RawMessage(line)), append(in.Decisions, d)
		}
	}
	if most == 0 {
		in.Tools, err = h.ToolCalls(id)
	} else if in.Tools, more, err = h.toolCalls(id, most); more {
		in.Cut = append(in.Cut, record.ToolsFile)
	}
	if err != nil {
		return nil, err
	}
	var res run.Result
	if rec.Result != nil && json.Unmarshal(rec.Result, &res) == nil {
		in.Ended = &res
	}
	if rec.Denials != nil {
		_ = json.Unmarshal(rec.Denials, &in.Denied) // the JSON has what another version wrote
	}
	if rec.Drops != nil {
		_ = json.Unmarshal(rec.Drops, &in.Dropped)
	}
	return in, nil
}
