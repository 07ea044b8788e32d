package record

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/filelock"
	"github.com/unitask/unitask/internal/regular"
)

// Names of files in a run's folder.
const (
	recordFile  = "run.json"
	lockFile    = "lock"
	StdoutFile  = "stdout"
	StderrFile  = "stderr"
	NetlogFile  = "netlog.jsonl"
	ConsoleFile = "console.log"
	ToolsFile   = "tools.jsonl" // calls of tools, if the run was granted any
	TraceFile   = "trace.log"   // of a run that was traced
	// InlineFilesFile holds the request's inline files: [{"name": …, "content": …}]
	InlineFilesFile = "inlinefiles.json"
	// oldInlineFilesFile is the name in records from before December 2026, which this release still reads.
	oldInlineFilesFile = "neighbours.json"
)

// removedPrefix begins the names of records under removal: a removal first renames a record, so that the record
// exists completely or not at all.
const removedPrefix = ".removed-"

// maxRecord bounds the size of a run.json when it is read.
const maxRecord = 64 << 20

// ErrNotFound means that no run has that id.
var ErrNotFound = errors.New("no such run")

// Store is a folder of runs. It has no other state: any number of processes may use one folder.
type Store struct{ dir string }

// Open returns the store in dir; the first run creates the folder.
func Open(dir string) *Store { return &Store{dir} }

// Dir returns the store's folder.
func (s *Store) Dir() string { return s.dir }

// newID returns an id that sorts by time: UTC to the millisecond, and 30 random bits against collisions.
func newID(now time.Time) string {
	const letters = "abcdefghijkmnpqrstuvwxyz23456789" // 32, without l, o, 0 and 1
	var random [6]byte
	_, _ = rand.Read(random[:])
	for i := range random {
		random[i] = letters[random[i]%32]
	}
	return strings.Replace(now.UTC().Format("20060102-150405.000"), ".", "", 1) + "-" + string(random[:])
}

// CreatedAt returns the creation time in a run's id; ok is false if the id has another form.
func CreatedAt(id string) (at time.Time, ok bool) {
	if len(id) < 19 || id[18] != '-' {
		return at, false
	}
	at, err := time.Parse("20060102-150405.000", id[:15]+"."+id[15:18])
	return at, err == nil
}

// Create makes a run's folder and its record, with status running. codeFile is the name of the code's file, such
// as code.js. owner is the person or program that the run is for; via tells how the run was requested.
func (s *Store) Create(now time.Time, owner string, via Via, codeFile string, code []byte, request any) (*Run, error) {
	return s.CreateAs(newID(now), now, owner, via, codeFile, code, request)
}

// CreateAs creates a run's record under an id from another store.
func (s *Store) CreateAs(id string, now time.Time, owner string, via Via, codeFile string, code []byte,
	request any) (_ *Run, err error) {
	if !validID(id) {
		return nil, fmt.Errorf("create record: %q is no id", id)
	}
	r := &Run{dir: filepath.Join(s.dir, id), Record: Record{
		SchemaVersion: SchemaVersion, ID: id, Status: Running, Created: now.UTC(), Owner: owner, Via: via, CodeFile: codeFile,
	}}
	if r.Record.Request, err = json.Marshal(request); err != nil {
		return nil, fmt.Errorf("create record: %w", err)
	}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create record: %w", err)
	}
	if err := s.mark(owner, via, id); err != nil {
		return nil, fmt.Errorf("create record: %w", err)
	}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		if !errors.Is(err, fs.ErrExist) {
			s.unmark(owner, via, id)
		}
		return nil, fmt.Errorf("create record: %w", err)
	}
	defer func() {
		if err != nil {
			r.closeFiles()
			_ = os.RemoveAll(r.dir)
			s.unmark(owner, via, id)
			err = fmt.Errorf("create record: %w", err)
		}
	}()
	if r.lock, err = filelock.Try(filepath.Join(r.dir, lockFile)); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(r.dir, codeFile), code, 0o600); err != nil {
		return nil, err
	}
	for name, f := range map[string]**os.File{StdoutFile: &r.stdout, StderrFile: &r.stderr, NetlogFile: &r.netlog,
		ConsoleFile: &r.console} {
		if *f, err = r.create(name); err != nil {
			return nil, err
		}
	}
	if err := r.reserve(); err != nil {
		return nil, err
	}
	return r, r.write(false)
}

// Run is a record that is being written. Any goroutine may call its methods; the fields of Record belong to the owner
// until Finish.
type Run struct {
	Record

	dir                             string
	lock                            *filelock.Lock
	stdout, stderr, netlog, console *os.File
	tools                           *os.File // nil before Tools

	mu  sync.Mutex
	err error // the first write that failed
}

func (r *Run) create(name string) (*os.File, error) {
	return os.OpenFile(filepath.Join(r.dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// Reopen continues the record of a run that no process holds any more: it appends to the existing files. The
// error is ErrRunning if a process holds the run.
func (s *Store) Reopen(id string) (_ *Run, err error) {
	rec, err := s.Get(id)
	if err != nil {
		return nil, err
	}
	r := &Run{dir: filepath.Join(s.dir, id), Record: *rec}
	if r.lock, err = filelock.Try(filepath.Join(r.dir, lockFile)); errors.Is(err, filelock.ErrHeld) {
		return nil, fmt.Errorf("%w: %s", ErrRunning, id)
	} else if err != nil {
		return nil, fmt.Errorf("reopen record: %w", err)
	}
	for name, f := range map[string]**os.File{StdoutFile: &r.stdout, StderrFile: &r.stderr, NetlogFile: &r.netlog,
		ConsoleFile: &r.console} {
		if *f, err = os.OpenFile(filepath.Join(r.dir, name), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			r.closeFiles()
			return nil, fmt.Errorf("reopen record: %w", err)
		}
	}
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		r.closeFiles()
		return nil, fmt.Errorf("reopen record: %w", err)
	}
	for _, e := range entries { // left by a holder that was killed
		if e.Type() == fs.ModeSocket {
			_ = os.Remove(filepath.Join(r.dir, e.Name()))
		}
	}
	r.Status, r.Finished, r.Error, r.Result, r.Files = Running, nil, "", nil, nil
	_ = r.reserve() // continue without a reserve: ending a session makes room
	return r, nil
}

// Leave releases the record unchanged, for Reopen.
func (r *Run) Leave() error {
	_ = os.Remove(r.reserved())
	r.closeFiles()
	return r.Err()
}

// Dir returns the run's folder.
func (r *Run) Dir() string { return r.dir }

// Update writes run.json in its current state.
func (r *Run) Update() error {
	if err := r.write(false); err != nil {
		r.failed(err)
		return err
	}
	return nil
}

// write replaces run.json atomically.
func (r *Run) write(sync bool) error {
	text, err := json.MarshalIndent(&r.Record, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Fill(filepath.Join(r.dir, recordFile), 0o600, func(f *os.File) error {
		if _, err := f.Write(append(text, '\n')); err != nil || !sync {
			return err
		}
		return f.Sync()
	})
}

func (r *Run) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = fmt.Errorf("write record %s: %w", r.ID, err)
	}
}

// Err returns the first write error, or nil: a full disk does not stop the code at once, but the run then counts
// as failed.
func (r *Run) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// stream is a file whose writes never fail. After the record's first error it writes nothing more: space that
// becomes free on a full disk is left for the ends of other runs.
type stream struct {
	run  *Run
	file *os.File
}

func (s stream) Write(p []byte) (int, error) {
	if s.run.Err() != nil {
		return len(p), nil
	}
	if _, err := s.file.Write(p); err != nil {
		s.run.failed(err)
	}
	return len(p), nil
}

// Stdout, Stderr and Console receive the guest's output. Writes never fail; see Err.
func (r *Run) Stdout() io.Writer  { return stream{r, r.stdout} }
func (r *Run) Stderr() io.Writer  { return stream{r, r.stderr} }
func (r *Run) Console() io.Writer { return stream{r, r.console} }

// Restart empties the streams, the netlog and the console, because the run starts again.
func (r *Run) Restart() {
	for _, f := range []*os.File{r.stdout, r.stderr, r.netlog, r.console} {
		_, err := f.Seek(0, io.SeekStart)
		if err == nil {
			err = f.Truncate(0)
		}
		if err != nil {
			r.failed(err)
		}
	}
}

// Trace returns a file for the run's trace, which starts empty with each start of the run. close closes the file.
func (r *Run) Trace() (to io.Writer, close func(), err error) {
	f, err := os.OpenFile(filepath.Join(r.dir, TraceFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		r.failed(err)
		return nil, nil, err
	}
	return stream{r, f}, func() { f.Close() }, nil
}

// Netlog appends one line, unless the record has failed, as with the streams.
func (r *Run) Netlog(decision any) {
	if r.Err() != nil {
		return
	}
	text, err := json.Marshal(decision)
	if err == nil {
		_, err = r.netlog.Write(append(text, '\n'))
	}
	if err != nil {
		r.failed(err)
	}
}

// Finish writes the record for the last time, as Settle does, and releases it. It returns the first error of the whole
// record.
func (r *Run) Finish(now time.Time) error {
	finished := now.UTC()
	r.Finished = &finished
	r.Files = describeFiles(r.dir)
	_ = r.Settle() // Err returns its error
	r.closeFiles()
	return r.Err()
}

func (r *Run) closeFiles() {
	for _, f := range []*os.File{r.stdout, r.stderr, r.netlog, r.console, r.tools} {
		if f != nil {
			f.Close()
		}
	}
	r.lock.Unlock()
}

// Get reads a run's record. A record with status "running" becomes Interrupted if nobody holds its lock.
func (s *Store) Get(id string) (*Record, error) {
	if !validID(id) {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	f, _, err := regular.Open(filepath.Join(s.dir, id, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	if err != nil {
		return nil, fmt.Errorf("read record %s: %w", id, err)
	}
	defer f.Close()
	var rec Record
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(&rec); err != nil {
		return nil, fmt.Errorf("read record %s: %w", id, err)
	}
	if rec.SchemaVersion > SchemaVersion {
		return nil, fmt.Errorf("read record %s: it has schema version %d, this unitask knows %d: use a newer unitask", id,
			rec.SchemaVersion, SchemaVersion)
	}
	if rec.Status == Running && !s.held(id) {
		rec.Status = Interrupted
	}
	return &rec, nil
}

// validID reports whether an id can be a run's folder.
func validID(id string) bool {
	return id != "" && id == filepath.Base(id) && !strings.HasPrefix(id, ".") && id != "/"
}

// Held reports whether a process holds the run.
func (s *Store) Held(id string) bool { return validID(id) && s.held(id) }

// held reports whether a process holds the run's lock.
func (s *Store) held(id string) bool { return filelock.Held(filepath.Join(s.dir, id, lockFile)) }

// ErrRunning means that a run is still in progress.
var ErrRunning = errors.New("the run is still under way")

// Remove removes a run's record, completely or not at all; the error is ErrRunning for a current run.
func (s *Store) Remove(id string) error {
	if !validID(id) {
		return fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	if s.held(id) {
		return fmt.Errorf("%w: %s", ErrRunning, id)
	}
	rec, known := s.brief(id)
	gone := filepath.Join(s.dir, removedPrefix+id)
	if err := os.Rename(filepath.Join(s.dir, id), gone); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	} else if err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	if known {
		s.unmark(rec.Owner, rec.Via, id)
	}
	if err := os.RemoveAll(gone); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// Read reads a run's file; most is the maximum number of bytes, and 0 means all. more reports that there are further
// bytes. The name is one of the constants, or the record's CodeFile.
func (s *Store) Read(id, name string, most int64) (text []byte, more bool, err error) {
	return s.ReadFrom(id, name, 0, most)
}

// ReadFrom is like Read, from an offset on.
func (s *Store) ReadFrom(id, name string, offset, most int64) (text []byte, more bool, err error) {
	f, err := s.OpenFile(id, name)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	if _, err := f.Seek(offset, io.SeekStart); err != nil {
		return nil, false, err
	}
	if most == 0 {
		text, err = io.ReadAll(f)
		return text, false, err
	}
	if text, err = io.ReadAll(io.LimitReader(f, most+1)); int64(len(text)) > most {
		text, more = text[:most], true
	}
	return text, more, err
}

// OpenFile opens a run's file for reading; names are those of Read. Only regular files are stored: links and pipes are
// refused.
func (s *Store) OpenFile(id, name string) (*os.File, error) {
	if !validID(id) || name != filepath.Base(name) {
		return nil, fmt.Errorf("%w: %q of %q", ErrNotFound, name, id)
	}
	path := s.Path(id, name)
	st, err := os.Lstat(path)
	if name == InlineFilesFile && errors.Is(err, fs.ErrNotExist) {
		path = s.Path(id, oldInlineFilesFile)
		st, err = os.Lstat(path)
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %w", path, regular.ErrNot)
	}
	f, _, err := regular.Open(path)
	return f, err
}

// Size returns the bytes of a run's record and of each file beside it; most is the maximum that counts for each file.
func (s *Store) Size(id string, most int64) (bytes int64, err error) {
	if !validID(id) {
		return 0, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	entries, err := os.ReadDir(filepath.Join(s.dir, id))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	for _, e := range entries {
		info, err := e.Info()
		switch {
		case err != nil || !info.Mode().IsRegular() || e.Name() == reserveFile:
		case e.Name() == recordFile:
			bytes += info.Size()
		default:
			bytes += min(info.Size(), most)
		}
	}
	return bytes, err
}

// Path returns the path of a run's file.
func (s *Store) Path(id, name string) string { return filepath.Join(s.dir, id, name) }

// IDs returns every run's id, oldest first.
func (s *Store) IDs() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// Find resolves "last" or a unique prefix to an id. The last one is not a machine of another run's tools.
func (s *Store) Find(prefix string) (string, error) {
	ids, err := s.IDs()
	if err != nil {
		return "", err
	}
	if prefix == "last" {
		return s.last(ids)
	}
	var found []string
	for _, id := range ids {
		if id == prefix {
			return id, nil
		}
		if prefix != "" && strings.HasPrefix(id, prefix) {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("%w: none begins with %q", ErrNotFound, prefix)
	}
	return "", fmt.Errorf("%d runs begin with %q: give more of the id", len(found), prefix)
}
