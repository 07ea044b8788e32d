// Package audit keeps the log of a home: one line of JSON for each event that matters beyond its run, in an
// append-only file. Beside it are the hashes of a Merkle tree (that of golang.org/x/mod/sumdb/tlog). With a tree
// head that is stored elsewhere, later changes and removals of lines are detected. The log can't stop anybody who
// may write the home: without such a head it only reveals accidents.
//
// The packages that run, build, approve or change something append; package cli lists, verifies and exports.
package audit

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/unitask/unitask/internal/atomicfile"
	"github.com/unitask/unitask/internal/home"
)

// Kind is the kind of an entry.
type Kind string

const (
	RunStarted       Kind = "run.started"
	RunEnded         Kind = "run.ended"
	RunRefused       Kind = "run.refused"     // before it had a record
	SessionStarted   Kind = "session.started" // the same of a session, which is a run
	SessionEnded     Kind = "session.ended"
	LimitHit         Kind = "limit.hit"  // of time, memory, output, artifacts, by a run
	QueueFull        Kind = "queue.full" // a call that was refused
	ImageAdded       Kind = "image.added"
	ImageRemoved     Kind = "image.removed"
	PackagesAdded    Kind = "packages.added"
	PackagesRemoved  Kind = "packages.removed"
	PolicyDenied     Kind = "policy.denied"    // parts of a request that were not granted
	PolicyChanged    Kind = "policy.changed"   // of a current run
	SecretGranted    Kind = "secret.granted"   // to the code, or bound to hosts
	SecretUsed       Kind = "secret.used"      // went to hosts that it is bound to
	SecretExposed    Kind = "secret.exposed"   // found in answers whose requests did not carry it, or in output
	NetRefused       Kind = "net.refused"      // names, connections and requests
	NetAsked         Kind = "net.asked"        // somebody was asked about a connection
	ToolAsked        Kind = "tool.asked"       // somebody was asked about a call of a tool
	ToolsCalled      Kind = "tools.called"     // at a run's end: its calls of tools, by tool and outcome
	ApprovalRemoved  Kind = "approval.removed" // of a permanent approval
	CeilingTrusted   Kind = "ceiling.trusted"
	CeilingForgotten Kind = "ceiling.forgotten"
	HostStarted      Kind = "host.started" // a command of the host that a ceiling declares
	HostEnded        Kind = "host.ended"
	HostRefused      Kind = "host.refused"   // by its user, or because nobody could be asked
	SearchStarted    Kind = "search.started" // a search backend is asked
	SearchEnded      Kind = "search.ended"
	SearchRefused    Kind = "search.refused"   // by the ceiling
	ChangesProposed  Kind = "changes.proposed" // to the host's files
	ChangesStarted   Kind = "changes.started"  // to apply or undo them
	ChangesEnded     Kind = "changes.ended"
	ChangesRefused   Kind = "changes.refused" // by their user, or because nobody could be asked
	ArtifactSigned   Kind = "artifact.signed" // a run's artifacts, by the home's key
)

// Kinds lists all kinds.
var Kinds = []Kind{RunStarted, RunEnded, RunRefused, SessionStarted, SessionEnded, LimitHit, QueueFull, ImageAdded,
	ImageRemoved, PackagesAdded, PackagesRemoved,
	PolicyDenied, PolicyChanged, SecretGranted, SecretUsed, SecretExposed, NetRefused, NetAsked, ApprovalRemoved,
	ToolAsked, ToolsCalled,
	CeilingTrusted, CeilingForgotten, HostStarted, HostEnded, HostRefused, SearchStarted, SearchEnded, SearchRefused,
	ChangesProposed, ChangesStarted, ChangesEnded, ChangesRefused, ArtifactSigned}

// Schema is the version of an entry; it grows when a member is removed or changes its meaning.
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
	// maxLine bounds an entry; a longer one loses parts, and says so.
	maxLine = 64 << 10
	// maxAppend bounds entries that are written together: a run's, 66 at most, are shorter.
	maxAppend = 64 * maxLine
	// maxLog bounds the log: at some 2 KiB a run, a million runs. unitask never cuts it.
	maxLog = 2 << 30
	// indexed is the size of an index record for a line: the offset of its end.
	indexed = 8
)

// ErrFull means that the log has reached its limit: export it, and move its folder away.
var ErrFull = fmt.Errorf("the audit log has %d bytes: export it, then move its folder away", maxLog)

// Log is a folder. Any number of processes may append; one does at a time.
type Log struct{ dir string }

// In returns the log of a home, which need not exist yet.
func In(dir string) Log { return Log{home.Dir(dir).Audit()} }

func (l Log) name(file string) string { return filepath.Join(l.dir, file) }

const (
	linesFile    = "log.jsonl"
	hashesFile   = "hashes"
	indexFile    = "index"
	keyFile      = "key"      // signs heads
	verifierFile = "verifier" // checks heads
	pendingFile  = "pending"  // what is being appended
	lockFile     = "lock"
	keyName      = "unitask-audit"
)

// Append writes entries, all of them or none, even if the process dies or the power fails. When it returns, they
// are on the disk. If it fails for lack of room, the next append may still write them.
func (l Log) Append(entries ...Entry) error {
	if len(entries) == 0 {
		return nil
	}
	var text []byte
	for _, e := range entries {
		line, err := e.line()
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
	if err = f.check(); err == nil && len(text) > maxAppend {
		err = fmt.Errorf("%d bytes at once, %d is the most", len(text), maxAppend)
	}
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	if f.end+int64(len(text)) > maxLog {
		return ErrFull
	}
	if err = f.append(text); err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	return nil
}

// Room returns an error if an entry could not be written now because the disk or the log is full. It writes none.
func (l Log) Room() error {
	f, done, err := l.open()
	if err == nil {
		defer done()
		err = f.check()
	}
	if err == nil && f.end+maxLine > maxLog {
		return ErrFull
	}
	if err == nil { // data without a checksum is not an append
		_, err = f.pending.WriteAt(make([]byte, maxLine), 0)
		err = errors.Join(err, f.pending.Truncate(0))
	}
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	return nil
}

// line encodes the entry. If a detail is too long, its longest members are left out: so a long request for one
// thing can't hide the other requests.
func (e Entry) line() ([]byte, error) {
	e.Schema, e.Time = Schema, e.Time.UTC()
	line, err := json.Marshal(e)
	if err != nil || len(line) < maxLine {
		return line, err
	}
	detail, err := json.Marshal(e.Detail)
	if err != nil {
		return nil, err
	}
	leftOut := func(n int) json.RawMessage { return fmt.Appendf(nil, `{"leftOutBytes":%d}`, n) }
	var members map[string]json.RawMessage
	if json.Unmarshal(detail, &members) != nil {
		members = nil
	}
	for len(line) >= maxLine {
		longest, most := "", len(leftOut(len(detail)))
		for _, name := range slices.Sorted(maps.Keys(members)) {
			if n := len(members[name]); n > most {
				longest, most = name, n
			}
		}
		if longest == "" { // no members, or too many
			e.Detail = leftOut(len(detail))
			return json.Marshal(e)
		}
		members[longest], e.Detail = leftOut(most), members
		if line, err = json.Marshal(e); err != nil {
			return nil, err
		}
	}
	return line, nil
}

// Read calls each with every line, in order.
func (l Log) Read(each func(n int64, line []byte) error) error { return l.ReadFrom(0, each) }

// ReadFrom skips the first before lines.
func (l Log) ReadFrom(before int64, each func(n int64, line []byte) error) error {
	text, err := l.file(linesFile, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer text.Close()
	begin, end, skipped := int64(0), int64(math.MaxInt64), int64(0) // for a log with inconsistent files, all that exists
	if f, done, err := l.open(); err == nil {
		if f.check() == nil {
			end = f.end // the rest is still being written
			if before > f.n {
				done()
				return fmt.Errorf("the log has %d lines, and had %d: it is another one now", f.n, before)
			}
			if at, err := f.endOf(before); err == nil {
				begin, skipped = at, before
			}
		}
		done()
	}
	return lines(io.NewSectionReader(text, begin, end-begin), func(n int64, line []byte) error {
		if n += skipped; n < before {
			return nil
		}
		return each(n, line)
	})
}

// Len returns the number of lines.
func (l Log) Len() (int64, error) {
	if _, err := os.Stat(l.name(linesFile)); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	f, done, err := l.open()
	if err != nil {
		return 0, err
	}
	defer done()
	return f.n, f.check()
}

// Head returns the state of the log: the number of lines and the hash of their tree, as a signed note
// (golang.org/x/mod/sumdb/note, c2sp.org/tlog-checkpoint).
func (l Log) Head() (string, error) {
	f, done, err := l.open()
	if err != nil {
		return "", err
	}
	defer done()
	if err := f.check(); err != nil {
		return "", err
	}
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

// signer reads the log's key, which is created on first use.
func (l Log) signer() (note.Signer, error) {
	text, err := l.text(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		private, public, err := note.GenerateKey(rand.Reader, keyName)
		if err == nil {
			err = atomicfile.Write(l.name(verifierFile), []byte(public+"\n"), 0o600)
		}
		if err == nil {
			err = atomicfile.Write(l.name(keyFile), []byte(private+"\n"), 0o600)
		}
		if err != nil {
			return nil, err
		}
		text = private
	} else if err != nil {
		return nil, err
	}
	return note.NewSigner(text)
}

// text returns the one line of a small file.
func (l Log) text(name string) (string, error) {
	f, err := l.file(name, os.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxLine))
	return strings.TrimSpace(string(text)), err
}

// Verifier returns the public key that checks heads.
func (l Log) Verifier() (string, error) { return l.text(verifierFile) }

// lines reads lines up to a maximum length; one that ends with the file has no newline.
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
			return fmt.Errorf("line %d has more than %d bytes", n+1, maxAppend)
		}
	}
}
