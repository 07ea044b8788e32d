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

	// least, if not 0, is how long a piece of the text must be to be replaced, by the same
	// piece of put, which is as long as the text.
	least int
}

// shortest is how long the shortest text is that the pair is about.
func (p *pair) shortest() int {
	if p.least > 0 {
		return p.least
	}
	return len(p.find)
}

// match says how much of the beginning of b is to be replaced, and by what.
func (p *pair) match(b []byte) (n int, put []byte) {
	if p.least == 0 {
		if bytes.HasPrefix(b, p.find) {
			return len(p.find), p.put
		}
		return 0, nil
	}
	if len(b) < p.least {
		return 0, nil
	}
	for from := 0; ; from++ {
		i := bytes.Index(p.find[from:], b[:p.least])
		if i < 0 {
			return n, put
		}
		from += i
		k := p.least
		for from+k < len(p.find) && k < len(b) && b[k] == p.find[from+k] {
			k++
		}
		if k > n {
			n, put = k, p.put[from:from+k]
		}
	}
}

// unfinishedPiece is how long the longest end of b is that may become a piece, or a
// longer one.
func (p *pair) unfinishedPiece(b []byte) int {
	n := 0 // an end that is in the text
	for n < min(len(b), len(p.find)) && bytes.Contains(p.find, b[len(b)-n-1:]) {
		n++
	}
	for ; n > 0; n-- { // one that has enough behind it there
		if last := len(p.find) - max(n+1, p.least); bytes.Contains(p.find[:last+n], b[len(b)-n:]) {
			return n
		}
	}
	return 0
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
	// starts has, by two bytes, which of groups holds the pairs that a text may be found of
	// where it begins with them; with a text of one byte, it is the first for all.
	starts [1 << 16]int32
	groups [][]int32
}

// begins notes that a text of a pair may begin with two bytes.
func (s *swapper) begins(two uint16, k int) {
	g := s.starts[two]
	if g == 0 {
		g = int32(len(s.groups))
		s.starts[two], s.groups = g, append(s.groups, nil)
	}
	if list := s.groups[g]; len(list) == 0 || list[len(list)-1] != int32(k) {
		s.groups[g] = append(list, int32(k))
	}
}

// newSwapper returns nil where there is nothing to replace. Empty texts are left out.
func newSwapper(pairs []pair) *swapper {
	var s swapper
	for _, p := range pairs {
		if len(p.find) == 0 {
			continue
		}
		s.pairs = append(s.pairs, p)
		s.failures = append(s.failures, nil)
		if p.least == 0 {
			s.failures[len(s.failures)-1] = failures(p.find)
		}
		if s.shortest == 0 || p.shortest() < s.shortest {
			s.shortest = p.shortest()
		}
	}
	if len(s.pairs) == 0 {
		return nil
	}
	s.groups = [][]int32{nil}
	if s.shortest == 1 {
		for k := range s.pairs {
			s.groups[0] = append(s.groups[0], int32(k))
		}
	}
	if s.shortest > 1 {
		s.skip = [1 << 16]uint8(bytes.Repeat([]byte{uint8(min(s.shortest-1, 255))}, len(s.skip)))
		for k, p := range s.pairs {
			for begin := 0; begin == 0 || begin <= len(p.find)-p.shortest(); begin++ {
				s.begins(uint16(p.find[begin])<<8|uint16(p.find[begin+1]), k)
				for i := 1; i < s.shortest; i++ {
					two := uint16(p.find[begin+i-1])<<8 | uint16(p.find[begin+i])
					s.skip[two] = uint8(min(int(s.skip[two]), s.shortest-1-i))
				}
			}
		}
	}
	return &s
}

// found is a text that was found: where, and what it becomes.
type found struct {
	*pair
	begin, end int
	put        []byte
}

// find returns the next text in b from at on; its pair is nil if there is none.
func (s *swapper) find(b []byte, at int) (f found) {
	for i := at + s.shortest - 1; i < len(b); {
		if s.shortest > 1 {
			if skip := s.skip[uint16(b[i-1])<<8|uint16(b[i])]; skip > 0 {
				i += int(skip)
				continue
			}
		}
		begin := i - s.shortest + 1
		group := int32(0)
		if s.shortest > 1 {
			group = s.starts[uint16(b[begin])<<8|uint16(b[begin+1])]
		}
		for _, k := range s.groups[group] {
			if n, put := s.pairs[k].match(b[begin:]); n > f.end-f.begin {
				f = found{&s.pairs[k], begin, begin + n, put}
			}
		}
		if f.pair != nil {
			return f
		}
		i++
	}
	return f
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
		if p.least > 0 {
			longest = max(longest, int32(p.unfinishedPiece(b)))
			continue
		}
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
	hurry int               // an unfinished end that is shorter is passed on all the same
	told  int               // how much of held was
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
			decided = at + s.unfinished(b[at:])
		}
	}
	decided = max(at, decided)
	dst = append(dst, b[max(at, s.told):max(decided, s.told)]...)
	s.held, s.told = append(s.held[:0], b[decided:]...), max(0, s.told-decided)
	if !last && len(s.held) < s.hurry {
		dst, s.told = append(dst, s.held[s.told:]...), len(s.held)
	}
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

// hurry is for streams whose other side waits for the last byte of what was said so far
// (gRPC's, frames of WebSocket): it may look like the beginning of a text. What a server
// cuts in two there shows the text's first letters, fewer than these.
const hurry = 4

// swapReader replaces in what it reads. While it waits, it keeps what is not decided and no
// buffer: it reads into its reader's own.
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
