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
	text, more, err := h.Records.Read(id, record.ToolsFile, maxToolCalls)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && more {
		err = fmt.Errorf("read calls of tools: the file has more than %d bytes", maxToolCalls)
	}
	if err != nil {
		return nil, err
	}
	list = []toolhost.Call{}
	for line := range bytes.Lines(text) {
		var c toolhost.Call
		if json.Unmarshal(line, &c) == nil { // the last line of an interrupted run may be cut
			list = append(list, c)
		}
	}
	return list, nil
}
