package e2b

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// The messages of process.Process and filesystem.Filesystem, with the names and numbers of e2b-dev/E2B, spec/envd.

type empty struct{}

type ptySize struct {
	Cols uint32 `pb:"1" json:"cols,omitempty"`
	Rows uint32 `pb:"2" json:"rows,omitempty"`
}

type pty struct {
	Size *ptySize `pb:"1" json:"size,omitempty"`
}

type processConfig struct {
	Cmd  string            `pb:"1" json:"cmd,omitempty"`
	Args []string          `pb:"2" json:"args,omitempty"`
	Envs map[string]string `pb:"3" json:"envs,omitempty"`
	Cwd  *string           `pb:"4" json:"cwd,omitempty"`
}

type processInfo struct {
	Config processConfig `pb:"1" json:"config"`
	PID    uint32        `pb:"2" json:"pid"`
	Tag    *string       `pb:"3" json:"tag,omitempty"`
}

type listProcesses struct {
	Processes []processInfo `pb:"1" json:"processes"`
}

type startRequest struct {
	Process processConfig `pb:"1" json:"process"`
	PTY     *pty          `pb:"2" json:"pty,omitempty"`
	Tag     *string       `pb:"3" json:"tag,omitempty"`
	Stdin   *bool         `pb:"4" json:"stdin,omitempty"`
}

type selector struct {
	PID *uint32 `pb:"1" json:"pid,omitempty"`
	Tag *string `pb:"2" json:"tag,omitempty"`
}

type selectRequest struct {
	Process selector `pb:"1" json:"process"`
}

type updateRequest struct {
	Process selector `pb:"1" json:"process"`
	PTY     *pty     `pb:"2" json:"pty,omitempty"`
}

type processInput struct {
	Stdin *[]byte `pb:"1" json:"stdin,omitempty"`
	PTY   *[]byte `pb:"2" json:"pty,omitempty"`
}

type inputRequest struct {
	Process selector     `pb:"1" json:"process"`
	Input   processInput `pb:"2" json:"input"`
}

// streamInput is one message of a stream of input: the first one has Start.
type streamInput struct {
	Start     *selectRequest `pb:"1" json:"start,omitempty"`
	Data      *streamedData  `pb:"2" json:"data,omitempty"`
	Keepalive *empty         `pb:"3" json:"keepalive,omitempty"`
}

type streamedData struct {
	Input processInput `pb:"2" json:"input"`
}

type signalRequest struct {
	Process selector `pb:"1" json:"process"`
	Signal  enum     `pb:"2" json:"signal,omitempty"`
}

// enum is a value of an enumeration in a request: its name or its number.
type enum string

func (e *enum) UnmarshalJSON(text []byte) error {
	if n, err := strconv.ParseUint(string(text), 10, 8); err == nil {
		*e = enum(strconv.FormatUint(n, 10))
		return nil
	}
	return json.Unmarshal(text, (*string)(e))
}

type processEvent struct {
	Start     *startedEvent `pb:"1" json:"start,omitempty"`
	Data      *dataEvent    `pb:"2" json:"data,omitempty"`
	End       *endEvent     `pb:"3" json:"end,omitempty"`
	Keepalive *empty        `pb:"4" json:"keepalive,omitempty"`
}

type startedEvent struct {
	PID uint32 `pb:"1" json:"pid"`
}

type dataEvent struct {
	Stdout []byte `pb:"1" json:"stdout,omitempty"`
	Stderr []byte `pb:"2" json:"stderr,omitempty"`
	PTY    []byte `pb:"3" json:"pty,omitempty"`
}

type endEvent struct {
	ExitCode int32   `pb:"1" json:"exitCode,omitempty"`
	Exited   bool    `pb:"2" json:"exited,omitempty"`
	Status   string  `pb:"3" json:"status,omitempty"`
	Error    *string `pb:"4" json:"error,omitempty"`
}

type eventMessage struct {
	Event processEvent `pb:"1" json:"event"`
}

type pathRequest struct {
	Path string `pb:"1" json:"path,omitempty"`
}

type moveRequest struct {
	Source      string `pb:"1" json:"source,omitempty"`
	Destination string `pb:"2" json:"destination,omitempty"`
}

type listRequest struct {
	Path  string `pb:"1" json:"path,omitempty"`
	Depth uint32 `pb:"2" json:"depth,omitempty"`
}

type entryMessage struct {
	Entry *entryInfo `pb:"1" json:"entry,omitempty"`
}

type entryList struct {
	Entries []entryInfo `pb:"1" json:"entries"`
}

// The kinds of entries.
const (
	kindFile    fileType = 1
	kindFolder  fileType = 2
	kindSymlink fileType = 3
)

// fileType is FileType.
type fileType uint32

var fileTypes = []string{"FILE_TYPE_UNSPECIFIED", "FILE_TYPE_FILE", "FILE_TYPE_DIRECTORY", "FILE_TYPE_SYMLINK"}

func (t fileType) MarshalJSON() ([]byte, error) { return json.Marshal(fileTypes[t]) }

// long is an int64, which the JSON form has as a string.
type long int64

func (n long) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%q", strconv.FormatInt(int64(n), 10)), nil
}

type entryInfo struct {
	Name        string            `pb:"1" json:"name"`
	Type        fileType          `pb:"2" json:"type"`
	Path        string            `pb:"3" json:"path"`
	Size        long              `pb:"4" json:"size"`
	Mode        uint32            `pb:"5" json:"mode"`
	Permissions string            `pb:"6" json:"permissions"`
	Owner       string            `pb:"7" json:"owner"`
	Group       string            `pb:"8" json:"group"`
	Modified    time.Time         `pb:"9" json:"modifiedTime"`
	Target      *string           `pb:"10" json:"symlinkTarget,omitempty"`
	Metadata    map[string]string `pb:"11" json:"metadata,omitempty"`
}

type watchRequest struct {
	Path      string `pb:"1" json:"path,omitempty"`
	Recursive bool   `pb:"2" json:"recursive,omitempty"`
	Include   bool   `pb:"3" json:"includeEntry,omitempty"`
	Networks  bool   `pb:"4" json:"allowNetworkMounts,omitempty"`
}

// eventType is EventType.
type eventType uint32

var eventTypes = []string{"EVENT_TYPE_UNSPECIFIED", "EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE", "EVENT_TYPE_REMOVE",
	"EVENT_TYPE_RENAME", "EVENT_TYPE_CHMOD"}

func (t eventType) MarshalJSON() ([]byte, error) { return json.Marshal(eventTypes[t]) }

type fileEvent struct {
	Name  string     `pb:"1" json:"name"`
	Type  eventType  `pb:"2" json:"type"`
	Entry *entryInfo `pb:"3" json:"entry,omitempty"`
}

type watchMessage struct {
	Start      *empty     `pb:"1" json:"start,omitempty"`
	Filesystem *fileEvent `pb:"2" json:"filesystem,omitempty"`
	Keepalive  *empty     `pb:"3" json:"keepalive,omitempty"`
}

type watcherRequest struct {
	ID string `pb:"1" json:"watcherId,omitempty"`
}

type watcherEvents struct {
	Events []fileEvent `pb:"1" json:"events"`
}
