package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/unitask/unitask/internal/toolhost"
	"github.com/unitask/unitask/record"
)

// maxToolCalls bounds the bytes that are read of a run's calls of tools. It is above what toolhost lets a run write.
const maxToolCalls = 256 << 20

// ToolCalls returns a run's calls of tools, nil if the run was granted none.
func (h *Store) ToolCalls(id string) (list []toolhost.Call, err error) {
	list, more, err := h.toolCalls(id, maxToolCalls)
	if err == nil && more {
		err = fmt.Errorf("read calls of tools: the file has more than %d bytes", maxToolCalls)
	}
	return list, err
}

// toolCalls reads at most that many bytes, and reports whether there are more.
func (h *Store) toolCalls(id string, most int64) (list []toolhost.Call, more bool, err error) {
	text, more, err := h.Records.Read(id, record.ToolsFile, most)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	list = []toolhost.Call{}
	for line := range bytes.Lines(text) {
		var c toolhost.Call
		if json.Unmarshal(line, &c) == nil { // the last line of an interrupted run may be cut
			list = append(list, c)
		}
	}
	return list, more, nil
}
