// Package policy decides what a run may do. Request is what a caller asks for, Ceiling (a .unitask.toml) the upper
// limits, and Effective what is granted, with a Denial for each cut. Fields is the table of everything that it decides.
//
// It has no side effects: it reads ceilings and the list of those that the user trusts, starts nothing and opens no
// connections.
package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Request is what a caller asks for. Zero values mean the default.
type Request struct {
	Image       string        `json:"image"`       // by its name: node, python
	Kernel      string        `json:"kernel"`      // linux, nanos, or "" for the best there is
	MemoryMB    int           `json:"memoryMb"`    // of the machine, MiB
	CPUs        float64       `json:"cpus"`        // processors of the machine
	Timeout     time.Duration `json:"timeoutMs"`   // of the code, not of the boot
	OutputBytes int64         `json:"outputBytes"` // kept of each of stdout and stderr
	// MaxProcesses bounds the code's processes and threads at once, on the linux kernel.
	MaxProcesses int `json:"maxProcesses"`

	// Packages are the packages that the code may import: "pip:requests==2.32.3", "npm:zod@4" (ParsePackage).
	Packages []string `json:"packages"`
	// AllowNet are hosts for HTTP and TLS: "example.com", "*.example.com",
	// "example.com:8443", an address; ports 80 and 443 if none is given.
	AllowNet []string `json:"allowNet"`
	// AllowNetAny allows every public host on 80 and 443.
	AllowNetAny bool `json:"allowNetAny"`
	// Ask lists hosts as AllowNet does. Each connection to one waits until somebody allows it.
	Ask []string `json:"ask"`
	// AllowTCP are HOST:PORT for raw TCP, private addresses and the host's own
	// loopback included.
	AllowTCP []string `json:"allowTcp"`
	// AllowHTTP are rules by method and path: "GET api.example.com/v1/*" (ParseHTTPRule). They
	// narrow what AllowNet and AllowTCP allow of these hosts.
	AllowHTTP []string `json:"allowHttp"`
	// Bounds of the network: connections at once, bytes from and to the guest.
	MaxConnections int   `json:"maxConnections"`
	MaxUpload      int64 `json:"maxUploadBytes"`
	MaxDownload    int64 `json:"maxDownloadBytes"`
	// Secrets are the secrets that the code may use: NAME, or NAME@HOST[,HOST…] (SecretRule).
	Secrets []string `json:"secrets"`
	// Files and Dirs are the host's, and read-only inside.
	Files []Mount `json:"files"`
	Dirs  []Mount `json:"dirs"`
	// Tools are names of the ceiling's tables of tools, which the code may call.
	Tools []string `json:"tools"`
	// MaxArtifacts bounds the bytes of artifacts that a run, or each step of a session, leaves in /out; -1 is none.
	MaxArtifacts int64 `json:"maxArtifactBytes"`
	// Debug says that a debugger controls the machine.
	Debug bool `json:"debug"`
	// WebFetch says that the code is unitask's own program that fetches a page.
	WebFetch bool `json:"webFetch"`
	// RequireJail lists layers and limits of the machine's jail. If one is missing, nothing runs.
	RequireJail []string `json:"requireJail"`
	// RequireHardware refuses to run without hardware virtualization.
	RequireHardware bool `json:"requireHardware"`
	// Audit refuses to run if the audit entries can't be written.
	Audit bool `json:"audit"`
}

// Mount is a file or folder of the host that the code may read.
type Mount struct {
	// Host is the path as requested, absolute.
	Host string `json:"host"`
	// Real is the path that Host led to when it was opened, links resolved. The ceiling applies
	// to this one.
	Real string `json:"real,omitempty"`
	// Guest is the path inside, absolute.
	Guest string `json:"guest"`
	// Project copies the folder as a project: without .git and the files that its .gitignore files name, but with
	// node_modules.
	Project bool `json:"project,omitempty"`
}

// Effective is what a run is granted. Its JSON form has every field, with the same keys as a
// request's.
type Effective struct {
	Image        string        `json:"image"` // "" if it was denied: nothing runs then
	Kernel       string        `json:"kernel"`
	MemoryMB     int           `json:"memoryMb"`
	CPUs         float64       `json:"cpus"`
	Timeout      time.Duration `json:"timeoutMs"`
	OutputBytes  int64         `json:"outputBytes"`
	MaxProcesses int           `json:"maxProcesses"`

	Packages       []PackageRule `json:"packages"`
	AllowNet       []NetRule     `json:"allowNet"`
	AllowNetAny    bool          `json:"allowNetAny"`
	Ask            []NetRule     `json:"ask"`
	AllowTCP       []TCPRule     `json:"allowTcp"`
	AllowHTTP      []HTTPRule    `json:"allowHttp"`
	MaxConnections int           `json:"maxConnections"`
	MaxUpload      int64         `json:"maxUploadBytes"`
	MaxDownload    int64         `json:"maxDownloadBytes"`

	Secrets      []SecretRule `json:"secrets"`
	Files        []Mount      `json:"files"`
	Dirs         []Mount      `json:"dirs"`
	Tools        []string     `json:"tools"`
	MaxArtifacts int64        `json:"maxArtifactBytes"` // -1 is none
	Debug        bool         `json:"debug"`
	WebFetch     bool         `json:"webFetch"`
	RequireJail  []string     `json:"requireJail"`

	RequireHardware bool `json:"requireHardware"`
	Audit           bool `json:"audit"`
}

// MarshalJSON gives the wire form.
func (e Effective) MarshalJSON() ([]byte, error) {
	type plain Effective
	return json.Marshal(struct {
		plain
		Timeout Millis `json:"timeoutMs"`
	}{plain(e), Millis(e.Timeout)})
}

// UnmarshalJSON reads the wire form.
func (e *Effective) UnmarshalJSON(data []byte) error {
	type plain Effective
	wire := struct {
		*plain
		Timeout Millis `json:"timeoutMs"`
	}{plain: (*plain)(e)}
	err := json.Unmarshal(data, &wire)
	e.Timeout = time.Duration(wire.Timeout)
	return err
}

// Millis is a duration on the wire: whole milliseconds, rounded up so that a short limit does
// not become 0, the default.
type Millis time.Duration

// MarshalJSON encodes the number.
func (d Millis) MarshalJSON() ([]byte, error) {
	ms := int64(d) / int64(time.Millisecond)
	if rest := int64(d) % int64(time.Millisecond); rest > 0 {
		ms++
	} else if rest < 0 {
		ms--
	}
	return json.Marshal(ms)
}

// UnmarshalJSON reads a number.
func (d *Millis) UnmarshalJSON(data []byte) error {
	var ms int64
	if err := json.Unmarshal(data, &ms); err != nil {
		return err
	}
	const most = math.MaxInt64 / int64(time.Millisecond)
	*d = Millis(min(max(ms, -most), most) * int64(time.Millisecond))
	return nil
}

// Denial is a request that was not granted.
type Denial struct {
	Field     string `json:"field"`
	Requested string `json:"requested"`
	Reason    string `json:"reason"`
	Rule      string `json:"rule,omitempty"` // the file that caused the denial, or the built-in ceiling
	Line      int    `json:"line,omitempty"` // of the key in that file, 0 if it is not known
	Key       string `json:"key,omitempty"`  // the ceiling's key that would allow it
}

// String returns the denial as a sentence, which quotes the request verbatim.
func (d Denial) String() string {
	return fmt.Sprintf("%s %s: %s (key %s of the ceiling would allow it)", d.Field, d.Requested, d.Reason, d.Key)
}

// FieldError means that a field of a request has an invalid value.
type FieldError struct {
	Field  string // its name, or JSON key
	Value  string
	Reason string
	// Would holds the values of fields, by JSON key, that would make the request work.
	Would map[string]int64
}

// Bad returns the error about a field with an invalid value. The reason is format with its arguments.
func Bad(field, value, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Value: value, Reason: fmt.Sprintf(format, args...)}
}

func (e *FieldError) Error() string {
	text := fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Reason)
	var would []string
	for _, key := range slices.Sorted(maps.Keys(e.Would)) {
		would = append(would, fmt.Sprintf("%s %d", key, e.Would[key]))
	}
	if len(would) > 0 {
		text += ": " + strings.Join(would, " and ") + " would do"
	}
	return text
}

// Reaches reports whether a run's request or grant lets it connect to any host. from has the JSON keys of Request.
func Reaches(from any) bool {
	v := reflect.Indirect(reflect.ValueOf(from))
	for _, f := range Fields {
		if !f.reaches {
			continue
		}
		switch field := v.Field(place(v.Type(), f.Key)); field.Kind() {
		case reflect.Slice:
			if field.Len() > 0 {
				return true
			}
		default:
			if !field.IsZero() {
				return true
			}
		}
	}
	return false
}

// Asked makes a request from a struct whose fields have the same JSON keys: another kind of request, or a grant. It
// leaves out fields of other types.
func Asked(from any) (r Request) {
	src, dst := reflect.Indirect(reflect.ValueOf(from)), reflect.ValueOf(&r).Elem()
	for _, f := range Fields {
		i, to := place(src.Type(), f.Key), dst.Field(place(dst.Type(), f.Key))
		if i < 0 {
			continue
		}
		switch v := src.Field(i); {
		case v.Type().ConvertibleTo(to.Type()):
			to.Set(v.Convert(to.Type()))
		case (f.Form() == List || f.Form() == Names) && v.Kind() == reflect.Slice:
			texts := []string{}
			for n := range v.Len() {
				texts = append(texts, fmt.Sprint(v.Index(n)))
			}
			to.Set(reflect.ValueOf(texts))
		}
	}
	return r
}

// Resolve checks a request, fills in the defaults, and cuts it to a ceiling (nil is none). The denials list the cuts.
func Resolve(r Request, c *Ceiling) (Effective, []Denial, error) {
	var e Effective
	for i := range Fields {
		if err := Fields[i].kind.resolve(&Fields[i], &r, &e); err != nil {
			return Effective{}, nil, err
		}
	}
	if err := e.checkBound(); err != nil {
		return Effective{}, nil, err
	}
	denials := c.narrow(&e, &r)
	if err := e.checkBound(); err != nil { // the ceiling took the rule by which requests were read
		return Effective{}, nil, err
	}
	return e, denials, nil
}

// checkBound refuses a secret whose host is open to raw TCP alone. unitask reads no requests on such connections, so
// the placeholder would be sent instead of the value.
func (e *Effective) checkBound() error {
	if e.AllowNetAny {
		return nil
	}
	for _, s := range e.Secrets {
		for _, b := range s.Bindings() {
			for _, raw := range e.AllowTCP {
				host := NetRule{Host: raw.Host}
				if _, covers := b.Host.intersect(host); !covers || raw.Host == "" || e.readsRequests(host) {
					continue
				}
				return Bad("secrets", s.String(),
					"is bound to %s, which is open to raw TCP alone (%s): "+
						"no request is read there, and the placeholder would go out as it is. Allow the host by allowNet", raw.Host, raw)
			}
		}
	}
	return nil
}

// readsRequests reports whether a rule opens a host, on any port, for requests that unitask reads.
func (e *Effective) readsRequests(host NetRule) bool {
	opens := func(r NetRule) bool {
		r.Port = 0
		_, ok := r.intersect(host)
		return ok
	}
	return slices.ContainsFunc(e.AllowNet, opens) || slices.ContainsFunc(e.Ask, opens) ||
		slices.ContainsFunc(e.AllowHTTP, func(r HTTPRule) bool { return !r.Audit && opens(r.Host) })
}

// narrow cuts the granted values to a ceiling. It never adds.
func (c *Ceiling) narrow(e *Effective, asked *Request) (denials []Denial) {
	if c == nil {
		return nil
	}
	denials = c.over.narrow(e, asked)
	for i := range Fields {
		f := &Fields[i]
		f.kind.narrow(f, c, asked, e, func(requested any, reason string) {
			denials = append(denials, Denial{Field: f.name(), Requested: fmt.Sprint(requested), Reason: reason,
				Rule: c.rule(f.ceiling()), Line: c.ruleLine(f.ceiling()), Key: c.prefix + f.ceiling()})
		})
	}
	return denials
}
