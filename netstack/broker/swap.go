package broker

import (
	"bytes"
	"io"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
)

// pair is a text and its replacement.
type pair struct {
	find, put []byte
	secret    *Secret // whose text it is
	refuse    bool    // finding it is an error, and nothing replaces it
	derived   bool    // not a value itself, but computed from one
}

// swapper replaces texts in streams. It is immutable: any number of streams may use it at the same time.
//
// The text that begins first is replaced; if several begin at the same position, the longest. Replacements are
// not searched again. The result does not depend on how a stream is cut into pieces.
//
// A text is found by a rolling hash (Karp and Rabin) of its first bytes, as many as the shortest text has. So every
// byte costs the same time, whether or not it matches a text. The duration of a search does not reveal how much of a
// secret the guest has guessed.
type swapper struct {
	pairs    []pair
	failures func() [][]int32 // tables of Knuth, Morris and Pratt for each text; a blind stream needs none
	shortest int              // length of the shortest text
	longest  int              // length of the longest text
	resizes  bool             // some replacement has another length than its text

	in, out [256]uint64 // what a byte adds to the hash, and subtracts when it leaves
	maybe   []uint64    // a bit for the upper bits of each text's hash
	shift   int         // number of lower bits of a hash
	texts   map[uint64][]int32
}

// hashFactor is odd, so that a hash depends on all its bytes.
const hashFactor = 0x9e3779b97f4a7c15

// newSwapper returns a swapper for pairs, or nil if there is nothing to replace. Empty texts are ignored.
func newSwapper(pairs []pair) *swapper { return (*swapper)(nil).with(pairs) }

// with returns a swapper that also replaces further pairs. A nil swapper replaces nothing.
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

// index builds the tables for find.
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

// found is a found text and its position.
type found struct {
	*pair
	begin, end int
}

// find returns the first text in b at or after at; its pair is nil if there is none.
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

// failures returns, for each prefix of text, the length of its longest proper prefix that is also its suffix.
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

// unfinished returns the start of the longest suffix of b that could still become one of the texts; len(b) if
// there is none.
func (s *swapper) unfinished(b []byte) int {
	longest, tables := int32(0), s.failures()
	for i, p := range s.pairs {
		k := int32(0)
		end := b[max(0, len(b)-len(p.find)+1):]
		if at := bytes.Index(end, p.find[:min(4, len(p.find))]); at >= 0 { // rare
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

// swapping is the state of one stream. The zero value with a swapper is the start of a stream.
type swapping struct {
	*swapper
	held  []byte            // read but not decided yet
	hurry int               // an undecided end shorter than this is passed on anyway
	told  int               // how much of held was passed on
	blind bool              // the held length depends on no text: it is that of the longest, rounded up to whole pieces
	ends  []int             // for blind: where pieces end in held, as they arrived
	found func(*pair) error // called for each text that is found; not nil
}

// maxWhole bounds the data that a blind stream holds to keep the original pieces together: some programs treat
// each piece as a message.
const maxWhole = 64 << 10

// maxEnds bounds the remembered piece ends.
const maxEnds = 64

// feed adds a piece. A piece that fills its buffer need not end where the other side's piece ended.
func (s *swapping) feed(p []byte) {
	s.held = append(s.held, p...)
	if len(s.ends) == maxEnds { // of many small pieces, the first are passed on together
		s.ends = append(s.ends[:0], s.ends[maxEnds/2:]...)
	}
	if s.blind && len(s.held) <= maxWhole && len(p) != smallPiece {
		s.ends = append(s.ends, len(s.held))
	}
}

// write adds p, appends the decided part to dst, and holds the rest.
func (s *swapping) write(dst, p []byte) ([]byte, error) {
	s.feed(p)
	return s.run(dst, false)
}

// end appends the held rest to dst.
func (s *swapping) end(dst []byte) ([]byte, error) { return s.run(dst, true) }

// decided returns the length of the part of a text that later data can't change.
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

// puts reports whether some replacement is allowed, that is, not refused.
func (s *swapper) puts() bool {
	return s != nil && slices.ContainsFunc(s.pairs, func(p pair) bool { return !p.refuse })
}

// all replaces in a complete text.
func (s *swapper) all(text []byte, found func(*pair) error) ([]byte, error) {
	if s == nil {
		return text, nil
	}
	one := swapping{swapper: s, held: text[:len(text):len(text)], found: found}
	return one.end(nil)
}

// hurry is for requests whose server waits for the last byte sent so far (gRPC): that byte may look like the
// start of a placeholder.
const hurry = 4

// swapReader puts secrets into a request's body while it is read. While it waits, it holds only the undecided end
// and no buffer: it reads into its caller's buffer.
type swapReader struct {
	from  io.ReadCloser
	s     swapping
	ready []byte // a part of out
	out   []byte // scratch memory, until all of it was read
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

// swap processes a piece whose read ended with err, and makes the decided part ready.
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
	if cap(small) > maxHeld { // a long end was rare
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

// plain handles a text with nothing to replace, when nothing is held: it returns how much is decided, and holds
// the rest. For any other text it returns false and holds nothing.
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
