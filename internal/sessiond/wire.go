// Package sessiond keeps sessions between command lines, in a background process of their user. The first session
// starts the process, and it ends after the last one. A command line talks to it over a socket in a folder that only
// its user can open; both ends check the other's user.
//
// A connection carries one request, in frames: a kind, a length, and the data. The daemon greets. The client sends
// its request and, a piece at a time, its input; the daemon sends the output, then its answer. A client that goes away
// ends its request, but no session.
package sessiond

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/policy"
	"github.com/unitask/unitask/session"
)

// Kinds of frames.
const (
	kindGreeting = 'g' // the daemon's version of this
	kindRequest  = 'q'
	kindInput    = 'i' // a piece of input; an empty one is its end. The next follows kindTaken
	kindResize   = 's'
	kindTaken    = 't'
	kindStdout   = 'o'
	kindStderr   = 'e'
	kindAnswer   = 'a'
)

// version is the version of this protocol.
const version = "unitask sessions 1"

// Bounds of a connection.
const (
	maxText  = 4 << 20  // of a request, and of an answer
	maxPiece = 32 << 10 // of a stream
	// maxInline bounds the code in a request: with each byte escaped it is below maxText.
	maxInline = 512 << 10
	// patience bounds how long a client may take for its request, and for reading output: the
	// session reads the output of all of its commands.
	patience = 30 * time.Second
)

var errFrame = errors.New("not what is spoken here")

// wire is one end of a connection.
type wire struct {
	net.Conn
	sending sync.Mutex
}

func (w *wire) send(kind byte, text []byte) error {
	w.sending.Lock()
	defer w.sending.Unlock()
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(text)))
	_ = w.SetWriteDeadline(time.Now().Add(patience))
	_, err := w.Write(append(head, text...))
	return err
}

func (w *wire) sendJSON(kind byte, v any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // a value would become six times as long
	err := encoder.Encode(v)
	if err == nil && text.Len() > maxText {
		err = fmt.Errorf("%d bytes, and %d are the most", text.Len(), maxText)
	}
	if err != nil {
		return err
	}
	return w.send(kind, text.Bytes())
}

// receive reads a frame of one of these kinds.
func (w *wire) receive(kinds string) (kind byte, text []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(w, head[:]); err != nil {
		return 0, nil, err
	}
	kind, size := head[0], binary.BigEndian.Uint32(head[1:])
	most := uint32(maxPiece)
	if kind == kindRequest || kind == kindAnswer {
		most = maxText
	}
	known := false
	for i := range kinds {
		known = known || kinds[i] == kind
	}
	if !known || size > most {
		return 0, nil, errFrame
	}
	text = make([]byte, size)
	_, err = io.ReadFull(w, text)
	return kind, text, err
}

// stream sends what is written to it, in frames of a kind.
type stream struct {
	wire *wire
	kind byte
	fail func(error)
}

func (s stream) Write(p []byte) (int, error) {
	for from := 0; from < len(p); from += maxPiece {
		if err := s.wire.send(s.kind, p[from:min(len(p), from+maxPiece)]); err != nil {
			s.fail(fmt.Errorf("what was printed was not taken: %w", err))
			return from, err
		}
	}
	return len(p), nil
}

// Request is a request of a command line.
type Request struct {
	Op      string `json:"op"`
	Session string `json:"session,omitempty"` // its id or name

	New     *New          `json:"new,omitempty"`
	Step    *Step         `json:"step,omitempty"`
	Command *Command      `json:"command,omitempty"`
	Path    string        `json:"path,omitempty"` // of read, write, pack, unpack and files
	Mode    uint32        `json:"mode,omitempty"`
	Ports   []Port        `json:"ports,omitempty"`  // of forward
	Paths   []string      `json:"paths,omitempty"`  // of changes: only what is at or below these
	Texts   bool          `json:"texts,omitempty"`  // of changes: with the new texts
	Count   int           `json:"count,omitempty"`  // of fork
	LifeMS  policy.Millis `json:"lifeMs,omitempty"` // of extend: from now on
	Run     string        `json:"run,omitempty"`    // of wait and stop, which name no session

	To      string            `json:"to,omitempty"` // of copy: the other session, and the path in it
	ToPath  string            `json:"toPath,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"` // of resume: values for a session that a daemon has left
	Name    string            `json:"name,omitempty"`    // of put and get; get without it asks for all names
	Value   json.RawMessage   `json:"value,omitempty"`
}

// Port is a port of the machine, and the port of the host that leads to it; 0 means any free one.
type Port struct {
	Host  int `json:"host,omitempty"`
	Guest int `json:"guest"`
}

// Operations.
const (
	OpNew    = "new"
	OpList   = "list"
	OpRun    = "run"
	OpRunBy  = "runBy" // the same, with the code as input
	OpExec   = "exec"
	OpRead   = "read"
	OpWrite  = "write"
	OpPause  = "pause"
	OpResume = "resume"
	OpEnd    = "end"
	OpExtend = "extend"
	OpFork   = "fork"
	OpWait   = "wait" // for a command in the background, until it has ended
	OpStop   = "stop" // ends such a command

	OpPack   = "pack"   // a folder as tar
	OpUnpack = "unpack" // the reverse
	OpCopy   = "copy"   // a file or a folder from one session to another

	OpPut = "put" // a value by name
	OpGet = "get"

	OpChanges = "changes" // what the session changed in its project: a project.Report

	OpFiles = "files" // the entries of a folder

	OpForward = "forward" // lasts until the client goes, and prints a line for each port
)

// New is a request for a session.
type New struct {
	Name    string            `json:"name,omitempty"`
	Ceiling *policy.Origin    `json:"ceiling,omitempty"` // from which a daemon makes it; nil without a file
	Held    *policy.Ceiling   `json:"-"`                 // the same for requests to a fleet: it stays in this process
	Request unitask.Request   `json:"request"`
	Secrets map[string]string `json:"secrets,omitempty"` // the values, which a Request's JSON lacks
	LifeMS  policy.Millis     `json:"lifeMs,omitempty"`
	IdleMS  policy.Millis     `json:"idleMs,omitempty"`

	Project session.ProjectRequest `json:"project,omitzero"`
}

// Step is code to run.
type Step struct {
	Code      string        `json:"code"`
	Language  string        `json:"language,omitempty"`
	TimeoutMS policy.Millis `json:"timeoutMs,omitempty"`
}

// Command is a command to run.
type Command struct {
	Args      []string              `json:"args"`
	Dir       string                `json:"dir,omitempty"`
	Env       map[string]string     `json:"env,omitempty"`
	TimeoutMS policy.Millis         `json:"timeoutMs,omitempty"`
	Endless   bool                  `json:"endless,omitempty"` // without TimeoutMS: until its session ends
	Detach    bool                  `json:"detach,omitempty"`  // in the background: the answer has the run
	Input     bool                  `json:"input,omitempty"`   // standard input follows
	Terminal  string                `json:"terminal,omitempty"`
	Size      *unitask.TerminalSize `json:"size,omitempty"` // of the terminal that it gets
}

// Answer is the answer to a request.
type Answer struct {
	Error    *Error          `json:"error,omitempty"`
	Sessions []View          `json:"sessions,omitempty"`
	Run      string          `json:"run,omitempty"`    // of a command in the background
	Result   *unitask.Result `json:"result,omitempty"` // without the streams, which came before
	Value    json.RawMessage `json:"value,omitempty"`  // of get
	Names    []string        `json:"names,omitempty"`  // of all values
	More     bool            `json:"more,omitempty"`   // there are others

	Files []unitask.SessionFile `json:"files,omitempty"`
}

// View is a session as its user sees it.
type View struct {
	ID        string          `json:"session"`
	Name      string          `json:"name,omitempty"`
	Parent    string          `json:"parent,omitempty"` // what it was forked from
	State     string          `json:"state"`
	Language  string          `json:"language"`
	Image     string          `json:"image"`
	Began     time.Time       `json:"began"`
	ExpiresAt time.Time       `json:"expiresAt"`
	Denials   []policy.Denial `json:"denials,omitempty"`
	// CeilingChanged means that the ceiling's files have changed since the session began.
	CeilingChanged bool `json:"ceilingChanged,omitempty"`
}

// States of sessions.
const (
	Running = "running"
	Paused  = "paused"
	Lost    = "lost" // its daemon was killed, and its machine with it
)

// Error is an error on its way to the command line.
type Error struct {
	// Unknown means that nothing has the name that was given.
	Unknown      bool               `json:"unknown,omitempty"`
	Code         string             `json:"code"`
	Message      string             `json:"message"`
	RetryAfterMS int64              `json:"retryAfterMs,omitempty"` // of busy
	Field        *policy.FieldError `json:"field,omitempty"`        // of usage
}

// Codes of errors.
const (
	CodeGone      = "session.gone"
	CodeBusy      = "busy"
	CodeUsage     = "usage"
	CodeCancelled = "cancelled"
	CodeFailed    = "failed"
)

func (e *Error) Error() string { return e.Message }

// Unwrap returns the original error.
func (e *Error) Unwrap() error {
	if e.Code == CodeUsage && e.Field != nil {
		return e.Field
	}
	if e.Code == CodeBusy {
		return &unitask.BusyError{What: e.Message, After: time.Duration(e.RetryAfterMS) * time.Millisecond}
	}
	return nil
}

// WireError returns an error in the form for clients.
func WireError(err error) *Error {
	var known *Error
	var busy *unitask.BusyError
	var field *policy.FieldError
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &busy):
		return &Error{Code: CodeBusy, Message: busy.What, RetryAfterMS: busy.After.Milliseconds()}
	case errors.As(err, &field):
		return &Error{Code: CodeUsage, Message: err.Error(), Field: field}
	case errors.As(err, new(*unitask.SessionError)):
		return &Error{Code: CodeGone, Message: err.Error()}
	case errors.Is(err, context.Canceled), errors.Is(err, errLeft):
		return &Error{Code: CodeCancelled, Message: err.Error()}
	}
	return &Error{Code: CodeFailed, Message: err.Error()}
}
