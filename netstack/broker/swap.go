package broker

import (
	"bytes"
	"io"
	"slices"
)

// pair is one text and what stands in its place.
type pair struct {
	find, put []byte
	secret    *Secret // whose text it is
	refuse    bool    // finding it is an error, and nothing is put in its place
}

// swapper replaces texts in streams. It is immutable: any number of streams may use
// one at a time.
//
// Of the texts, the one that begins first is replaced, and of those that begin at the
// same place the longest; replacements are not looked at again. The result does not
// depend on how a stream is cut into pieces.
type swapper struct {
	pairs    []pair
	failures [][]int32 // of each text: the tables of Knuth, Morris and Pratt
	shortest int       // text
	// skip says how far a text that is found next must be behind the two bytes that
	// would be the last two of its first shortest ones (Wu and Manber).
	skip [1 << 16]uint8
}

// newSwapper returns nil where there is nothing to replace. Empty texts are left out.
func newSwapper(pairs []pair) *swapper {
	var s swapper
	for _, p := range pairs {
		if len(p.find) == 0 {
			continue
		}
		s.pairs = append(s.pairs, p)
		s.failures = append(s.failures, failures(p.find))
		if s.shortest == 0 || len(p.find) < s.shortest {
			s.shortest = len(p.find)
		}
	}
	if len(s.pairs) == 0 {
		return nil
	}
	if s.shortest > 1 {
		s.skip = [1 << 16]uint8(bytes.Repeat([]byte{uint8(min(s.shortest-1, 255))}, len(s.skip)))
		for _, p := range s.pairs {
			for i := 1; i < s.shortest; i++ {
				two := uint16(p.find[i-1])<<8 | uint16(p.find[i])
				s.skip[two] = uint8(min(int(s.skip[two]), s.shortest-1-i))
			}
		}
	}
	return &s
}

// find returns the next text in b from at on, and where it begins; nil if there is none.
func (s *swapper) find(b []byte, at int) (begin int, found *pair) {
	for i := at + s.shortest - 1; i < len(b); {
		if s.shortest > 1 {
			if skip := s.skip[uint16(b[i-1])<<8|uint16(b[i])]; skip > 0 {
				i += int(skip)
				continue
			}
		}
		begin = i - s.shortest + 1
		for k := range s.pairs {
			if p := &s.pairs[k]; bytes.HasPrefix(b[begin:], p.find) && (found == nil || len(p.find) > len(found.find)) {
				found = p
			}
		}
		if found != nil {
			return begin, found
		}
		i++
	}
	return 0, nil
}

// failures holds, for each beginning of text, the length of its longest proper
// beginning that is its end too.
func failures(text []byte) []int32 {
	f := make([]int32, len(text))
	for i, k := 1, int32(0); i < len(text); i++ {
		for k > 0 && text[i] != text[k] {
			k = f[k-1]
		}
		if text[i] == text[k] {
			k++
		}
		f[i] = k
	}
	return f
}

// unfinished returns where the earliest end of b begins that could yet become one of
// the texts; len(b) if none could.
func (s *swapper) unfinished(b []byte) int {
	longest := int32(0)
	for i, p := range s.pairs {
		k := int32(0)
		end := b[max(0, len(b)-len(p.find)+1):]
		if at := bytes.Index(end, p.find[:min(4, len(p.find))]); at >= 0 { // seldom
			end = end[at:]
		} else {
			end = end[max(0, len(end)-3):]
		}
		for _, c := range end {
			for k > 0 && c != p.find[k] {
				k = s.failures[i][k-1]
			}
			if c == p.find[k] {
				k++
			}
		}
		longest = max(longest, k)
	}
	return len(b) - int(longest)
}

// swapping is one stream. The zero value but for its swapper is its beginning.
type swapping struct {
	*swapper
	held  []byte            // what was read and not decided
	found func(*pair) error // called for each text that is found; nil is not
}

// write appends to dst what is decided once p is read, and keeps the rest.
func (s *swapping) write(dst, p []byte) ([]byte, error) {
	s.held = append(s.held, p...)
	return s.run(dst, false)
}

// end appends to dst what was kept.
func (s *swapping) end(dst []byte) ([]byte, error) { return s.run(dst, true) }

func (s *swapping) run(dst []byte, last bool) ([]byte, error) {
	b := s.held
	at, decided := 0, len(b)
	if !last {
		decided = s.unfinished(b)
	}
	for {
		begin, p := s.swapper.find(b, at)
		if p == nil || begin >= decided {
			break
		}
		dst = append(dst, b[at:begin]...)
		if s.found != nil {
			if err := s.found(p); err != nil {
				return dst, err
			}
		}
		dst = append(dst, p.put...)
		at = begin + len(p.find)
		if !last && at > decided {
			decided = at + s.unfinished(b[at:])
		}
	}
	dst = append(dst, b[at:max(at, decided)]...)
	s.held = append(s.held[:0], b[max(at, decided):]...)
	return dst, nil
}

// puts says that a value is among what is put in place.
func (s *swapper) puts() bool {
	return s != nil && slices.ContainsFunc(s.pairs, func(p pair) bool { return !p.refuse })
}

// all replaces in a whole text.
func (s *swapper) all(text []byte, found func(*pair) error) ([]byte, error) {
	if s == nil {
		return text, nil
	}
	one := swapping{swapper: s, held: text[:len(text):len(text)], found: found}
	return one.end(nil)
}

// swapChunk is how much a stream is read at a time.
const swapChunk = 32 << 10

// swapReader replaces in what it reads.
type swapReader struct {
	from  io.ReadCloser
	s     swapping
	chunk []byte
	ready []byte
	out   []byte // ready's memory
	err   error
	atEOF func() // called once, before the end is reported; may be nil
}

func newSwapReader(from io.ReadCloser, s *swapper, found func(*pair) error, atEOF func()) *swapReader {
	return &swapReader{from: from, s: swapping{swapper: s, found: found}, atEOF: atEOF}
}

func (r *swapReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if r.chunk == nil {
		r.chunk = make([]byte, swapChunk)
	}
	for len(r.ready) == 0 && r.err == nil {
		n, err := r.from.Read(r.chunk)
		var wrong error
		r.out, wrong = r.s.write(r.out[:0], r.chunk[:n])
		if err == io.EOF && wrong == nil {
			r.out, wrong = r.s.end(r.out)
			if r.atEOF != nil {
				r.atEOF()
			}
		}
		if wrong != nil {
			r.out, err = nil, wrong
		}
		r.ready, r.err = r.out, err
	}
	n := copy(p, r.ready)
	if r.ready = r.ready[n:]; len(r.ready) == 0 && n == 0 {
		return 0, r.err
	}
	return n, nil
}

func (r *swapReader) Close() error { return r.from.Close() }
