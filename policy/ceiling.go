package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/unitask/unitask/internal/exact"
)

// CeilingFile is the name that is looked for, from the working directory upwards.
const CeilingFile = ".unitask.toml"

// Ceiling is the most that runs may have. What is nil is no ceiling on that field; an
// empty list allows nothing.
type Ceiling struct {
	// Path is the file it was read from.
	Path string `toml:"-" json:"path"`

	Kernel         *string  `toml:"kernel" json:"kernel,omitempty"` // the only one that runs may have
	MemoryMB       *int     `toml:"memoryMb" json:"memoryMb,omitempty"`
	TimeoutSeconds *float64 `toml:"timeoutSeconds" json:"timeoutSeconds,omitempty"`
	OutputBytes    *int64   `toml:"outputBytes" json:"outputBytes,omitempty"`

	// AllowNet and AllowTCP are in normal form. A wildcard admits what it covers.
	AllowNet       *[]string `toml:"allowNet" json:"allowNet,omitempty"`
	AllowNetAny    *bool     `toml:"allowNetAny" json:"allowNetAny,omitempty"`
	AllowTCP       *[]string `toml:"allowTcp" json:"allowTcp,omitempty"`
	MaxConnections *int      `toml:"maxConnections" json:"maxConnections,omitempty"`
	MaxUpload      *int64    `toml:"maxUploadBytes" json:"maxUploadBytes,omitempty"`
	MaxDownload    *int64    `toml:"maxDownloadBytes" json:"maxDownloadBytes,omitempty"`

	// Secrets are the names of the secrets that runs may have.
	Secrets *[]string `toml:"secrets" json:"secrets,omitempty"`
	// FilesUnder and DirsUnder are the folders below which files and folders may be
	// given: absolute, links resolved. Relative ones in the file are taken from its own
	// folder.
	FilesUnder *[]string `toml:"filesUnder" json:"filesUnder,omitempty"`
	DirsUnder  *[]string `toml:"dirsUnder" json:"dirsUnder,omitempty"`
	// Artifacts are the bytes that may come back from /out; 0 is none.
	Artifacts *int64 `toml:"artifacts" json:"artifacts,omitempty"`

	// Principals are what the callers of a shared server get, by their names: each
	// narrows the ceiling further and can't widen it.
	Principals map[string]*Ceiling `toml:"principals" json:"principals,omitempty"`

	over      *Ceiling          // what this one narrows
	inherited map[string]string // keys that the file has not, to whose they are
	prefix    string            // of its keys in the file
	text      []byte            // of the file, to name lines
}

// For is the ceiling of a principal: this one, narrowed by the principal's own if
// there is one.
func (c *Ceiling) For(principal string) *Ceiling {
	if c == nil || c.Principals[principal] == nil {
		return c
	}
	own := *c.Principals[principal]
	own.over, own.prefix = c, "principals."+principal+"."
	return &own
}

// CeilingError says what is wrong with a ceiling's file: no run may go on under it.
type CeilingError struct {
	Path string
	Line int // 0 when it is about the file as a whole
	Err  error
}

func (e *CeilingError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %v", e.Path, e.Line, e.Err)
	}
	return fmt.Sprintf("%s: %v", e.Path, e.Err)
}

func (e *CeilingError) Unwrap() error { return e.Err }

// maxCeiling bounds the file.
const maxCeiling = 1 << 20

// FindCeiling reads the first CeilingFile in dir or a folder above it; nil where there
// is none. Everything that keeps it from being read as it was meant is an error.
func FindCeiling(dir string) (*Ceiling, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for {
		name := filepath.Join(dir, CeilingFile)
		_, err := os.Lstat(name)
		switch {
		case err == nil:
			return ReadCeiling(name)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, &CeilingError{Path: name, Err: err}
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil, nil
		}
		dir = parent
	}
}

// ReadCeiling reads a ceiling's file.
func ReadCeiling(name string) (*Ceiling, error) {
	text, err := readTrusted(name)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, &CeilingError{Path: name, Err: err}
	}
	return ParseCeiling(name, text)
}

// readTrusted reads a file that nobody but its owner, us or root, may have written,
// and that is not a link out of its own folder.
func readTrusted(name string) ([]byte, error) {
	real, err := filepath.EvalSymlinks(name)
	if err != nil {
		return nil, err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err != nil {
		return nil, err
	}
	if rel, err := filepath.Rel(dir, real); err != nil || !filepath.IsLocal(rel) {
		return nil, fmt.Errorf("is a link to %s, outside of its folder", real)
	}
	f, err := os.OpenFile(real, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, errors.New("is not a regular file")
	case st.Mode().Perm()&0o002 != 0:
		return nil, fmt.Errorf("may be written by everybody (mode %04o): chmod o-w", st.Mode().Perm())
	case st.Size() > maxCeiling:
		return nil, fmt.Errorf("has more than %d bytes", maxCeiling)
	}
	if owner := int(st.Sys().(*syscall.Stat_t).Uid); owner != 0 && owner != os.Getuid() {
		return nil, fmt.Errorf("belongs to another user (uid %d)", owner)
	}
	return io.ReadAll(io.LimitReader(f, maxCeiling+1))
}

// ParseCeiling reads a ceiling's text; name is for messages and relative paths.
func ParseCeiling(name string, text []byte) (*Ceiling, error) {
	c := &Ceiling{Path: name, text: text}
	if !utf8.Valid(text) {
		return nil, &CeilingError{name, 1, errors.New("is not UTF-8 text")}
	}
	meta, err := exact.Decode(string(text), c)
	if err != nil {
		var key *exact.KeyError
		if errors.As(err, &key) {
			return nil, c.wrong(key.Key[0], err)
		}
		var parse toml.ParseError
		if errors.As(err, &parse) {
			return nil, &CeilingError{name, parse.Position.Line, errors.New(strings.TrimPrefix(parse.Message, "toml: "))}
		}
		return nil, &CeilingError{name, c.lineIn(err.Error()), errors.New(strings.TrimPrefix(err.Error(), "toml: "))}
	}
	if kind := meta.Type("principals"); kind != "" && kind != "Hash" {
		return nil, c.wrong("principals", fmt.Errorf("principals is a %s: use [principals.NAME]", strings.ToLower(kind)))
	}
	if err := c.finish(); err != nil {
		return nil, err
	}
	for name, own := range c.Principals {
		own.Path = c.Path
		err := own.finish()
		var bad *CeilingError
		if errors.As(err, &bad) {
			err = bad.Err
		}
		if err == nil && own.Principals != nil {
			err = errors.New("has principals of its own")
		}
		if err != nil {
			return nil, c.wrong("principals", fmt.Errorf("principals.%s: %w", name, err))
		}
		own.Path += " [principals." + name + "]"
	}
	return c, nil
}

// finish checks what was read and resolves the folders.
func (c *Ceiling) finish() error {
	return errors.Join(c.check(), c.realFolders("filesUnder", c.FilesUnder), c.realFolders("dirsUnder", c.DirsUnder))
}

// realFolders resolves the links of a list's folders. One that does not exist admits
// nothing, whatever will be there later.
func (c *Ceiling) realFolders(key string, list *[]string) error {
	if list == nil {
		return nil
	}
	base, err := filepath.Abs(filepath.Dir(c.Path))
	if err != nil {
		return c.wrong(key, err)
	}
	out := []string{}
	for _, dir := range *list {
		if dir == "" || strings.ContainsRune(dir, 0) {
			return c.wrong(key, fmt.Errorf("%s %q: is not a folder's path", key, dir))
		}
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(base, dir)
		}
		real, err := filepath.EvalSymlinks(dir)
		switch {
		case err == nil:
			out = append(out, real)
		case !errors.Is(err, fs.ErrNotExist):
			return c.wrong(key, fmt.Errorf("%s %q: %w", key, dir, err))
		}
	}
	*list = out
	return nil
}

// wrong is an error about a key.
func (c *Ceiling) wrong(key string, err error) error {
	return &CeilingError{c.Path, c.line(key), err}
}

// line is where a key of the top level stands; 0 if it can't be found.
func (c *Ceiling) line(key string) int {
	at := regexp.MustCompile(`(?m)^[ \t]*\[*[ \t]*["']?` + regexp.QuoteMeta(key) + `["']?[ \t]*[=.\]]`).FindIndex(c.text)
	if at == nil {
		return 0
	}
	return 1 + bytes.Count(c.text[:at[0]], []byte{'\n'})
}

var quotedKey = regexp.MustCompile(`"([A-Za-z]+)"`)

// lineIn is the line of the key that a message of the decoder names.
func (c *Ceiling) lineIn(message string) int {
	for _, m := range quotedKey.FindAllStringSubmatch(message, -1) {
		if line := c.line(m[1]); line > 0 {
			return line
		}
	}
	return 0
}

// check holds every value against what can be asked for at all.
func (c *Ceiling) check() error {
	return errors.Join(
		checkKey(c, "kernel", c.Kernel, nil, func(r *Request) *string { return &r.Kernel }),
		checkKey(c, "memoryMb", c.MemoryMB, positive, func(r *Request) *int { return &r.MemoryMB }),
		checkKey(c, "timeoutSeconds", c.TimeoutSeconds, positive, func(r *Request) *float64 { return &r.TimeoutSeconds }),
		checkKey(c, "outputBytes", c.OutputBytes, positive, func(r *Request) *int64 { return &r.OutputBytes }),
		checkKey(c, "maxConnections", c.MaxConnections, positive, func(r *Request) *int { return &r.MaxConnections }),
		checkKey(c, "maxUploadBytes", c.MaxUpload, positive, func(r *Request) *int64 { return &r.MaxUpload }),
		checkKey(c, "maxDownloadBytes", c.MaxDownload, positive, func(r *Request) *int64 { return &r.MaxDownload }),
		checkKey(c, "artifacts", c.Artifacts, notNegative, func(r *Request) *int64 { return &r.Artifacts }),
		checkKey(c, "allowNet", c.AllowNet, nil, func(r *Request) *[]string { return &r.AllowNet }),
		checkKey(c, "allowTcp", c.AllowTCP, nil, func(r *Request) *[]string { return &r.AllowTCP }),
		checkKey(c, "secrets", c.Secrets, nil, func(r *Request) *[]string { return &r.Secrets }),
	)
}

// checkKey checks the value of a key, nil for one that is absent: against bounds,
// which says what it must be if it isn't, and as a request for that field alone.
func checkKey[T any](c *Ceiling, key string, value *T, bounds func(T) string, field func(*Request) *T) error {
	if value == nil {
		return nil
	}
	if bounds != nil {
		if must := bounds(*value); must != "" {
			return c.wrong(key, fmt.Errorf("%s %v: must %s", key, *value, must))
		}
	}
	var r Request
	*field(&r) = *value
	_, _, err := Resolve(r, nil)
	var wrong *FieldError
	if errors.As(err, &wrong) {
		err = fmt.Errorf("%s %s: %s", key, wrong.Value, wrong.Reason)
	}
	if err != nil {
		return c.wrong(key, err)
	}
	return nil
}

func positive[T int | int64 | float64](n T) string {
	if n <= 0 {
		return "be more than 0"
	}
	return ""
}

func notNegative[T int | int64](n T) string {
	if n < 0 {
		return "not be negative"
	}
	return ""
}

// Example is a commented file with every key, none of them in force.
const Example = `# The most that unitask may give to a run started in this folder or below.
# A key that is left out is no ceiling on that field; for models (unitask mcp) it has
# its built-in value. Whatever a run asks for beyond it is cut, and said so in the
# result and in the record.

# kernel = "linux"          # the only guest kernel: linux or nanos
# memoryMb = 1024           # memory of the machine
# timeoutSeconds = 120      # time limit of the code
# outputBytes = 16777216    # kept of each of stdout and stderr

# Network. An empty list allows nothing; a wildcard admits every name below it.
# allowNet = ["api.example.com", "*.example.org", "example.net:8443"]
# allowNetAny = false
# allowTcp = ["127.0.0.1:5432"]
# maxConnections = 128
# maxUploadBytes = 1073741824
# maxDownloadBytes = 8589934592

# Names of secrets that a run may be given (--secret).
# secrets = ["GITHUB_TOKEN"]

# Folders below which a run may be given files (--file) and folders (--dir). Relative
# ones are taken from this file's folder; links are resolved.
# filesUnder = ["./data"]
# dirsUnder = ["./data", "/srv/shared"]

# Bytes that may come back from /out; 0 is none.
# artifacts = 67108864

# What callers of a shared server (unitask mcp --http) get, by the name of their token:
# all of the above, narrowed further.
# [principals.alice]
# memoryMb = 512
`
