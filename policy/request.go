// Package policy says what a run may do: what is asked for (Request), the most that
// is given (Ceiling, a .unitask.toml), and what comes of it (Effective, and a Denial
// for each thing that was cut).
//
// It is pure but for the files that it reads, ceilings and the list of those that the
// user trusts: it starts nothing and dials nowhere.
package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Request is what a caller asks for. Zero values mean the default.
type Request struct {
	Kernel         string  `json:"kernel,omitempty"`         // linux, nanos, or "" for the best there is
	MemoryMB       int     `json:"memoryMb,omitempty"`       // of the machine, MiB
	TimeoutSeconds float64 `json:"timeoutSeconds,omitempty"` // of the code, not of the boot
	OutputBytes    int64   `json:"outputBytes,omitempty"`    // kept of each of stdout and stderr

	// AllowNet are hosts for HTTP and TLS: "example.com", "*.example.com",
	// "example.com:8443", an address; ports 80 and 443 if none is given.
	AllowNet []string `json:"allowNet,omitempty"`
	// AllowNetAny allows every public host on 80 and 443.
	AllowNetAny bool `json:"allowNetAny,omitempty"`
	// AllowTCP are HOST:PORT for raw TCP, private addresses and the host's own
	// loopback included.
	AllowTCP []string `json:"allowTcp,omitempty"`
	// Bounds of the network: connections at once, bytes from and to the guest.
	MaxConnections int   `json:"maxConnections,omitempty"`
	MaxUpload      int64 `json:"maxUploadBytes,omitempty"`
	MaxDownload    int64 `json:"maxDownloadBytes,omitempty"`
	// Secrets are the names of the secrets that the code gets.
	Secrets []string `json:"secrets,omitempty"`
	// Files and Dirs are the host's, read-only inside.
	Files []Mount `json:"files,omitempty"`
	Dirs  []Mount `json:"dirs,omitempty"`
	// Artifacts are the bytes that may come back of what the code leaves in /out; -1
	// is none.
	Artifacts int64 `json:"artifacts,omitempty"`
}

// Mount is a file or folder of the host that the code may read.
type Mount struct {
	// Host is the path as it was asked for, absolute.
	Host string `json:"host"`
	// Real is the path that Host led to when it was opened, links resolved. The
	// ceiling is held against this one.
	Real string `json:"real,omitempty"`
	// Guest is the path inside, absolute.
	Guest string `json:"guest"`
}

// Effective is what a run gets.
type Effective struct {
	Kernel         string  `json:"kernel"`
	MemoryMB       int     `json:"memoryMb"`
	TimeoutSeconds float64 `json:"timeoutSeconds"`
	OutputBytes    int64   `json:"outputBytes"`

	AllowNet       []string `json:"allowNet"` // in normal form
	AllowNetAny    bool     `json:"allowNetAny"`
	AllowTCP       []string `json:"allowTcp"` // in normal form
	MaxConnections int      `json:"maxConnections"`
	MaxUpload      int64    `json:"maxUploadBytes"`
	MaxDownload    int64    `json:"maxDownloadBytes"`

	Secrets   []string `json:"secrets"` // names
	Files     []Mount  `json:"files,omitempty"`
	Dirs      []Mount  `json:"dirs,omitempty"`
	Artifacts int64    `json:"artifacts"` // bytes; -1 is none
}

// Timeout is the time limit as a duration.
func (e Effective) Timeout() time.Duration {
	return time.Duration(e.TimeoutSeconds * float64(time.Second))
}

// Denial is something that was asked for and not given.
type Denial struct {
	Field     string `json:"field"`
	Requested string `json:"requested"`
	Reason    string `json:"reason"`
	Rule      string `json:"rule,omitempty"` // the file that said so, or the built-in ceiling
	Key       string `json:"key,omitempty"`  // the ceiling's key that would allow it
}

// String is the denial in a sentence. What was asked for stands in it as it is.
func (d Denial) String() string {
	return fmt.Sprintf("%s %s: %s (key %s of the ceiling would allow it)", d.Field, d.Requested, d.Reason, d.Key)
}

// Defaults.
const (
	DefaultMemoryMB       = 512
	DefaultTimeoutSeconds = 60
	DefaultOutputBytes    = 16 << 20
	DefaultMaxConnections = 128
	DefaultMaxUpload      = 1 << 30
	DefaultMaxDownload    = 8 << 30
	DefaultArtifacts      = 64 << 20
)

// Bounds on what can be asked for at all.
const (
	MinMemoryMB       = 128 // Node needs 96 MiB
	MaxMemoryMB       = 64 << 10
	MaxTimeoutSeconds = 24 * 60 * 60
	MaxOutputBytes    = 1 << 30
	MaxRules          = 256 // of each list
	MaxMaxConnections = 4096
	MaxTransfer       = 1 << 40
	MaxArtifacts      = 4 << 30
)

// FieldError says that a field of a request can't be what it is.
type FieldError struct {
	Field  string // JSON name
	Value  string
	Reason string
}

func (e *FieldError) Error() string { return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Reason) }

// Resolve checks a request, fills in the defaults, and cuts it to a ceiling; nil is
// none. What was cut is in the denials.
func Resolve(r Request, c *Ceiling) (Effective, []Denial, error) {
	e := Effective(r)
	e.Files, e.Dirs = slices.Clone(r.Files), slices.Clone(r.Dirs) // the request stays the caller's
	if e.MemoryMB == 0 {
		e.MemoryMB = DefaultMemoryMB
	}
	if e.TimeoutSeconds == 0 {
		e.TimeoutSeconds = DefaultTimeoutSeconds
	}
	if e.OutputBytes == 0 {
		e.OutputBytes = DefaultOutputBytes
	}
	if e.MaxConnections == 0 {
		e.MaxConnections = DefaultMaxConnections
	}
	if e.MaxUpload == 0 {
		e.MaxUpload = DefaultMaxUpload
	}
	if e.MaxDownload == 0 {
		e.MaxDownload = DefaultMaxDownload
	}
	if e.Artifacts == 0 {
		e.Artifacts = DefaultArtifacts
	}
	bad := func(field string, value any, format string, args ...any) (Effective, []Denial, error) {
		return Effective{}, nil, &FieldError{field, fmt.Sprint(value), fmt.Sprintf(format, args...)}
	}
	switch {
	case e.Kernel != "" && e.Kernel != "linux" && e.Kernel != "nanos":
		return bad("kernel", fmt.Sprintf("%q", r.Kernel), "use linux or nanos")
	case e.MemoryMB < MinMemoryMB || e.MemoryMB > MaxMemoryMB:
		return bad("memoryMb", e.MemoryMB, "must be from %d to %d", MinMemoryMB, MaxMemoryMB)
	case !(e.TimeoutSeconds > 0 && e.TimeoutSeconds <= MaxTimeoutSeconds):
		return bad("timeoutSeconds", e.TimeoutSeconds, "must be more than 0 and at most %d", MaxTimeoutSeconds)
	case e.OutputBytes < 0 || e.OutputBytes > MaxOutputBytes:
		return bad("outputBytes", e.OutputBytes, "must be from 1 to %d", MaxOutputBytes)
	case e.MaxConnections < 0 || e.MaxConnections > MaxMaxConnections:
		return bad("maxConnections", e.MaxConnections, "must be from 1 to %d", MaxMaxConnections)
	case e.MaxUpload < 0 || e.MaxUpload > MaxTransfer:
		return bad("maxUploadBytes", e.MaxUpload, "must be from 1 to %d", int64(MaxTransfer))
	case e.MaxDownload < 0 || e.MaxDownload > MaxTransfer:
		return bad("maxDownloadBytes", e.MaxDownload, "must be from 1 to %d", int64(MaxTransfer))
	case e.Artifacts < -1 || e.Artifacts > MaxArtifacts:
		return bad("artifacts", e.Artifacts, "must be from 1 to %d bytes, or -1 for none", int64(MaxArtifacts))
	case len(e.Files) > MaxRules:
		return bad("files", fmt.Sprintf("of %d entries", len(e.Files)), "must have at most %d: --dir brings whole folders", MaxRules)
	case len(e.Dirs) > MaxRules:
		return bad("dirs", fmt.Sprintf("of %d entries", len(e.Dirs)), "must have at most %d", MaxRules)
	}
	var err error
	if e.AllowNet, err = normalList("allowNet", r.AllowNet, ParseNetRule); err != nil {
		return Effective{}, nil, err
	}
	if e.AllowTCP, err = normalList("allowTcp", r.AllowTCP, ParseTCPRule); err != nil {
		return Effective{}, nil, err
	}
	if e.Secrets, err = normalList("secrets", r.Secrets, parseName); err != nil {
		return Effective{}, nil, err
	}
	if c == nil {
		return e, nil, nil
	}
	denials := c.narrow(&e, r)
	return e, denials, nil
}

// normalList brings rules into normal form, each once, in the order given.
func normalList[R fmt.Stringer](field string, list []string, parse func(string) (R, error)) ([]string, error) {
	out := []string{}
	if len(list) > MaxRules {
		return nil, &FieldError{field, fmt.Sprintf("of %d entries", len(list)), fmt.Sprintf("must have at most %d", MaxRules)}
	}
	for _, s := range list {
		r, err := parse(s)
		if err != nil {
			return nil, &FieldError{field, fmt.Sprintf("%.100q", s), err.Error()}
		}
		if text := r.String(); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out, nil
}

// name is that of an environment variable.
type name string

func (n name) String() string { return string(n) }

func (n name) intersect(o name) (name, bool) { return n, n == o }

func parseName(s string) (name, error) {
	for i, c := range []byte(s) {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return "", errors.New("is no name of an environment variable: letters, digits and _ only")
		}
	}
	if s == "" || len(s) > 256 {
		return "", errors.New("must have 1 to 256 bytes")
	}
	return name(s), nil
}
