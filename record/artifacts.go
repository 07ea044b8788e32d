package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/unitask/unitask/guest/contract"
)

// ArtifactsDir is the folder, in a run's folder, of its artifacts.
const ArtifactsDir = "out"

// Bounds of artifacts, bytes aside.
const (
	maxArtifacts = 1000
	maxRefusals  = 100 // refusals with a name; the last one of a longer list gives the number of further ones
	maxOffered   = 20_000
	maxNesting   = 32
	maxName      = 255
	maxNames     = 1024 // bytes of a path
	// maxFolders bounds the folders in the paths of all files; one path can have 31.
	maxFolders = 4000
)

// Artifact is a stored file from /out.
type Artifact struct {
	Path   string `json:"path"` // below the folder, with slashes
	Size   int64  `json:"size"`
	Mode   string `json:"mode"` // permissions, octal: "0644"
	SHA256 string `json:"sha256"`
}

// Refusal is a file or other entry of /out that was not stored, or not exported.
type Refusal struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Missed bool   `json:"missed,omitempty"` // its kind and name were acceptable
}

// ErrEnough means that a guest offers too many entries: the store accepts no more.
var ErrEnough = errors.New("no more artifacts are taken")

// Artifacts stores files from an untrusted guest. It checks names and keeps files below the folder, stores only regular
// files, and never replaces one by another.
type Artifacts struct {
	Kept    []Artifact
	Refused []Refusal

	root     *os.Root
	dir      string
	folders  map[string]bool // that were made
	making   int             // folders that were made, or attempted
	left     int64
	most     int64
	wasted   int64 // bytes of files that are not stored
	offered  int   // files, links and so on
	unnamed  int   // refusals beyond maxRefusals
	missed   bool  // one of those should have been stored
	cut      string
	redactor *Redactor

	at     Artifact
	file   *os.File
	plain  io.WriteCloser // redacts, into file
	digest hash.Hash
	size   int64
	got    int64 // its bytes so far, before redaction
	skip   bool
}

// Artifacts returns the store for a run's artifacts; most is the maximum of their bytes. It redacts names and contents.
// Close it.
func (r *Run) Artifacts(most int64, redactor *Redactor) *Artifacts {
	return &Artifacts{dir: filepath.Join(r.dir, ArtifactsDir), left: most, most: most, redactor: redactor}
}

// refuse notes an entry that was not stored; the list has a limit. missed means that the entry should have been
// stored.
func (a *Artifacts) refuse(name, reason string, missed bool) {
	a.skip = true
	if len(a.Refused) == maxRefusals {
		a.unnamed++
		a.missed = a.missed || missed
		return
	}
	a.Refused = append(a.Refused, Refusal{strings.ToValidUTF8(a.redactor.String(name), "\ufffd"), reason, missed})
}

// Left returns how many more bytes the store accepts.
func (a *Artifacts) Left() int64 { return max(a.left, 0) }

// Large notes a file that is too large; call it instead of Begin.
func (a *Artifacts) Large(name string) error {
	if err := a.next(); err != nil {
		return err
	}
	if why := BadName(name); why != "" {
		a.refuse(name, why, false)
		return nil
	}
	a.refuse(name, a.tooLarge(), true)
	return nil
}

func (a *Artifacts) tooLarge() string { return fmt.Sprintf("is beyond %d bytes in all", a.most) }

// next ends the current file, before the next entry.
func (a *Artifacts) next() error {
	if err := a.end(); err != nil {
		return err
	}
	if a.offered++; a.offered > maxOffered {
		a.cut = fmt.Sprintf("it has more than %d files", maxOffered)
		return ErrEnough
	}
	return nil
}

// Begin receives the next entry; see guest.Sink.
func (a *Artifacts) Begin(kind, perm fs.FileMode, name string) error {
	if err := a.next(); err != nil {
		return err
	}
	a.skip, a.got = false, 0
	if why := BadName(name); why != "" {
		a.refuse(name, why, false)
		return nil
	}
	switch kind {
	case 0:
	case fs.ModeSymlink:
		a.refuse(name, "is a link", false)
		return nil
	default:
		a.refuse(name, "is not a regular file", false)
		return nil
	}
	if len(a.Kept) == maxArtifacts {
		a.refuse(name, fmt.Sprintf("is beyond %d files", maxArtifacts), true)
		return nil
	}
	name = a.redactor.String(name)
	if err := a.open(name); err != nil {
		a.refuse(name, err.Error(), true)
		return nil
	}
	a.at = Artifact{Path: name, Mode: fmt.Sprintf("%04o", perm.Perm())}
	a.digest, a.size = sha256.New(), 0
	a.plain = a.redactor.Writer(writer(a.store))
	return nil
}

func (a *Artifacts) open(name string) (err error) {
	if a.root == nil {
		if err := os.Mkdir(a.dir, 0o700); err != nil {
			return plainError(err)
		}
		if a.root, err = os.OpenRoot(a.dir); err != nil {
			return plainError(err)
		}
	}
	if err := a.makeFolders(path.Dir(name)); err != nil {
		return err
	}
	a.file, err = a.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return plainError(err)
}

// makeFolders makes the folders of a path, if there is room for all of them.
func (a *Artifacts) makeFolders(dir string) error {
	var made []string
	for at := dir; at != "." && !a.folders[at]; at = path.Dir(at) {
		made = append(made, at)
	}
	if a.making+len(made) > maxFolders {
		return fmt.Errorf("is beyond %d folders in all", maxFolders)
	}
	if len(made) == 0 {
		return nil
	}
	a.making += len(made) // some exist even if one can't be made
	if err := a.root.MkdirAll(dir, 0o700); err != nil {
		return plainError(err)
	}
	if a.folders == nil {
		a.folders = map[string]bool{}
	}
	for _, at := range made {
		a.folders[at] = true
	}
	return nil
}

func plainError(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// store writes to the current file, with its size and digest.
func (a *Artifacts) store(p []byte) (int, error) {
	a.digest.Write(p)
	a.size += int64(len(p))
	return a.file.Write(p)
}

// Data receives the next bytes of the current file. Bytes of files that are not stored have their own limit: the
// guest knows how much the store accepts.
func (a *Artifacts) Data(p []byte) error {
	n := int64(len(p))
	if !a.skip && n > a.left {
		name := a.at.Path
		a.drop()
		a.left += a.got
		a.wasted += a.got
		a.refuse(name, a.tooLarge(), true)
	}
	if a.skip {
		if a.wasted += n; a.wasted > a.most {
			a.cut = fmt.Sprintf("the files that are not stored have more than %d bytes, too", a.most)
			return ErrEnough
		}
		return nil
	}
	a.left -= n
	a.got += n
	if _, err := a.plain.Write(p); err != nil {
		a.drop()
		return fmt.Errorf("store an artifact: %w", err)
	}
	return nil
}

// drop removes the current file.
func (a *Artifacts) drop() {
	a.file.Close()
	_ = a.root.Remove(a.at.Path)
	a.file = nil
}

// end finishes the current file.
func (a *Artifacts) end() error {
	if a.file == nil {
		return nil
	}
	err := a.plain.Close()
	if e := a.file.Close(); err == nil {
		err = e
	}
	a.file = nil
	if err != nil {
		_ = a.root.Remove(a.at.Path)
		return fmt.Errorf("store an artifact: %w", err)
	}
	a.at.Size, a.at.SHA256 = a.size, hex.EncodeToString(a.digest.Sum(nil))
	a.Kept = append(a.Kept, a.at)
	return nil
}

// Cut reports that the current file did not arrive completely: the store drops it.
func (a *Artifacts) Cut() {
	if a.file == nil {
		return
	}
	name := a.at.Path
	a.drop()
	a.refuse(name, "did not come through whole", true)
}

// Close ends the collection. complete reports whether the last file arrived completely; if not, the store drops
// it.
func (a *Artifacts) Close(complete bool) error {
	if !complete {
		a.Cut()
	}
	err := a.end()
	if a.root != nil {
		a.root.Close()
	}
	if a.unnamed > 0 {
		a.Refused = append(a.Refused, Refusal{contract.OutDir, fmt.Sprintf("%d more did not come back either", a.unnamed),
			a.missed})
	}
	if a.cut != "" {
		a.Refused = append(a.Refused, Refusal{contract.OutDir, "not all of it came: " + a.cut, true})
	}
	return err
}

// BadName returns what is wrong with the path of an untrusted file below a folder, or "".
func BadName(name string) string {
	switch {
	case name == "" || len(name) > maxNames:
		return fmt.Sprintf("has a path of no or more than %d bytes", maxNames)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return "has a name that is no text"
	}
	parts := strings.Split(name, "/")
	if len(parts) > maxNesting {
		return fmt.Sprintf("lies more than %d folders deep", maxNesting)
	}
	for _, part := range parts {
		if part == "" || part == "." || part == ".." || len(part) > maxName {
			return "has a path that can't be"
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return "has a path that can't be"
	}
	return ""
}

// OpenArtifact opens an artifact of a run to be read.
func (s *Store) OpenArtifact(id, name string) (*os.File, error) {
	if !validID(id) || BadName(name) != "" {
		return nil, fmt.Errorf("%w: artifact %q of %q", ErrNotFound, name, id)
	}
	root, err := os.OpenRoot(s.Path(id, ArtifactsDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil,
			fmt.Errorf("%w: artifact %q of %s: the run left none, or they were removed to keep the store within its bound",
				ErrNotFound, name, id)
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: artifact %q of %s", ErrNotFound, name, id)
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() { // only regular files are ever stored
		f.Close()
		return nil, fmt.Errorf("%w: artifact %q of %s", ErrNotFound, name, id)
	}
	return f, nil
}
