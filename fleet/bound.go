package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/crypto/nacl/box"

	"github.com/unitask/unitask/internal/sessiond"
)

// Secrets are bound to one run or call. An attacker with a worker's credentials but no worker's key can write a run's
// entry, or replay a submitter's messages. Then the worker with the key must not pass the values to other code.

// work identifies a submitted run: the digests of its task, with everything that it names, and of its code.
type work struct {
	Task string `json:"task,omitempty"`
	Code string `json:"code,omitempty"`
}

func workOf(e entry) (w work) {
	w.Task = e.Task.SHA256
	if e.Code != nil {
		w.Code = e.Code.SHA256
	}
	return w
}

// sealedCall holds encrypted secrets of a session for one worker and one call, to be used once.
type sealedCall struct {
	Call    string            `json:"call"`
	At      time.Time         `json:"at"`
	Secrets map[string]string `json:"secrets"`
}

// sealedFor is how long a sealedCall is valid; the hosts' clocks may differ.
const sealedFor = 15 * time.Minute

// digest returns a checksum of a call that begins or resumes a session.
func (c call) digest() (string, error) {
	text, err := json.Marshal(struct {
		Op, Session, Caller string
		New                 *sessiond.New
	}{c.Op, c.Session, c.Caller, c.New})
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// seal puts secrets into a call, for the worker with a public key.
func (c *call) seal(secrets map[string]string, to *[32]byte) error {
	digest, err := c.digest()
	if err != nil {
		return err
	}
	text, err := json.Marshal(sealedCall{digest, time.Now().UTC(), secrets})
	if err == nil {
		c.Sealed, err = box.SealAnonymous(nil, text, to, nil)
	}
	return err
}

// unseal returns the secrets of a call.
func (l *tenantQueue) unseal(c call, now time.Time) (map[string]string, error) {
	plain, ok := box.OpenAnonymous(nil, c.Sealed, l.w.public, l.w.private)
	var s sealedCall
	if !ok || len(plain) > maxSealed || json.Unmarshal(plain, &s) != nil || s.Call == "" {
		return nil, fmt.Errorf("the secrets: %w: they are not sealed for this worker", errMalformed)
	}
	digest, err := c.digest()
	switch {
	case err != nil:
		return nil, err
	case s.Call != digest:
		return nil, fmt.Errorf("the secrets: %w: they are sealed for another call, or by another version of unitask",
			errMalformed)
	case now.Sub(s.At).Abs() > sealedFor:
		return nil, fmt.Errorf("the secrets were sealed at %s, and it is %s here: set the clocks", s.At.Format(time.DateTime),
			now.UTC().Format(time.DateTime))
	case !l.unsealed.first(sha256.Sum256(c.Sealed), now):
		return nil, errors.New("the secrets were used by a call before: they are sealed for one")
	}
	return s.Secrets, nil
}

// maxOnce bounds the calls that once remembers: more calls within sealedFor are refused.
const maxOnce = 100_000

// once remembers recent calls, to refuse repeated ones.
type once struct {
	mu   sync.Mutex
	seen map[[32]byte]time.Time
}

// first reports whether a call arrives for the first time while it is valid.
func (o *once) first(what [32]byte, now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, again := o.seen[what]; again {
		return false
	}
	if len(o.seen) >= maxOnce {
		for old, at := range o.seen {
			if now.Sub(at) > 2*sealedFor {
				delete(o.seen, old)
			}
		}
	}
	if o.seen == nil {
		o.seen = map[[32]byte]time.Time{}
	}
	if len(o.seen) >= maxOnce {
		return false
	}
	o.seen[what] = now
	return true
}
