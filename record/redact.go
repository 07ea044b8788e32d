package record

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/unitask/unitask/internal/entropy"
)

// MinSecret is the minimum length of a secret, in bytes: shorter ones would match unrelated text.
const MinSecret = 6

// MaxSecrets bounds the bytes of all of a run's secrets: four private keys of 8 KiB. The
// redactor needs about 2 KB of memory for each byte.
const MaxSecrets = 32 << 10

// Secrets are the secrets that a Redactor finds, by name.
type Secrets struct {
	// Given are the secrets that the machine has. The Redactor also finds their parts (parts.go).
	Given map[string]string
	// Bound are the secrets for which the machine has placeholders. The Redactor finds only complete values, and only
	// values that can't be guessed. Otherwise the redaction would reveal to the code how much of a guess is right. A
	// stream never waits for the rest of such a value.
	Bound map[string]string
}

// MaxExposed bounds how often a run's output may contain the value of a bound secret, which its machine never
// had. After that a Writer fails with an *ExposedError.
const MaxExposed = 3

// ExposedError means that a machine has printed values that it was never given.
type ExposedError struct{}

func (*ExposedError) Error() string {
	return fmt.Sprintf(
		"the machine has sent the value of a secret %d times that it has only a placeholder of: "+
			"a host that got the value gave it away", MaxExposed)
}

// Redactor finds secrets in a run's output. It reads a stream in five views at once (views.go): unchanged, and as
// text with escapes, hexadecimal, base64 and decimal numbers. Each view has an automaton that finds the secrets.
// A nil Redactor finds nothing. Any goroutine may call its methods.
type Redactor struct {
	given, bound *automata // nil for none
	exposed      atomic.Int32
	known        atomic.Bool // the request itself contains a bound value
}

// automata are the secrets in the form of each view. They do not change after linking.
type automata struct {
	plain, escaped, hex, base64, decimal *automaton
}

// NewRedactor makes a redactor; nil if there are no secrets.
func NewRedactor(secrets Secrets) (*Redactor, error) {
	total := 0
	for _, list := range []map[string]string{secrets.Given, secrets.Bound} {
		for _, s := range list {
			total += len(s)
		}
	}
	if total > MaxSecrets {
		return nil,
			fmt.Errorf("secrets are too long to be looked for in what the code prints: %d bytes together, %d is the most", total,
				MaxSecrets)
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

// newAutomata returns nil without secrets. With cut, it includes the beginnings that programs print of long
// values.
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

// Exposed returns how often the machine has sent the value of a bound secret.
func (r *Redactor) Exposed() int {
	if r == nil {
		return 0
	}
	return int(r.exposed.Load())
}

// Known notes that the request itself contains the value of a bound secret, so its machine may send it.
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

// Writer returns a writer for a machine's output: it passes text on to w with secrets redacted. It holds back what may
// be the beginning of a given secret until more comes; Close passes on the rest. The split of the text into writes
// makes no difference to given secrets.
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

// span is a range of the stream, end excluded.
type span struct{ from, to int64 }

type redacting struct {
	w            io.Writer
	given, bound *views    // nil without such secrets
	counts       *Redactor // counts found bound values; nil counts none
	at           int64     // bytes received
	passed       int64     // bytes passed on
	pending      []byte    // bytes received but not passed on, after gone bytes that were
	gone         int
	hidden       []span // in order, without overlap; spans before passed are removed
	inside       bool   // the last output was a mark
	last         int64  // where the last bound value ended
	err          error  // from counts
	out          []byte
}

const (
	// passStep is the size of the pieces in which a long write is passed on.
	passStep = 4 << 10
	// wholeWithin is how much of a long write is held back until all of it was examined. So the Redactor finds a
	// bound value before it passes any of it on.
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

// take examines the next byte.
func (w *redacting) take(b byte) {
	if w.given != nil {
		w.given.take(b, w.at)
	}
	if w.bound != nil {
		w.bound.take(b, w.at)
	}
	w.at++
}

// expose counts a span with the value of a bound secret, and hides it.
func (w *redacting) expose(s span) {
	if s.from >= w.last && w.counts != nil && !w.counts.known.Load() && w.counts.exposed.Add(1) >= MaxExposed {
		w.err = &ExposedError{}
	}
	w.last = max(w.last, s.to)
	if s.to > w.passed {
		w.hide(s)
	}
}

// hide notes a span with a secret. Spans arrive in the order of their ends.
func (w *redacting) hide(s span) {
	for n := len(w.hidden); n > 0 && w.hidden[n-1].to >= s.from; n-- {
		s.from, s.to = min(s.from, w.hidden[n-1].from), max(s.to, w.hidden[n-1].to)
		w.hidden = w.hidden[:n-1]
	}
	w.hidden = append(w.hidden, s)
}

// pass passes on everything before a position in the stream.
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
	if w.gone > len(w.pending)/2 { // rare, so that each byte is moved only once
		w.pending, w.gone = append(w.pending[:0], w.pending[w.gone:]...), 0
	}
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.w.Write(w.out)
	return err
}

// Close passes on the bytes that were held back.
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
