// Package audit keeps the log of a home: a line of JSON for each thing that matters across
// runs, in a file that only grows, with the hashes of a Merkle tree beside it (the one of
// golang.org/x/mod/sumdb/tlog). A tree head that is kept elsewhere shows whether a line was
// changed or taken away since. It holds nobody back who may write the home: who keeps no head
// can only be told of mistakes.
//
// Package unitask appends; package cli lists, verifies and exports.
package audit

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/unitask/unitask/internal/filelock"
)

// Kind says what an entry is about.
type Kind string

const (
	RunStarted       Kind = "run.started"
	RunEnded         Kind = "run.ended"
	PolicyDenied     Kind = "policy.denied"  // what a run asked for and did not get
	SecretGranted    Kind = "secret.granted" // to the code, or bound to hosts
	SecretUsed       Kind = "secret.used"    // went to hosts that it is bound to
	NetRefused       Kind = "net.refused"    // names, connections and requests
	CeilingTrusted   Kind = "ceiling.trusted"
	CeilingForgotten Kind = "ceiling.forgotten"
)

// Schema is the version of an entry, which grows when a member changes its meaning or goes.
const Schema = 1

// Entry is one line.
type Entry struct {
	Schema int       `json:"schema"`
	Time   time.Time `json:"time"`
	Kind   Kind      `json:"kind"`
	Run    string    `json:"run,omitempty"`
	Caller string    `json:"caller,omitempty"`
	Via    string    `json:"via,omitempty"`
	Detail any       `json:"detail,omitempty"`
}

const (
	// maxLine bounds an entry; the detail of a longer one is left out, and it says so.
	maxLine = 64 << 10
	// maxLog bounds the log: at some 2 KiB a run a million runs. It is never cut by us.
	maxLog = 2 << 30
	// indexed is what the index has of each line: the offset of its end.
	indexed = 8
)

// ErrFull says that the log has reached its bound: export it, and move its folder away.
var ErrFull = fmt.Errorf("the audit log has %d bytes: export it, then move its folder away", maxLog)

// Log is a folder. Any number of processes may append to one at a time.
type Log struct{ dir string }

// In returns the log of a home, which need not be there yet.
func In(home string) Log { return Log{filepath.Join(home, "audit")} }

func (l Log) name(file string) string { return filepath.Join(l.dir, file) }

const (
	linesFile    = "log.jsonl"
	hashesFile   = "hashes"
	indexFile    = "index"
	keyFile      = "key"      // signs heads
	verifierFile = "verifier" // checks them
	lockFile     = "lock"
	keyName      = "unitask-audit"
)

// files are the open ones of a log, whose lock is held.
type files struct {
	lines, hashes, index *os.File
	n                    int64 // lines that have hashes
	end                  int64 // of these
}

// open takes the lock, and takes in what a process that died has left.
func (l Log) open() (f *files, done func(), err error) {
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, nil, err
	}
	lock, err := filelock.Take(l.name(lockFile))
	if err != nil {
		return nil, nil, err
	}
	f = &files{}
	done = func() {
		for _, file := range []*os.File{f.lines, f.hashes, f.index} {
			if file != nil {
				file.Close()
			}
		}
		lock.Unlock()
	}
	for name, file := range map[string]**os.File{linesFile: &f.lines, hashesFile: &f.hashes, indexFile: &f.index} {
		if *file, err = os.OpenFile(l.name(name), os.O_RDWR|os.O_CREATE|os.O_APPEND|openFlags, 0o600); err != nil {
			done()
			return nil, nil, err
		}
	}
	if err := f.recover(); err != nil {
		done()
		return nil, nil, err
	}
	return f, done, nil
}

// recover finds out how many lines there are. Hashes are written before the index, and lines
// before hashes: what the index does not have is written again.
func (f *files) recover() error {
	st, err := f.index.Stat()
	if err != nil {
		return err
	}
	f.n = st.Size() / indexed
	if f.end, err = f.endOf(f.n); err != nil {
		return err
	}
	if err := errors.Join(f.index.Truncate(f.n*indexed), f.shrink()); err != nil {
		return err
	}
	if st, err = f.lines.Stat(); err != nil {
		return err
	}
	if st.Size() < f.end {
		return fmt.Errorf("%s has %d bytes, and had %d: `unitask audit verify` says more", f.lines.Name(), st.Size(), f.end)
	}
	left := st.Size() - f.end
	if left == 0 {
		return nil
	}
	if left > 64*maxLine {
		return fmt.Errorf("%s has %d bytes that nothing of ours has written", f.lines.Name(), left)
	}
	rest := make([]byte, left)
	if _, err := f.lines.ReadAt(rest, f.end); err != nil {
		return err
	}
	if rest[left-1] != '\n' { // half a line; it stays, as one of its own
		if _, err := f.lines.Write([]byte{'\n'}); err != nil {
			return err
		}
		rest = append(rest, '\n')
	}
	return f.take(rest)
}

// shrink takes away hashes that the index does not have.
func (f *files) shrink() error {
	most := tlog.StoredHashCount(f.n) * tlog.HashSize
	st, err := f.hashes.Stat()
	if err != nil || st.Size() <= most {
		return err
	}
	return f.hashes.Truncate(most)
}

// endOf is where the first n lines end.
func (f *files) endOf(n int64) (int64, error) {
	if n == 0 {
		return 0, nil
	}
	var b [indexed]byte
	_, err := f.index.ReadAt(b[:], (n-1)*indexed)
	return int64(binary.BigEndian.Uint64(b[:])), err
}

// take adds lines that are in the file to hashes and index.
func (f *files) take(lines []byte) error {
	for line := range bytes.Lines(lines) {
		stored, err := tlog.StoredHashes(f.n, line, f)
		if err != nil {
			return err
		}
		var text []byte
		for _, h := range stored {
			text = append(text, h[:]...)
		}
		if _, err := f.hashes.Write(text); err != nil {
			return err
		}
		if _, err := f.index.Write(binary.BigEndian.AppendUint64(nil, uint64(f.end+int64(len(line))))); err != nil {
			return err
		}
		f.n++
		f.end += int64(len(line))
	}
	return nil
}

// ReadHashes is tlog.HashReader's.
func (f *files) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, n := range at {
		if _, err := f.hashes.ReadAt(out[i][:], n*tlog.HashSize); err != nil {
			return nil, fmt.Errorf("read hash %d of the audit log: %w", n, err)
		}
	}
	return out, nil
}

// Append writes entries, all of them or none.
func (l Log) Append(entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	var text []byte
	for _, e := range entries {
		e.Schema, e.Time = Schema, e.Time.UTC()
		line, err := json.Marshal(e)
		if err == nil && len(line) >= maxLine {
			e.Detail = map[string]int{"leftOutBytes": len(line)}
			line, err = json.Marshal(e)
		}
		if err != nil {
			return fmt.Errorf("write the audit log: %w", err)
		}
		text = append(append(text, line...), '\n')
	}
	f, done, err := l.open()
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	defer done()
	if f.end+int64(len(text)) > maxLog {
		return ErrFull
	}
	if _, err = f.lines.Write(text); err == nil {
		err = f.take(text)
	}
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	return nil
}

// Read calls each with every line, in its order.
func (l Log) Read(each func(n int64, line []byte) error) error {
	f, err := os.Open(l.name(linesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return lines(f, each)
}

// Head is the state of the log: how many lines, and the hash of their tree, as a signed note
// (golang.org/x/mod/sumdb/note, c2sp.org/tlog-checkpoint).
func (l Log) Head() (string, error) {
	f, done, err := l.open()
	if err != nil {
		return "", err
	}
	defer done()
	hash, err := tlog.TreeHash(f.n, f)
	if err != nil {
		return "", err
	}
	signer, err := l.signer()
	if err != nil {
		return "", err
	}
	signed, err := note.Sign(&note.Note{Text: headText(f.n, hash)}, signer)
	return string(signed), err
}

func headText(n int64, hash tlog.Hash) string {
	return fmt.Sprintf("%s\n%d\n%s\n", keyName, n, hash)
}

// signer reads the log's key, which is made when it is first asked for.
func (l Log) signer() (note.Signer, error) {
	text, err := os.ReadFile(l.name(keyFile))
	if errors.Is(err, fs.ErrNotExist) {
		private, public, err := note.GenerateKey(rand.Reader, keyName)
		if err == nil {
			err = os.WriteFile(l.name(verifierFile), []byte(public+"\n"), 0o600)
		}
		if err == nil {
			err = os.WriteFile(l.name(keyFile), []byte(private+"\n"), 0o600)
		}
		if err != nil {
			return nil, err
		}
		text = []byte(private)
	} else if err != nil {
		return nil, err
	}
	return note.NewSigner(strings.TrimSpace(string(text)))
}

// Verifier is the public key that checks heads.
func (l Log) Verifier() (string, error) {
	text, err := os.ReadFile(l.name(verifierFile))
	return strings.TrimSpace(string(text)), err
}

// lines reads lines of any length up to a bound; one that ends with the file has no newline.
func lines(r io.Reader, each func(n int64, line []byte) error) error {
	buffer, rest := make([]byte, 256<<10), []byte(nil)
	n := int64(0)
	for {
		k, err := r.Read(buffer)
		rest = append(rest, buffer[:k]...)
		for {
			i := bytes.IndexByte(rest, '\n')
			if i < 0 {
				break
			}
			if err := each(n, rest[:i+1]); err != nil {
				return err
			}
			n, rest = n+1, rest[i+1:]
		}
		switch {
		case err == io.EOF && len(rest) > 0:
			return each(n, rest)
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		case len(rest) > 64*maxLine:
			return fmt.Errorf("line %d has more than %d bytes", n+1, 64*maxLine)
		}
	}
}
