package broker

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"testing"
	"testing/iotest"
)

func pairs(texts ...string) []pair {
	var list []pair
	for i := 0; i+1 < len(texts); i += 2 {
		list = append(list, pair{find: []byte(texts[i]), put: []byte(texts[i+1])})
	}
	return list
}

// plainly does a swapper's work on a complete text.
func plainly(list []pair, text []byte) []byte {
	var out []byte
	for i := 0; i < len(text); {
		best, put := 0, []byte(nil)
		for _, p := range list {
			if len(p.find) > best && bytes.HasPrefix(text[i:], p.find) {
				best, put = len(p.find), p.put
			}
		}
		if best == 0 {
			out, i = append(out, text[i]), i+1
			continue
		}
		out, i = append(out, put...), i+best
	}
	return out
}

// inPieces passes a text to a swapper in pieces of the given lengths, over and over.
func inPieces(s *swapper, text []byte, lengths []byte) []byte {
	one := swapping{swapper: s}
	var out []byte
	for i := 0; len(text) > 0; i++ {
		n := 1
		if len(lengths) > 0 {
			n = int(lengths[i%len(lengths)])
		}
		n = min(n, len(text))
		if len(lengths) > 0 && n == 0 && i%len(lengths) == len(lengths)-1 {
			n = 1 // otherwise it might never end
		}
		out, _ = one.write(out, text[:n])
		text = text[n:]
	}
	out, _ = one.end(out)
	return out
}

func TestSwap(t *testing.T) {
	for _, c := range []struct {
		pairs      []pair
		text, want string
	}{
		{pairs("SECRET", "x"), "", ""},
		{pairs("SECRET", "x"), "nothing here", "nothing here"},
		{pairs("SECRET", "x"), "SECRET", "x"},
		{pairs("SECRET", ""), "aSECRETb", "ab"},
		{pairs("SECRET", "SECRETSECRET"), "aSECRETb", "aSECRETSECRETb"},
		{pairs("SECRET", "x"), "SECRE", "SECRE"},
		{pairs("SECRET", "x"), "SESECRETSECRE", "SExSECRE"},
		{pairs("aa", "b"), "aaaaa", "bba"},
		{pairs("ab", "1", "abc", "2"), "abcab", "21"},
		{pairs("abcd", "1", "bc", "2"), "abce abcd", "a2e 1"},
		{pairs("abcd", "1", "bcx", "2", "cxy", "3"), "abcxy", "a2y"},
		{pairs("abab", "1"), "ababab abaabab", "1ab aba1"},
	} {
		s := newSwapper(c.pairs)
		if want := string(plainly(c.pairs, []byte(c.text))); want != c.want {
			t.Fatalf("the test is wrong: %q, %q", c.want, want)
		}
		for n := range byte(5) {
			if got := string(inPieces(s, []byte(c.text), []byte{n + 1})); got != c.want {
				t.Errorf("%q in pieces of %d: %q, want %q", c.text, n+1, got, c.want)
			}
		}
		if got, _ := s.all([]byte(c.text), nil); string(got) != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
		r := newSwapReader(io.NopCloser(iotest.OneByteReader(bytes.NewReader([]byte(c.text)))), s, nil, nil)
		if got, err := io.ReadAll(iotest.DataErrReader(r)); err != nil || string(got) != c.want {
			t.Errorf("%q read: %q %v", c.text, got, err)
		}
	}
	if newSwapper(pairs("", "x")) != nil {
		t.Error("an empty text is replaced")
	}
}

func TestSwapReaderFound(t *testing.T) {
	wrong := errors.New("misdirected")
	s := newSwapper(pairs("SECRET", "x"))
	r := newSwapReader(io.NopCloser(bytes.NewReader([]byte("before SECRET after"))), s, func(*pair) error { return wrong },
		nil)
	if got, err := io.ReadAll(r); !errors.Is(err, wrong) || len(got) != 0 {
		t.Errorf("%q %v", got, err)
	}
	ended := 0
	r = newSwapReader(io.NopCloser(bytes.NewReader([]byte("text"))), s, nil, func() { ended++ })
	if _, err := io.ReadAll(r); err != nil || ended != 1 {
		t.Errorf("%v, ended %d times", err, ended)
	}
	broken := newSwapReader(io.NopCloser(iotest.TimeoutReader(iotest.OneByteReader(bytes.NewReader([]byte("SEC"))))), s,
		nil, nil)
	if _, err := io.ReadAll(broken); !errors.Is(err, iotest.ErrTimeout) {
		t.Error(err)
	}
}

// Random texts of few letters, which overlap in every way, in random pieces.
func TestSwapRandom(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	word := func(n int) []byte {
		b := make([]byte, 1+random.Intn(n))
		for i := range b {
			b[i] = "abc"[random.Intn(3)]
		}
		return b
	}
	for range 20_000 {
		var list []pair
		for range 1 + random.Intn(4) {
			list = append(list, pair{find: word(6), put: word(4)})
		}
		text, lengths := word(60), word(5)
		for i := range lengths {
			lengths[i] -= 'a' - 1
		}
		if got, want := inPieces(newSwapper(list), text, lengths), plainly(list, text); !bytes.Equal(got, want) {
			t.Fatalf("%v %q in pieces of %v: %q, want %q", list, text, lengths, got, want)
		}
	}
}

// In hurry mode the end of the data is passed on at once. Only the first letters of a text become visible, however it
// arrives.
func TestSwapHurry(t *testing.T) {
	const value, put = "Zk3vQ8sXw1Lr7Tn5", "ABCDEFGHIJKLMNOP"
	s := newSwapper([]pair{{find: []byte(value), put: []byte(put)}, {find: []byte("Zk3!"), put: []byte("-")}})
	for text, want := range map[string]string{
		"a" + value + "b":       "aZk3" + put[3:] + "b",
		value[:9] + "b":         value[:9] + "b",
		"Zk3!" + value[2:14]:    "Zk3" + value[2:14],
		"ZkZk3v" + value + "Zk": "ZkZk3vZk3" + put[3:] + "Zk",
	} {
		one := swapping{swapper: s, hurry: hurry}
		var out []byte
		for i := range len(text) {
			out, _ = one.write(out, []byte{text[i]})
			if n := i + 1 - len(out); n >= hurry && n > 12 {
				t.Errorf("%q: %d bytes are held", text[:i+1], n)
			}
		}
		if out, _ = one.end(out); string(out) != want {
			t.Errorf("%q: %q, want %q", text, out, want)
		}
		for _, said := range []string{"pong Z", "pong Zk3", "it is v"} {
			one := swapping{swapper: s, hurry: hurry}
			if out, _ := one.write(nil, []byte(said)); string(out) != said {
				t.Errorf("%q of %q comes at once", out, said)
			}
		}
	}
}

// Any split of any input gives the same bytes.
func FuzzSwap(f *testing.F) {
	f.Add([]byte("SECRET"), []byte("KEY"), []byte("SECRETLY"), []byte("a SECRET and SECRETLY SECRE"), []byte{1, 5, 2})
	f.Add([]byte("SECRET"), []byte("sixsix"), []byte("CREDO"), []byte("a SECRET and SECRE CRET SECREDO"), []byte{1, 5, 2})
	f.Add([]byte("aa"), []byte("b"), []byte("aab"), []byte("aaaabaabaaa"), []byte{0, 1})
	f.Fuzz(func(t *testing.T, one, put, two, text, lengths []byte) {
		list := []pair{{find: one, put: put}, {find: two, put: []byte("-")}}
		s := newSwapper(list)
		if s == nil {
			return
		}
		want := plainly(list, text)
		if len(one) > 0 && bytes.Equal(one, two) {
			return
		}
		if got := inPieces(s, text, lengths); !bytes.Equal(got, want) {
			t.Errorf("%q in pieces of %v: %q, want %q", text, lengths, got, want)
		}
	})
}

func BenchmarkSwap(b *testing.B) {
	random := rand.New(rand.NewSource(1))
	text := make([]byte, 1<<20)
	for i := range text {
		text[i] = byte(random.Intn(64) + ' ')
	}
	var list []pair
	for range 12 {
		p := make([]byte, 40)
		for i := range p {
			p[i] = byte(random.Intn(64) + ' ')
		}
		list = append(list, pair{find: p, put: p})
	}
	s := newSwapper(list)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		r := newSwapReader(io.NopCloser(bytes.NewReader(text)), s, nil, nil)
		_, _ = io.Copy(io.Discard, struct{ io.Reader }{r})
	}
}
