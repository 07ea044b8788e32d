package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/realpath"
)

// TrustFile is the file in a home with the list of trusted ceiling files.
const TrustFile = "trusted.json"

// maxTrust bounds the file: some thousand entries.
const maxTrust = 1 << 20

// Trust is a home's list of the ceiling files that may widen models' limits, each with its path and a digest of
// its meaning.
type Trust struct{ file string }

// OpenTrust returns the list of a home, "" for none; it reads nothing yet.
func OpenTrust(home string) Trust {
	if home == "" {
		return Trust{}
	}
	return Trust{filepath.Join(home, TrustFile)}
}

// Trusted is a file on the list.
type Trusted struct {
	Path   string    `json:"path"` // links resolved
	Digest string    `json:"digest"`
	Since  time.Time `json:"since"`
}

// ErrNotTrusted means that a ceiling file is not on the list of trusted ones.
var ErrNotTrusted = errors.New("is not trusted")

// List returns the trusted files, sorted by path.
func (t Trust) List() ([]Trusted, error) {
	text, err := readPrivate("the trusted ceilings", t.file)
	if err != nil || text == nil {
		return nil, err
	}
	var list []Trusted
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("read the trusted ceilings: %s can't be read (%v): remove it, then trust the files again",
			t.file, err)
	}
	return list, nil
}

// readPrivate reads a file of the home with which its user widens grants: nobody else may have written it. It
// returns nil if the file does not exist.
func readPrivate(what, name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer f.Close()
	bad := func(format string, args ...any) ([]byte, error) {
		return nil, fmt.Errorf("read %s: %s "+format, append([]any{what, name}, args...)...)
	}
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", what, err)
	case !st.Mode().IsRegular():
		return bad("is not a regular file")
	case st.Mode().Perm()&0o077 != 0:
		return bad("is open to other users (mode %04o): check what it holds, then chmod 600", st.Mode().Perm())
	case int(st.Sys().(*syscall.Stat_t).Uid) != os.Getuid():
		return bad("belongs to another user (uid %d)", st.Sys().(*syscall.Stat_t).Uid)
	case st.Size() > maxTrust:
		return bad("has more than %d bytes", maxTrust)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxTrust))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return append([]byte{}, text...), nil
}

// Of checks that a ceiling file is trusted in its current version. The error is ErrNotTrusted with the reason, or
// an error of the list itself.
func (t Trust) Of(c *Ceiling) error {
	list, err := t.List()
	if err != nil {
		return err
	}
	at, err := realName(c.Path)
	if err != nil {
		return err
	}
	for _, known := range list {
		switch {
		case known.Path != at:
		case known.Digest == c.digest():
			return nil
		default:
			return fmt.Errorf("%w: it, or where its folders lead, has changed since %s", ErrNotTrusted,
				known.Since.Local().Format(time.DateTime))
		}
	}
	return ErrNotTrusted
}

// Add trusts a ceiling file in the version that was read.
func (t Trust) Add(c *Ceiling, now time.Time) error {
	at, err := realName(c.Path)
	if err != nil {
		return err
	}
	return t.change(at, &Trusted{Path: at, Digest: c.digest(), Since: now.UTC().Truncate(time.Second)})
}

// Forget removes a file from the list; the file itself may no longer exist.
func (t Trust) Forget(name string) error {
	at, err := realName(name)
	if errors.Is(err, fs.ErrNotExist) {
		at, err = realName(filepath.Dir(name))
		at = filepath.Join(at, filepath.Base(name))
	}
	if err != nil {
		return err
	}
	return t.change(at, nil)
}

// change replaces the entry of a path, or removes it.
func (t Trust) change(at string, by *Trusted) error {
	lock, err := filelock.Take(t.file + ".lock")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	list, err := t.List()
	if err != nil {
		return err
	}
	rest := slices.DeleteFunc(slices.Clone(list), func(known Trusted) bool { return known.Path == at })
	if by == nil && len(rest) == len(list) {
		return fmt.Errorf("%s: %w", at, ErrNotTrusted)
	}
	if by != nil {
		rest = append(rest, *by)
	}
	slices.SortFunc(rest, func(a, b Trusted) int { return strings.Compare(a.Path, b.Path) })
	text, err := json.MarshalIndent(rest, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Fill(t.file, 0o600, func(f *os.File) error {
		_, err := f.Write(append(text, '\n'))
		return errors.Join(err, f.Sync())
	})
}

// realName returns a file's path, with links resolved.
func realName(name string) (string, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	return realpath.Of(abs)
}

// digest hashes a file's meaning: its text, and the targets of its folder names, which a link can change while
// the text stays.
func (c *Ceiling) digest() string {
	h := sha256.New()
	fmt.Fprintf(h, "%d\n%s", len(c.text), c.text)
	write := func(c *Ceiling) {
		text, _ := json.Marshal([]any{c.most["filesUnder"], c.most["dirsUnder"], c.most["writeUnder"]})
		fmt.Fprintf(h, "\n%s", text)
	}
	write(c)
	for _, name := range slices.Sorted(maps.Keys(c.host)) {
		fmt.Fprintf(h, "\n%s %q", name, c.host[name].folders())
	}
	limit, _ := c.most[toolsKey].(toolLimit)
	for _, name := range slices.Sorted(maps.Keys(limit.servers)) {
		fmt.Fprintf(h, "\n%s %q", name, limit.servers[name].Dir)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Principals)) {
		write(c.Principals[name])
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// ForModels is the ceiling on models' runs, with its source.
type ForModels struct {
	Ceiling *Ceiling   // never nil
	File    string     // the file that it was made from; "" if there is none
	Trusted bool       // the file may widen the built-in ceiling
	Ignored []Widening // the file's values that are ignored because it is not trusted
	Why     string     // why it is not trusted
	Above   *ForModels // the ceiling without the file, which the file narrows; nil if it is trusted, or there is none
}

// LoadForModels makes the ceiling for models that are served from a folder: the built-in one, with the file's keys
// replacing its own. named is a file that the user named, which is trusted. Without it, the first CeilingFile in dir or
// above applies, if it is in the home's list. A nearer file that is not in the list may have come with a repository: it
// can only narrow. shared means that callers may be other users than the owner of these files. The built-in ceiling
// then allows none of the files.
func LoadForModels(home, dir, named string, shared bool) (*ForModels, error) {
	dir, err := absolute(dir)
	if err != nil {
		return nil, err
	}
	origin := &Origin{Models: true, Dir: dir, Shared: shared}
	builtIn := BuiltIn("", home)
	if !shared {
		builtIn = BuiltIn(dir, home)
	}
	var m *ForModels
	if named != "" {
		if origin.File, err = filepath.Abs(named); err != nil {
			return nil, err
		}
		file, err := ReadCeiling(named)
		if err != nil {
			return nil, err
		}
		m = &ForModels{Ceiling: builtIn.With(file), File: file.Path, Trusted: true}
	} else if m, err = findForModels(OpenTrust(home), dir, builtIn); err != nil {
		return nil, err
	}
	m.Ceiling = m.Ceiling.from(origin)
	return m, nil
}

// findForModels makes the ceiling from the files in a folder and above.
func findForModels(trust Trust, dir string, builtIn *Ceiling) (*ForModels, error) {
	list, err := findCeilings(trust, dir)
	m := &ForModels{Ceiling: builtIn}
	for i := len(list) - 1; i >= 0; i-- {
		file, above := list[i], m
		m = &ForModels{File: file.Path, Trusted: file.trusted, Why: file.why, Above: above}
		switch {
		case !file.trusted:
			m.Ceiling, m.Ignored = above.Ceiling.NarrowedBy(file.Ceiling), file.Beyond(above.Ceiling)
		case above.File == "":
			m.Ceiling, m.Above = builtIn.With(file.Ceiling), nil
		default: // there are others on another path to the folder
			m.Ceiling = above.Ceiling.NarrowedBy(builtIn.With(file.Ceiling))
		}
	}
	return m, err
}

// String describes in a sentence which ceiling applies.
func (m *ForModels) String() string {
	switch {
	case m.File == "":
		return builtInRule + ": no " + CeilingFile + " here or above"
	case m.Trusted && m.Above == nil:
		return m.File
	}
	text := m.File + " narrows " + builtInRule
	if m.Above.File != "" {
		text = m.File + " narrows (" + m.Above.String() + ")"
	}
	if len(m.Ignored) == 0 {
		return text
	}
	var list []string
	for _, w := range m.Ignored {
		list = append(list, w.String())
	}
	return fmt.Sprintf("%s; ignored, because it %s: %s", text, m.Why, strings.Join(list, ", "))
}

// Remedy explains what to do about ignored keys; "" if there are none.
func (m *ForModels) Remedy() string {
	if m.Above != nil && len(m.Ignored) == 0 {
		return m.Above.Remedy()
	}
	if len(m.Ignored) == 0 {
		return ""
	}
	return "read the file, then: unitask policy trust " + shellWord(m.File)
}

// shellWord returns a path for a shell: in quotes if it has unusual characters.
func shellWord(path string) string {
	if !strings.ContainsFunc(path, func(c rune) bool {
		return c < 0x80 && !strings.ContainsRune("/._-+:,@%=", c) && !('0' <= c && c <= '9') && !('A' <= c && c <= 'Z') &&
			!('a' <= c && c <= 'z')
	}) {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
