package record

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// Tools returns a function that appends a line to the calls of tools, as Netlog does.
func (r *Run) Tools() (log func(call any), err error) {
	if r.tools == nil {
		r.tools, err = os.OpenFile(filepath.Join(r.dir, ToolsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	}
	f := r.tools
	return func(call any) {
		if r.Err() != nil {
			return
		}
		text, err := json.Marshal(call)
		if err == nil {
			_, err = f.Write(append(text, '\n'))
		}
		if err != nil {
			r.failed(err)
		}
	}, err
}
