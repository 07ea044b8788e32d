package unitask

import (
	"fmt"
	"math/rand"
	"testing"
)

// What is kept of an output is its end, in order, whatever the pieces that it comes in.
func TestKeptOutput(t *testing.T) {
	for seed := range int64(20) {
		r := rand.New(rand.NewSource(seed))
		b := &background{change: make(chan struct{})}
		streams := [2]interface{ Write([]byte) (int, error) }{b.stream(false), b.stream(true)}
		var all []byte
		for len(all) < 5*MaxKeptOutput {
			n := 1 + r.Intn([]int{1, 10, 3 * MaxKeptOutput}[r.Intn(3)])
			piece := fmt.Appendf(nil, "%*d", n, len(all))[:n]
			all = append(all, piece...)
			_, _ = streams[r.Intn(2)].Write(piece)
			after := r.Int63n(int64(len(all)) + 1)
			is, _ := b.since(after)
			got := is.Text()
			if is.Seq != int64(len(all)) || is.Lost+int64(len(got)) != is.Seq-after || len(got) > MaxKeptOutput || string(got) != string(all[len(all)-len(got):]) {
				t.Fatalf("%d: beyond %d of %d: %d bytes, %d lost", seed, after, len(all), len(got), is.Lost)
			}
			if b.size > 2*MaxKeptOutput+n || len(b.kept) > maxPieces {
				t.Fatalf("%d bytes in %d pieces are kept", b.size, len(b.kept))
			}
		}
	}
	// What changes between the streams with each byte costs no more.
	b := &background{change: make(chan struct{})}
	for i := range 100_000 {
		_, _ = b.stream(i%2 == 0).Write([]byte{'x'})
	}
	if is, _ := b.since(0); len(b.kept) > maxPieces || is.Lost+int64(len(is.Text())) != 100_000 || len(is.Output) < maxPieces/2 {
		t.Errorf("%d pieces, %d bytes lost", len(b.kept), is.Lost)
	}
}
