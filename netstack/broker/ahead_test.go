package broker

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
)

// bitByBit delivers the data that it is given, and then waits until it is closed.
type bitByBit struct {
	io.Reader
	pieces chan []byte
	closed chan struct{}
	left   []byte
}

func (s *bitByBit) Read(p []byte) (int, error) {
	if len(s.left) == 0 {
		select {
		case s.left = <-s.pieces:
		case <-s.closed:
			return 0, errors.New("closed")
		}
	}
	n := copy(p, s.left)
	s.left = s.left[n:]
	return n, nil
}

func (s *bitByBit) Close() error { close(s.closed); return nil }

// Reading ahead preserves the bytes and the end, however they are read.
func TestReadAhead(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 8))
	broken := errors.New("broken")
	for _, size := range []int{0, 1, aheadAfter - 1, aheadAfter, aheadAfter + 1, aheadAfter + aheadPiece,
		3*aheadAfter + 17} {
		text := make([]byte, size)
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		for name, from := range map[string]func() io.Reader{
			"at once": func() io.Reader { return bytes.NewReader(text) },
			"in halves, its end with the last": func() io.Reader {
				return iotest.DataErrReader(iotest.HalfReader(bytes.NewReader(text)))
			},
			"until it breaks": func() io.Reader {
				return io.MultiReader(bytes.NewReader(text),
					iotest.ErrReader(broken))
			},
		} {
			var at atomic.Int64
			r := newReadAhead(io.NopCloser(from()), &at)
			var got []byte
			var err error
			for err == nil {
				var piece []byte
				if piece, err = r.next(time.Duration(random.IntN(2)) * time.Minute); err == errQuiet {
					t.Fatal("it is quiet")
				}
				got = append(got, piece...)
			}
			want := io.EOF
			if name == "until it breaks" {
				want = broken
			}
			if _, again := r.next(0); !bytes.Equal(got, text) || !errors.Is(err, want) || !errors.Is(again, want) {
				t.Errorf("%d bytes %s: %d bytes, %v, and again %v", size, name, len(got), err, again)
			}
			if errors.Join(r.Close(), r.Close()) != nil || at.Load() != 0 {
				t.Errorf("%d bytes %s: %d are still counted", size, name, at.Load())
			}
		}
	}
}

// A body that arrives in pieces is passed on at once. A body that waits is known to be quiet, and ends when it is
// closed. If there are too many, the pieces stay small.
func TestReadAheadWaits(t *testing.T) {
	var at atomic.Int64
	const many = maxAhead + 3
	var all []*readAhead
	for range many {
		s := &bitByBit{pieces: make(chan []byte, 1), closed: make(chan struct{})}
		r := newReadAhead(s, &at)
		all = append(all, r)
		s.pieces <- make([]byte, aheadAfter)
		for got := 0; got < aheadAfter; {
			piece, err := r.next(0)
			if err != nil {
				t.Fatal(err)
			}
			got += len(piece)
		}
		for _, word := range []string{"one", "two"} {
			s.pieces <- []byte(word)
			if got, err := r.next(0); err != nil || string(got) != word {
				t.Fatalf("%q %v", got, err)
			}
		}
		if got, err := r.next(time.Millisecond); err != errQuiet {
			t.Fatalf("%q %v", got, err)
		}
	}
	if at.Load() != maxAhead {
		t.Errorf("%d read ahead", at.Load())
	}
	for _, r := range all {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := r.next(0); err == nil {
			t.Error("it is read after it was closed")
		}
	}
	if at.Load() != 0 {
		t.Errorf("%d are still counted", at.Load())
	}
}
