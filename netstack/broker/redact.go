package broker

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unitask/unitask/internal/entropy"
)

// Limits on what the guest can learn about a value from the redaction. The guest can make a server answer any text, so
// a filter reveals which guesses are right. Hence:
//
//   - An answer is searched only for secrets that are bound to its host, and only for values that
//     can't be guessed (package entropy).
//   - A value is found completely, or not at all.
//   - The length held back of a stream depends on no text. The duration of a search depends only on texts that
//     begin with as many bytes of a value as the shortest text has.
//   - A value that the request did not carry is not an echo. The answer ends there. After
//     maxExposed of these, the secret is not put into any further request.

// maxExposed bounds the answers with a value that their requests did not carry.
const maxExposed = 3

// quiet is how long a server must send nothing before the end of its data is passed on. Until then, the last
// bytes are held, as many as the longest form of a value.
const quiet = 50 * time.Millisecond

// redactorKey selects the secrets to find (a bit each), and whether every length is kept.
type redactorKey struct {
	secrets uint64
	signed  bool // also find signatures
	fit     bool
	made    int // number of signatures so far: the last ones are searched
}

// redactorKey returns the key for answers of a host. It includes the signatures of a guessable signing key,
// because the key can be computed from a signature.
func (b *Broker) redactorKey(host string, fit bool) redactorKey {
	key := redactorKey{fit: fit}
	for i := range b.cfg.Secrets {
		s := &b.cfg.Secrets[i]
		if !s.boundTo(host) {
			continue
		}
		key.signed = key.signed || s.in(InSigV4)
		if !entropy.Guessable(s.Value) {
			key.secrets |= 1 << i
		}
	}
	return key
}

// searches reports whether answers of a host are searched.
func (b *Broker) searches(host string) bool {
	key := b.redactorKey(host, false)
	return key.secrets != 0 || key.signed
}

// redactor returns a swapper that finds the values that an answer of this host may contain; nil if there are
// none. With fit every length is kept. own is the signature of the answer's request, or nil.
func (b *Broker) redactor(host string, fit bool, own *pair) *swapper {
	key := b.redactorKey(host, fit)
	if key.secrets == 0 && !key.signed {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	values, ok := b.redactors[key]
	if !ok {
		values = newSwapper(b.forms(key))
		b.redactors[key] = values
	}
	if own != nil && !slices.ContainsFunc(b.signatures,
		func(p pair) bool { return bytes.Equal(p.find, own.find) }) { // it is no longer among the last ones
		return values.with(append(slices.Clip(b.signatures), *own))
	}
	if b.made == 0 {
		return values
	}
	key.made = b.made
	s, ok := b.redactors[key]
	if !ok {
		s = values.with(b.signatures)
		b.redactors[key] = s
	}
	return s
}

// forms returns all forms of the values, each with its replacement.
func (b *Broker) forms(key redactorKey) []pair {
	var list collection
	for i := range b.cfg.Secrets {
		c := &b.cfg.Secrets[i]
		if key.secrets&(1<<i) == 0 || slices.ContainsFunc(b.cfg.Secrets[:i], c.same) &&
			key.secrets&(1<<slices.IndexFunc(b.cfg.Secrets, c.same)) != 0 {
			continue
		}
		add := func(p pair) {
			if key.fit {
				p.put = fitted(p.put, len(p.find))
			}
			p.secret = c
			list.add(p)
		}
		add(pair{find: []byte(c.Value), put: []byte(c.placeholder)})
		hidden(c.Value, c.placeholder, add)
		spelled(c.Value, c.placeholder, add)
		escaped(c.Value, c.placeholder, add)
	}
	return list.pairs
}

// maxSignatures is the number of a run's last signatures that are searched.
const maxSignatures = 64

// signed notes that a signature with the value replaced the guest's signature with the placeholder.
func (b *Broker) signed(x *exchange, secret *Secret, was, now string) {
	own := pair{find: []byte(now), put: []byte(was), secret: secret, derived: true}
	x.mu.Lock()
	x.signed = &own
	x.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.made++
	maps.DeleteFunc(b.redactors, func(key redactorKey, _ *swapper) bool { return key.made > 0 })
	b.signatures = append(slices.Clone(b.signatures), own)
	b.signatures = b.signatures[max(0, len(b.signatures)-maxSignatures):]
}

// exposedError explains why an answer was refused.
type exposedError struct {
	secret, host string
	withdrawn    bool
}

func (e *exposedError) Error() string {
	text := fmt.Sprintf("the answer of %s has the value of %s, which the request did not carry: it is not passed on",
		e.host, e.secret)
	if e.withdrawn {
		text += ", and " + e.secret + " goes into no request of this run any more"
	}
	return text
}

// withdrawnError explains why a request with a placeholder was not sent.
type withdrawnError struct{ secret string }

func (w *withdrawnError) Error() string {
	return fmt.Sprintf("the secret %s was withdrawn: answers had its value %d times, and their requests did not carry it",
		w.secret, maxExposed)
}

// expose counts an answer with a value that its request did not carry.
func (b *Broker) expose(secret, host string) *exposedError {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.exposed[secret]++
	return &exposedError{secret, host, b.exposed[secret] >= maxExposed}
}

// withdrawn returns an error if a secret may not be sent any more.
func (b *Broker) withdrawn(secret string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.exposed[secret] < maxExposed {
		return nil
	}
	return &withdrawnError{secret}
}

// answered is called for each value that is found in an answer.
func (x *exchange) answered(b *Broker, p *pair) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if p.derived || x.carries(b, p.secret) {
		x.redacted++
		return nil
	}
	err := b.expose(p.secret.Name, x.Host)
	x.exposed = append(x.exposed, p.secret.Name)
	if x.refused == nil {
		x.refused = err
	}
	return err
}

// carries reports whether a request carries a secret's value or may still carry it, also under another name or as
// a part of another value. It ignores case, as the search does.
func (x *exchange) carries(b *Broker, secret *Secret) bool {
	value := strings.ToLower(secret.Value)
	return slices.ContainsFunc(b.cfg.Secrets, func(s Secret) bool {
		return (x.used[s.Name] || x.streamed[s.Name]) && strings.Contains(strings.ToLower(s.Value), value)
	})
}

// redaction searches one answer for values. Its zero value finds nothing.
type redaction struct {
	*swapper
	found func(*pair) error
}

// redaction returns the redaction for the answer to x.
func (p *proxy) redaction(x *exchange, fit bool) redaction {
	x.mu.Lock()
	own := x.signed
	x.mu.Unlock()
	return redaction{p.broker.redactor(p.to.Host, fit, own), func(f *pair) error { return x.answered(p.broker, f) }}
}

// header replaces values with placeholders. A field whose name contains a value, in any case, is left out. After
// an error nothing of h may be passed on.
func (r redaction) header(h http.Header) error {
	if r.swapper == nil {
		return nil
	}
	for _, name := range slices.Collect(maps.Keys(h)) {
		lower := strings.ToLower(name)
		clean, err := r.all([]byte(lower), r.found)
		if err != nil {
			return err
		}
		if string(clean) != lower {
			delete(h, name)
			continue
		}
		for i, v := range h[name] {
			if clean, err = r.all([]byte(v), r.found); err != nil {
				return err
			}
			h[name][i] = string(clean)
		}
	}
	return nil
}

// body returns a body without values; atEOF is called once, before the end is reported.
func (r redaction) body(from *readAhead, atEOF func() error) io.ReadCloser {
	return &redactReader{from: from, s: swapping{swapper: r.swapper, found: r.found, blind: true}, atEOF: atEOF}
}

// redactReader replaces values in the data it reads. Close may be called during a Read and ends it; a tunnel does
// that.
type redactReader struct {
	from  *readAhead
	mu    sync.Mutex // held by Read
	s     swapping
	ready []byte // a part of out
	out   []byte // the buffer of ready; scratch memory for a large piece
	err   error
	atEOF func() error
}

func (r *redactReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.ready) == 0 && r.err == nil {
		wait := quiet
		if len(r.s.held) == 0 {
			wait = 0
		}
		r.redact(r.from.next(wait))
	}
	n := copy(p, r.ready)
	if r.ready = r.ready[n:]; len(r.ready) == 0 {
		r.ready = nil
		r.room(0)
	}
	if n == 0 {
		return 0, r.err
	}
	return n, nil
}

// room returns a buffer for the result of a piece. A large piece uses scratch memory until all of it was read.
func (r *redactReader) room(piece int) []byte {
	large := piece > smallPiece
	if cap(r.out) > 2*smallPiece && cap(r.out) < 2*bigBuffer { // the end was long
		r.out = nil
	}
	if isScratch := cap(r.out) >= 2*bigBuffer; isScratch != large {
		if isScratch {
			putScratch(r.out)
		}
		if r.out = nil; large {
			r.out = getScratch()
		}
	}
	return r.out[:0]
}

// redact processes a piece whose read ended with err, and makes the decided part ready.
func (r *redactReader) redact(piece []byte, err error) {
	r.s.feed(piece)
	var wrong error
	r.out, wrong = r.s.run(r.room(len(piece)), err == io.EOF || err == errQuiet)
	if err == io.EOF && wrong == nil {
		wrong = r.atEOF()
	}
	if err == errQuiet {
		err = nil
	}
	if r.ready, r.err = r.out, err; wrong != nil {
		r.ready, r.err = nil, wrong
	}
	if cap(r.s.held) > 2*(r.s.longest+smallPiece) { // the piece was large
		r.s.held = append(make([]byte, 0, r.s.longest), r.s.held...)
	}
}

func (r *redactReader) Close() error {
	_ = r.from.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.from.Close()
}
