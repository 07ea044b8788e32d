package record

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/unitask/unitask/internal/entropy"
)

// MinSecret is the least length of a secret, in bytes: shorter ones would match unrelated text.
const MinSecret = 6

// MaxSecrets bounds the bytes of all of a run's secrets: four private keys of 8 KiB. The
// redactor needs about 2 KB of memory for each byte.
const MaxSecrets = 32 << 10

// Secrets are what a Redactor looks for, by their names.
type Secrets struct {
	// Given are those that the machine has. They are found in parts, too (parts.go).
	Given map[string]string
	// Bound are those that the machine has placeholders of. A value is found whole or not at all, and
	// only if it can't be guessed: what is done to text must not tell who wrote it how much of
	// a secret it has guessed. A stream never waits for the rest of one.
	Bound map[string]string
}

// MaxExposed is how often a run's output may have the value of a bound secret, which its machine never
// had. After that a Writer fails with an *ExposedError.
const MaxExposed = 3

// ExposedError says that a machine has printed values that it was never given.
type ExposedError struct{}

func (*ExposedError) Error() string {
	return fmt.Sprintf("the machine has sent the value of a secret %d times that it has only a placeholder of: a host that got the value gave it away", MaxExposed)
}

// Redactor finds secrets in what a run says. A stream is read in five views at once (views.go): as it
// is, and as text with escapes, hexadecimal, base64 and decimal numbers. In each an automaton looks for
// the secrets. nil finds nothing. Its methods may be called from any goroutine.
type Redactor struct {
	given, bound *automata // nil for none
	exposed      atomic.Int32
	known        atomic.Bool // the request itself has a bound value
}

// automata are secrets as each view has them. They do not change once they are linked.
type automata struct {
	plain, escaped, hex, base64, decimal *automaton
}

// NewRedactor makes a redactor; nil where there is nothing to look for.
func NewRedactor(secrets Secrets) (*Redactor, error) {
	total := 0
	for _, list := range []map[string]string{secrets.Given, secrets.Bound} {
		for _, s := range list {
			total += len(s)
		}
	}
	if total > MaxSecrets {
		return nil, fmt.Errorf("secrets are too long to be looked for in what the code prints: %d bytes together, %d is the most", total, MaxSecrets)
	}
	var given, bound []string
	for _, s := range secrets.Given {
		given = append(given, parts(s)...)
	}
	for _, s := range secrets.Bound {
		if s = strings.TrimSpace(s); !entropy.Guessable(s) {
			bound = append(bound, s)
		}
	}
	if len(given)+len(bound) == 0 {
		return nil, nil
	}
	return &Redactor{given: newAutomata(given, true), bound: newAutomata(bound, false)}, nil
}

// newAutomata returns nil for none. With cut, the beginnings that programs print of long values are among them.
func newAutomata(list []string, cut bool) *automata {
	if len(list) == 0 {
		return nil
	}
	f := &automata{newAutomaton(), newAutomaton(), newAutomaton(), newAutomaton(), newAutomaton()}
	for _, s := range list {
		f.insert(s, cut)
	}
	for _, m := range []*automaton{f.plain, f.escaped, f.hex, f.base64, f.decimal} {
		m.link()
	}
	return f
}

// Exposed is how often the machine has sent the value of a bound secret.
func (r *Redactor) Exposed() int {
	if r == nil {
		return 0
	}
	return int(r.exposed.Load())
}

// Known says that the request itself has the value of a bound secret, so its machine may send it.
func (r *Redactor) Known() {
	if r != nil {
		r.known.Store(true)
	}
}

// Redacted replaces a secret.
const Redacted = "[redacted]"

// String redacts a whole text.
func (r *Redactor) String(s string) string {
	if r == nil {
		return s
	}
	var out strings.Builder
	w := r.writer(&out)
	_, _ = w.Write([]byte(s))
	_ = w.Close()
	return out.String()
}

// Writer returns a writer for what a machine sends: it passes text on to w with secrets redacted. What may
// be the beginning of a given secret is held back until more comes; Close passes on the rest. How the
// text is split into writes makes no difference to given secrets.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser {
	rw := r.writer(w)
	rw.counts = r
	return rw
}

func (r *Redactor) writer(w io.Writer) *redacting {
	rw := &redacting{w: w}
	if r != nil && r.given != nil {
		rw.given = newViews(r.given, rw.hide)
	}
	if r != nil && r.bound != nil {
		rw.bound = newViews(r.bound, rw.expose)
	}
	return rw
}

// span is a stretch of the stream, end excluded.
type span struct{ from, to int64 }

type redacting struct {
	w            io.Writer
	given, bound *views    // nil without such secrets
	counts       *Redactor // of what is found of bound; nil is none
	at           int64     // what was taken
	passed       int64     // what was passed on
	pending      []byte    // what is between the two, behind gone bytes of what was passed on
	gone         int
	hidden       []span // in order, apart from each other; those before passed are gone
	inside       bool   // what was passed on last was a mark
	last         int64  // where the last value of bound ended
	err          error  // of counts
	out          []byte
}

const (
	// passStep is how often a long write is passed on.
	passStep = 4 << 10
	// wholeWithin is how much of a long write is kept back until all of it was looked at, so that a
	// bound value in it is found before any of it is passed on.
	wholeWithin = 64 << 10
)

func (w *redacting) Write(p []byte) (int, error) {
	if w.given == nil && w.bound == nil {
		return w.w.Write(p)
	}
	for rest := p; len(rest) > 0; {
		step := rest[:min(len(rest), passStep)]
		rest = rest[len(step):]
		for _, b := range step {
			w.take(b)
		}
		w.pending = append(w.pending, step...)
		if w.err != nil {
			return 0, w.err
		}
		to := w.at
		if w.bound != nil && len(rest) > 0 {
			to = max(w.passed, to-wholeWithin)
		}
		if w.given != nil {
			to = min(to, w.given.held())
		}
		if err := w.pass(to); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// take looks at the next byte.
func (w *redacting) take(b byte) {
	if w.given != nil {
		w.given.take(b, w.at)
	}
	if w.bound != nil {
		w.bound.take(b, w.at)
	}
	w.at++
}

// expose notes a stretch that holds the value of a bound secret, and counts it.
func (w *redacting) expose(s span) {
	if s.from >= w.last && w.counts != nil && !w.counts.known.Load() && w.counts.exposed.Add(1) >= MaxExposed {
		w.err = &ExposedError{}
	}
	w.last = max(w.last, s.to)
	if s.to > w.passed {
		w.hide(s)
	}
}

// hide notes a stretch that holds a secret. Stretches come in the order of their ends.
func (w *redacting) hide(s span) {
	for n := len(w.hidden); n > 0 && w.hidden[n-1].to >= s.from; n-- {
		s.from, s.to = min(s.from, w.hidden[n-1].from), max(s.to, w.hidden[n-1].to)
		w.hidden = w.hidden[:n-1]
	}
	w.hidden = append(w.hidden, s)
}

// pass passes on what is before a place in the stream.
func (w *redacting) pass(to int64) error {
	if to <= w.passed {
		return nil
	}
	w.out = w.out[:0]
	begin := w.passed
	pending := w.pending[w.gone:]
	for w.passed < to {
		next := span{to, to}
		if len(w.hidden) > 0 {
			next = w.hidden[0]
		}
		if next.from > w.passed {
			end := min(next.from, to)
			w.out = append(w.out, pending[w.passed-begin:end-begin]...)
			w.passed, w.inside = end, false
			continue
		}
		if !w.inside {
			w.out = append(w.out, Redacted...)
			w.inside = true
		}
		w.passed = min(next.to, to)
		if w.passed == next.to {
			w.hidden = slices.Delete(w.hidden, 0, 1)
		}
	}
	w.gone += int(to - begin)
	if w.gone > len(w.pending)/2 { // seldom, so that a byte is moved once
		w.pending, w.gone = append(w.pending[:0], w.pending[w.gone:]...), 0
	}
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.w.Write(w.out)
	return err
}

// Close passes on what was held back.
func (w *redacting) Close() error {
	for _, v := range []*views{w.given, w.bound} {
		if v != nil {
			v.end()
		}
	}
	if w.err != nil {
		return w.err
	}
	err := w.pass(w.at)
	if w.given != nil {
		w.given = newViews(w.given.of, w.hide)
	}
	if w.bound != nil {
		w.bound = newViews(w.bound.of, w.expose)
	}
	return err
}
