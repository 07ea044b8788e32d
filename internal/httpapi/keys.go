package httpapi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/atomicfile"
)

// Limits of keys. None is forgotten to make room: its request could begin again.
const (
	keyTime       = 24 * time.Hour
	maxKeys       = 100_000  // of all callers
	maxCallerKeys = 10_000   // of one caller
	maxKeyBytes   = 64 << 20 // of all files of a caller
	maxStored     = 64 << 10 // bytes of an answer to store; a run's record has longer ones
	maxKeyFile    = 1 << 20  // bytes of a file that is read: its JSON escapes the answer's
	prunePeriod   = 10 * time.Minute
)

// keys are the keys of the last day, each in a file. A caller's files have names that begin with the same digest.
type keys struct {
	mu     sync.Mutex
	calls  map[string]*keyed // under way, by the file's name
	files  map[string]keyFile
	pruned time.Time
}

// keyFile is what is known of a file without reading it.
type keyFile struct {
	size int64
	at   time.Time
}

// keyed is a key during a call.
type keyed struct {
	of        *keys
	dir, name string
	done      chan struct{} // closed at the end of the call; then the others read what is below
	found     bool          // it had a file
	refused   *Problem      // the call began nothing
	stored    storedKey
}

// storedKey is the text of a file. Until there is a status, the call has begun and its answer is unknown.
type storedKey struct {
	Request string          `json:"request"` // its digest
	Begun   time.Time       `json:"begun"`
	ID      string          `json:"id,omitempty"` // of the run or session that it began
	Status  int             `json:"status,omitempty"`
	Header  http.Header     `json:"header,omitempty"`
	Body    json.RawMessage `json:"body,omitempty"`
}

// digest returns the digest of texts, in hexadecimal digits.
func digest(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return hex.EncodeToString(sum[:])
}

// begin returns a caller's key for a call. first means that no other call has it: then the key needs load and close.
func (ks *keys) begin(dir, caller, key, request string) (k *keyed, first bool) {
	name := digest(caller)[:16] + "-" + digest(caller, key) + ".json"
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if k = ks.calls[name]; k != nil {
		return k, false
	}
	if ks.calls == nil {
		ks.calls = map[string]*keyed{}
	}
	k = &keyed{of: ks, dir: dir, name: name, done: make(chan struct{}), stored: storedKey{Request: request}}
	ks.calls[name] = k
	return k, true
}

// close ends the call.
func (k *keyed) close() {
	k.of.mu.Lock()
	delete(k.of.calls, k.name)
	k.of.mu.Unlock()
	close(k.done)
}

func (k *keyed) path() string { return filepath.Join(k.dir, k.name) }

// load reads the key's file, or makes it.
func (k *keyed) load() error {
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return &unitask.HostError{Op: "store the key", Err: err}
	}
	if k.read(); k.found {
		return nil
	}
	if err := k.of.room(k.dir, k.name); err != nil {
		return err
	}
	k.stored.Begun = time.Now().UTC()
	f, err := os.OpenFile(k.path(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // another server may have the same home
	if errors.Is(err, fs.ErrExist) {
		k.found, k.stored = true, storedKey{Request: k.stored.Request}
		return nil
	}
	if err == nil {
		err = errors.Join(json.NewEncoder(f).Encode(k.stored), f.Sync(), f.Close())
	}
	if err != nil { // as on a full disk: nothing has begun, so no file may claim a beginning
		if f != nil {
			_ = os.Remove(k.path())
		}
		return &unitask.HostError{Op: "store the key", Err: err}
	}
	k.of.note(k.name, 0)
	return nil
}

// read reads the key's file, if it is there and younger than a day. An unreadable one is of a call that has begun.
func (k *keyed) read() {
	f, err := os.Open(k.path())
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	stored := storedKey{Request: k.stored.Request}
	if err == nil {
		defer f.Close()
		var text []byte
		if text, err = io.ReadAll(io.LimitReader(f, maxKeyFile)); err == nil {
			err = json.Unmarshal(text, &stored)
		}
	}
	if err == nil && time.Since(stored.Begun) > keyTime {
		k.remove()
		return
	}
	if err != nil {
		stored = storedKey{Request: k.stored.Request}
	}
	k.found, k.stored = true, stored
}

// write replaces the key's file. If that fails, the file says that the call has begun.
func (k *keyed) write(stored storedKey) {
	text, err := json.Marshal(stored)
	if err == nil && len(text) <= maxKeyFile {
		if atomicfile.Write(k.path(), text, 0o600) == nil {
			k.of.note(k.name, int64(len(text)))
		}
	}
}

func (k *keyed) remove() {
	_ = os.Remove(k.path())
	k.of.mu.Lock()
	defer k.of.mu.Unlock()
	delete(k.of.files, k.name)
}

// began notes the id of what the call began.
func (k *keyed) began(id string) {
	k.stored.ID = id
	k.write(k.stored)
}

// answered stores an answer, whose body becomes JSON.
func (k *keyed) answered(got *answer) {
	if got.Body != nil {
		text, err := json.Marshal(got.Body)
		if err != nil {
			return
		}
		got.Body = json.RawMessage(text)
		k.stored.Body = text
	}
	k.stored.Status, k.stored.Header = cmp.Or(got.Status, http.StatusOK), got.Header.Clone()
	small := k.stored
	if len(small.Body) > maxStored {
		small.Status, small.Header, small.Body = 0, nil, nil
	}
	k.write(small)
}

// failed stores a call's error. It forgets the key if the call began nothing.
func (k *keyed) failed(p *Problem) {
	if k.stored.ID == "" && slices.Contains(harmless, p.Status) {
		k.refused = p
		k.remove()
		return
	}
	k.stored.Status = p.Status
	k.stored.Body, _ = json.Marshal(p)
	k.write(k.stored)
}

// harmless are the statuses of calls that began nothing.
var harmless = []int{http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge,
	http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusServiceUnavailable}

// note notes a file's size.
func (ks *keys) note(name string, size int64) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	at := time.Now()
	if known, ok := ks.files[name]; ok {
		at = known.at
	}
	ks.files[name] = keyFile{size, at}
}

// room returns an error if there are too many keys for one more with that name.
func (ks *keys) room(dir, name string) error {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if err := ks.prune(dir); err != nil {
		return &unitask.HostError{Op: "list the keys", Err: err}
	}
	caller, _, _ := strings.Cut(name, "-")
	count, bytes, oldest := 0, int64(0), time.Now()
	for other, file := range ks.files {
		if strings.HasPrefix(other, caller+"-") {
			count, bytes = count+1, bytes+file.size
			if file.at.Before(oldest) {
				oldest = file.at
			}
		}
	}
	what := ""
	switch {
	case count >= maxCallerKeys:
		what = fmt.Sprintf("you have sent %d keys in a day, which is the bound", count)
	case bytes >= maxKeyBytes:
		what = fmt.Sprintf("the answers to your requests with keys have %d bytes, and %d is the bound", bytes, maxKeyBytes)
	case len(ks.files) >= maxKeys:
		what = fmt.Sprintf("there are %d keys, which is the bound", len(ks.files))
	default:
		return nil
	}
	return &unitask.BusyError{What: what, After: max(time.Until(oldest.Add(keyTime)), time.Second)}
}

// prune lists the files at first, and removes those that are older than a day from time to time. ks.mu is held.
func (ks *keys) prune(dir string) error {
	if ks.files == nil {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		ks.files = map[string]keyFile{}
		for _, e := range entries {
			if info, err := e.Info(); err == nil && strings.HasSuffix(e.Name(), ".json") {
				ks.files[e.Name()] = keyFile{info.Size(), info.ModTime()}
			}
		}
	}
	if time.Since(ks.pruned) < prunePeriod {
		return nil
	}
	ks.pruned = time.Now()
	for name, file := range ks.files {
		if time.Since(file.at) > keyTime && ks.calls[name] == nil {
			_ = os.Remove(filepath.Join(dir, name))
			delete(ks.files, name)
		}
	}
	return nil
}
