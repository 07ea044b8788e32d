package broker

import (
	"bytes"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
)

// pair is one text and what stands in its place.
type pair struct {
	find, put []byte
	secret    *Secret // whose text it is
	refuse    bool    // finding it is an error, and nothing is put in its place
	derived   bool    // it is no value, but was made with one
}

// swapper replaces texts in streams. It is immutable: any number of streams may use
// one at a time.
//
// Of the texts, the one that begins first is replaced, and of those that begin at the
// same place the longest; replacements are not looked at again. The result does not
// depend on how a stream is cut into pieces.
//
// A text is found by a hash of its first bytes, as many as the shortest text has, which rolls
// along the stream (Karp and Rabin). So a byte costs the same whether or not it is like a
// text: how long a search takes does not tell how much of a secret the guest has guessed.
type swapper struct {
	pairs    []pair
	failures func() [][]int32 // of each text: the tables of Knuth, Morris and Pratt. A blind stream needs none
	shortest int              // text
	longest  int              // text
	resizes  bool             // a text is not as long as what is put in its place

	in, out [256]uint64 // what a byte adds to the hash, and takes from it when it leaves
	maybe   []uint64    // a bit for the upper bits of each text's hash
	shift   int         // how many lower bits a hash has
	texts   map[uint64][]int32
}

// hashFactor is odd, so that no byte is ever lost from a hash.
const hashFactor = 0x9e3779b97f4a7c15

// newSwapper returns nil if there is nothing to replace. Empty texts are left out.
func newSwapper(pairs []pair) *swapper { return (*swapper)(nil).with(pairs) }

// with returns one that replaces more. That of nil, which replaces nothing, is newSwapper.
func (s *swapper) with(pairs []pair) *swapper {
	base := s
	s = &swapper{texts: map[uint64][]int32{}}
	if base != nil {
		s.pairs = slices.Clip(base.pairs)
		s.shortest, s.longest, s.resizes = base.shortest, base.longest, base.resizes
	}
	for _, p := range pairs {
		if len(p.find) == 0 {
			continue
		}
		if s.shortest == 0 || len(p.find) < s.shortest {
			s.shortest = len(p.find)
		}
		s.longest = max(s.longest, len(p.find))
		s.resizes = s.resizes || len(p.find) != len(p.put)
		s.pairs = append(s.pairs, p)
	}
	if len(s.pairs) == 0 {
		return nil
	}
	s.index()
	s.failures = sync.OnceValue(func() [][]int32 {
		var list [][]int32
		for _, p := range s.pairs {
			list = append(list, failures(p.find))
		}
		return list
	})
	return s
}

// index makes what find needs.
func (s *swapper) index() {
	leaving := uint64(1)
	for range s.shortest {
		leaving *= hashFactor
	}
	for c := range s.in {
		s.in[c] = rand.Uint64()
		s.out[c] = s.in[c] * leaving
	}
	size := bits.Len(uint(64 * len(s.pairs)))
	s.shift = 64 - size
	s.maybe = make([]uint64, max(1, 1<<size/64))
	for k, p := range s.pairs {
		var h uint64
		for _, c := range p.find[:s.shortest] {
			h = h*hashFactor + s.in[c]
		}
		s.texts[h] = append(s.texts[h], int32(k))
		s.maybe[h>>s.shift/64] |= 1 << (h >> s.shift % 64)
	}
}

// found is a text that was found, and where.
type found struct {
	*pair
	begin, end int
}

// find returns the first text in b from at on; its pair is nil if there is none.
func (s *swapper) find(b []byte, at int) (f found) {
	if len(b)-at < s.shortest {
		return f
	}
	var h uint64
	for _, c := range b[at : at+s.shortest] {
		h = h*hashFactor + s.in[c]
	}
	for begin := at; ; begin++ {
		if s.maybe[h>>s.shift/64]&(1<<(h>>s.shift%64)) != 0 {
			for _, k := range s.texts[h] {
				if p := &s.pairs[k]; len(p.find) > f.end-f.begin && bytes.HasPrefix(b[begin:], p.find) {
					f = found{p, begin, begin + len(p.find)}
				}
			}
			if f.pair != nil {
				return f
			}
		}
		if begin+s.shortest >= len(b) {
			return f
		}
		h = h*hashFactor + s.in[b[begin+s.shortest]] - s.out[b[begin]]
	}
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
	longest, tables := int32(0), s.failures()
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
				k = tables[i][k-1]
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
	hurry int               // an unfinished end that is shorter is passed on all the same
	told  int               // how much of held was
	blind bool              // what is held depends on no text: always as much as the longest has, and whole pieces
	ends  []int             // of blind: where in held pieces end, as they came
	found func(*pair) error // called for each text that is found; nil is not
}

// maxWhole is how much of blind is held so that it is passed on in the pieces in which it came: some programs
// take each for a message.
const maxWhole = 64 << 10

// maxEnds bounds the pieces that are told apart.
const maxEnds = 64

// feed takes a piece. One that has filled its buffer does not end where the other side ended it.
func (s *swapping) feed(p []byte) {
	s.held = append(s.held, p...)
	if len(s.ends) == maxEnds { // of many small ones the first are passed on together
		s.ends = append(s.ends[:0], s.ends[maxEnds/2:]...)
	}
	if s.blind && len(s.held) <= maxWhole && len(p) != smallPiece {
		s.ends = append(s.ends, len(s.held))
	}
}

// write appends to dst what is decided once p is read, and keeps the rest.
func (s *swapping) write(dst, p []byte) ([]byte, error) {
	s.feed(p)
	return s.run(dst, false)
}

// end appends to dst what was kept.
func (s *swapping) end(dst []byte) ([]byte, error) { return s.run(dst, true) }

// decided returns how much of a text is, of which more may come.
func (s *swapping) decided(b []byte) int {
	if !s.blind {
		return s.unfinished(b)
	}
	most := max(0, len(b)-s.longest+1)
	if len(b) > maxWhole {
		return most
	}
	whole := 0
	for _, end := range s.ends {
		if end -= len(s.held) - len(b); end <= most {
			whole = max(whole, end)
		}
	}
	return whole
}

func (s *swapping) run(dst []byte, last bool) ([]byte, error) {
	b := s.held
	at, decided := 0, len(b)
	if !last {
		decided = s.decided(b)
	}
	for {
		f := s.swapper.find(b, at)
		if f.pair == nil || f.begin >= decided {
			break
		}
		dst = append(dst, b[max(at, s.told):max(f.begin, s.told)]...)
		if s.found != nil {
			if err := s.found(f.pair); err != nil {
				return dst, err
			}
		}
		dst = append(dst, f.put[min(max(0, s.told-f.begin), len(f.put)):]...)
		at = f.end
		if !last && at > decided {
			decided = at + s.decided(b[at:])
		}
	}
	decided = max(at, decided)
	dst = append(dst, b[max(at, s.told):max(decided, s.told)]...)
	s.held, s.told = append(s.held[:0], b[decided:]...), max(0, s.told-decided)
	left := s.ends[:0]
	for _, end := range s.ends {
		if end > decided {
			left = append(left, end-decided)
		}
	}
	s.ends = left
	if !last && len(s.held) < s.hurry {
		dst, s.told = append(dst, s.held[s.told:]...), len(s.held)
	}
	return dst, nil
}

// puts reports whether a value is among what is put in place.
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

// hurry is for requests whose other side waits for the last byte of what was said so far
// (gRPC's): it may look like the beginning of a placeholder.
const hurry = 4

// swapReader puts secrets into a request's body while it is read. While it waits, it keeps what is
// not decided and no buffer: it reads into its reader's own.
type swapReader struct {
	from  io.ReadCloser
	s     swapping
	ready []byte // a part of out
	out   []byte // scratch memory, while not all of it was read
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
	for len(r.ready) == 0 && r.err == nil {
		n, err := r.from.Read(p)
		if err == nil {
			if decided, plain := r.s.plain(p[:n]); decided > 0 {
				return decided, nil
			} else if plain {
				continue
			}
		}
		r.swap(p[:n], err)
	}
	n := copy(p, r.ready)
	if r.ready = r.ready[n:]; len(r.ready) == 0 && r.out != nil {
		putScratch(r.out)
		r.ready, r.out = nil, nil
	}
	if n == 0 {
		return 0, r.err
	}
	return n, nil
}

// swap makes ready what is decided once a piece is read, which ended with err.
func (r *swapReader) swap(piece []byte, err error) {
	held := append(append(getScratch(), r.s.held...), piece...)
	small := r.s.held
	r.s.held = held
	var wrong error
	r.out, wrong = r.s.run(getScratch(), err == io.EOF)
	if err == io.EOF && wrong == nil && r.atEOF != nil {
		r.atEOF()
	}
	if wrong != nil {
		r.out, err = r.out[:0], wrong
	}
	if cap(small) > maxHeld { // it was a long one, once
		small = nil
	}
	r.s.held = append(small[:0], r.s.held...)
	putScratch(held)
	r.ready, r.err = r.out, err
	if len(r.out) == 0 {
		putScratch(r.out)
		r.ready, r.out = nil, nil
	}
}

// plain is run for a text that has nothing to replace, where nothing was held: it says how much
// of the text is decided, and keeps the rest. Of another it says no, and keeps nothing.
func (s *swapping) plain(text []byte) (decided int, ok bool) {
	if len(s.held) > 0 || s.swapper.find(text, 0).pair != nil {
		return 0, false
	}
	decided = s.unfinished(text)
	s.held = append(s.held, text[decided:]...)
	if len(s.held) < s.hurry {
		decided, s.told = len(text), len(s.held)
	}
	return decided, true
}

func (r *swapReader) Close() error { return r.from.Close() }
