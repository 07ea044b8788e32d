package record

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// MinSecret is the least length of a secret, in bytes: shorter ones would match unrelated text.
const MinSecret = 6

// MaxSecrets bounds the bytes of all of a run's secrets: four private keys of 8 KiB. The
// redactor needs about 2 KB of memory for each byte.
const MaxSecrets = 32 << 10

// Redactor finds secrets, and parts of them that are secrets too (parts.go), in what a
// run says. A stream is read in five views at once (views.go): as it is, and as text
// with escapes, hexadecimal, base64 and decimal numbers. In each an automaton looks for
// the secrets. It does not change after NewRedactor; nil finds nothing.
type Redactor struct {
	plain, escaped, hex, base64, decimal *automaton
}

// NewRedactor makes a redactor for secrets by their names; nil for none.
func NewRedactor(secrets map[string]string) (*Redactor, error) {
	if len(secrets) == 0 {
		return nil, nil
	}
	total := 0
	for _, s := range secrets {
		total += len(s)
	}
	if total > MaxSecrets {
		return nil, fmt.Errorf("secrets are too long to be looked for in what the code prints: %d bytes together, %d is the most", total, MaxSecrets)
	}
	r := &Redactor{newAutomaton(), newAutomaton(), newAutomaton(), newAutomaton(), newAutomaton()}
	for _, s := range secrets {
		for _, part := range parts(s) {
			r.insert(part)
		}
	}
	for _, m := range []*automaton{r.plain, r.escaped, r.hex, r.base64, r.decimal} {
		m.link()
	}
	return r, nil
}

// Redacted replaces a secret.
const Redacted = "[redacted]"

// String redacts a whole text.
func (r *Redactor) String(s string) string {
	if r == nil {
		return s
	}
	var out strings.Builder
	w := r.Writer(&out)
	_, _ = w.Write([]byte(s))
	_ = w.Close()
	return out.String()
}

// Writer returns a writer that passes text on to w with secrets redacted. What may be the
// beginning of a secret is held back until more comes; Close passes on the rest. How the text
// is split into writes makes no difference.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser {
	rw := &redacting{w: w}
	if r != nil {
		rw.views = newViews(r, rw.hide)
	}
	return rw
}

// span is a stretch of the stream, end excluded.
type span struct{ from, to int64 }

type redacting struct {
	w       io.Writer
	views   *views // nil without secrets
	at      int64  // what was taken
	passed  int64  // what was passed on
	pending []byte // what is between the two
	hidden  []span // in order, apart from each other; those before passed are gone
	inside  bool   // what was passed on last was a mark
	out     []byte
}

// passStep is how often a long write is passed on.
const passStep = 4 << 10

func (w *redacting) Write(p []byte) (int, error) {
	if w.views == nil {
		return w.w.Write(p)
	}
	for rest := p; len(rest) > 0; {
		step := rest[:min(len(rest), passStep)]
		rest = rest[len(step):]
		for _, b := range step {
			w.views.take(b, w.at)
			w.at++
		}
		w.pending = append(w.pending, step...)
		if err := w.pass(min(w.at, w.views.held())); err != nil {
			return 0, err
		}
	}
	return len(p), nil
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
	for w.passed < to {
		next := span{to, to}
		if len(w.hidden) > 0 {
			next = w.hidden[0]
		}
		if next.from > w.passed {
			end := min(next.from, to)
			w.out = append(w.out, w.pending[w.passed-begin:end-begin]...)
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
	w.pending = append(w.pending[:0], w.pending[to-begin:]...)
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.w.Write(w.out)
	return err
}

// Close passes on what was held back.
func (w *redacting) Close() error {
	if w.views == nil {
		return nil
	}
	w.views.end()
	err := w.pass(w.at)
	w.views = newViews(w.views.of, w.hide)
	return err
}
