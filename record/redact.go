package record

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"sort"
	"strings"
)

// MinSecret is the least length of a secret, in bytes: a shorter one would be found
// in text that has nothing to do with it.
const MinSecret = 6

// Redactor finds secrets in what a run says, also in the encodings that programs
// commonly print. It is an automaton over all of their forms (Aho and Corasick, CACM
// 18/6, 1975) and is read only after NewRedactor; nil finds nothing.
type Redactor struct {
	nodes []node
}

type node struct {
	next  [256]int32 // -1: none yet, while it is built
	depth int32
	match int32 // the longest form that ends here
}

// maxForms bounds the bytes of all forms: the automaton has a node of a kilobyte for
// each.
const maxForms = 1 << 16

// NewRedactor makes a redactor for secrets by their names; nil for none.
func NewRedactor(secrets map[string]string) (*Redactor, error) {
	if len(secrets) == 0 {
		return nil, nil
	}
	r := &Redactor{}
	r.add(0)
	names := make([]string, 0, len(secrets))
	for name := range secrets {
		names = append(names, name)
	}
	sort.Strings(names)
	total := 0
	for _, name := range names {
		for _, form := range Forms(secrets[name]) {
			if total += len(form); total > maxForms {
				return nil, fmt.Errorf("secrets are too long to be looked for in what the code prints: %d bytes in all their forms, %d is the most", total, maxForms)
			}
			r.insert(form)
		}
	}
	r.link()
	return r, nil
}

func (r *Redactor) add(depth int32) int32 {
	n := node{depth: depth}
	for i := range n.next {
		n.next[i] = -1
	}
	r.nodes = append(r.nodes, n)
	return int32(len(r.nodes) - 1)
}

func (r *Redactor) insert(form string) {
	at := int32(0)
	for i := range len(form) {
		to := r.nodes[at].next[form[i]]
		if to < 0 {
			to = r.add(r.nodes[at].depth + 1)
			r.nodes[at].next[form[i]] = to
		}
		at = to
	}
	r.nodes[at].match = max(r.nodes[at].match, int32(len(form)))
}

// link turns the tree into the automaton, breadth first.
func (r *Redactor) link() {
	fail := make([]int32, len(r.nodes))
	var queue []int32
	for b := range 256 {
		if to := r.nodes[0].next[b]; to > 0 {
			queue = append(queue, to)
		} else {
			r.nodes[0].next[b] = 0
		}
	}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		r.nodes[at].match = max(r.nodes[at].match, r.nodes[fail[at]].match)
		for b := range 256 {
			other := r.nodes[fail[at]].next[b]
			if to := r.nodes[at].next[b]; to >= 0 {
				fail[to] = other
				queue = append(queue, to)
			} else {
				r.nodes[at].next[b] = other
			}
		}
	}
}

// Redacted stands where a secret was.
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

// Writer returns a writer that passes on to w what holds no secret. What may be the
// beginning of one is held back until more comes; Close passes on the rest.
func (r *Redactor) Writer(w io.Writer) io.WriteCloser { return &redacting{r: r, w: w} }

type redacting struct {
	r       *Redactor
	w       io.Writer
	state   int32
	pending []byte // not passed on yet
	hidden  []bool // of pending
	inside  bool   // what was passed on last was a mark
	out     []byte
}

func (w *redacting) Write(p []byte) (int, error) {
	if w.r == nil {
		return w.w.Write(p)
	}
	for _, b := range p {
		w.state = w.r.nodes[w.state].next[b]
		w.pending, w.hidden = append(w.pending, b), append(w.hidden, false)
		n := &w.r.nodes[w.state]
		for i := len(w.hidden) - int(n.match); i < len(w.hidden); i++ {
			w.hidden[i] = true
		}
		if ready := len(w.pending) - int(n.depth); ready >= 4096 {
			if err := w.pass(ready); err != nil {
				return 0, err
			}
		}
	}
	if err := w.pass(len(w.pending) - int(w.r.nodes[w.state].depth)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// pass passes the first n pending bytes on.
func (w *redacting) pass(n int) error {
	w.out = w.out[:0]
	for i := range n {
		switch {
		case !w.hidden[i]:
			w.out = append(w.out, w.pending[i])
		case !w.inside:
			w.out = append(w.out, Redacted...)
		}
		w.inside = w.hidden[i]
	}
	w.pending, w.hidden = append(w.pending[:0], w.pending[n:]...), append(w.hidden[:0], w.hidden[n:]...)
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.w.Write(w.out)
	return err
}

// Close passes on what was held back.
func (w *redacting) Close() error {
	if w.r == nil {
		return nil
	}
	w.state = 0
	return w.pass(len(w.pending))
}

// Forms are a secret and what programs commonly make of it: base64 and base64url at
// each of the three alignments, hex (plain, and with blanks as a Buffer is printed),
// decimal bytes, URL and JSON escapes, and each of these reversed.
func Forms(secret string) []string {
	var forms []string
	add := func(s string) {
		if len(s) >= MinSecret && !slices.Contains(forms, s) {
			forms = append(forms, s)
		}
	}
	bytes := []byte(secret)
	add(secret)
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for shift := range 3 {
			text := enc.EncodeToString(append(make([]byte, shift), bytes...))
			bits := 8 * (shift + len(bytes))
			add(text[(8*shift+5)/6 : bits/6]) // the characters that hang on the secret alone
		}
	}
	lower := hex.EncodeToString(bytes)
	var spaced, decimal, percent []string
	for _, b := range bytes {
		spaced = append(spaced, fmt.Sprintf("%02x", b))
		decimal = append(decimal, fmt.Sprint(b))
		percent = append(percent, fmt.Sprintf("%%%02X", b))
	}
	for _, s := range []string{lower, strings.Join(spaced, " "), strings.Join(spaced, ":"), strings.Join(percent, "")} {
		add(s)
		add(strings.ToUpper(s))
		add(strings.ToLower(s))
	}
	for _, sep := range []string{",", ", ", " "} {
		add(strings.Join(decimal, sep))
	}
	for _, s := range []string{url.QueryEscape(secret), url.PathEscape(secret), encodeURIComponent(secret)} {
		add(s)
		add(lowerEscapes(s))
	}
	for _, html := range []bool{true, false} {
		var quoted strings.Builder
		enc := json.NewEncoder(&quoted)
		enc.SetEscapeHTML(html)
		if enc.Encode(secret) == nil {
			text := strings.TrimSpace(quoted.String())
			text = text[1 : len(text)-1]
			add(text)
			add(strings.ReplaceAll(text, "/", `\/`))
			twice, _ := json.Marshal(text)
			add(string(twice[1 : len(twice)-1]))
		}
	}
	for _, form := range slices.Clone(forms) {
		back := []byte(form)
		slices.Reverse(back)
		add(string(back))
	}
	runes := []rune(secret)
	slices.Reverse(runes)
	add(string(runes))
	return forms
}

// encodeURIComponent escapes as JavaScript's function does (ECMA-262, 19.2.6.4).
func encodeURIComponent(s string) string {
	var out strings.Builder
	for _, b := range []byte(s) {
		if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("-_.!~*'()", b) >= 0 {
			out.WriteByte(b)
		} else {
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}

// lowerEscapes gives %XX its lower-case form.
func lowerEscapes(s string) string {
	out := []byte(s)
	for i := 0; i+2 < len(out); i++ {
		if out[i] == '%' {
			copy(out[i+1:], strings.ToLower(string(out[i+1:i+3])))
		}
	}
	return string(out)
}
