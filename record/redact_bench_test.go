package record

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// The speed of streams: lines of a log, and base64, which most resembles a secret.
func BenchmarkRedact(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	lines := []byte(
		strings.Repeat("2026-10-12 12:34:56 GET /items/42?page=7 200 1832 bytes in 12 ms (cache miss, retried 2 times)\n",
			700))
	dense := make([]byte, 64<<10)
	for i := range dense {
		dense[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[r.IntN(64)]
	}
	red, err := NewRedactor(Secrets{Given: map[string]string{"A": "ghp_0123456789abcdefABCDEF",
		"B": "postgres://user:passw0rd-long@db.example/x"}})
	if err != nil {
		b.Fatal(err)
	}
	for name, text := range map[string][]byte{"log": lines, "base64": dense} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			w := red.Writer(io.Discard)
			for b.Loop() {
				_, _ = w.Write(text)
			}
		})
	}
}

// The cost of a byte does not depend on the secret, or on how much is held back. Data that is written byte by byte and
// resembles a repetitive value is moved no more often than other text.
func TestAttackRedactSlow(t *testing.T) {
	for name, value := range map[string]string{"one letter": strings.Repeat("a", 32_000-1) + "b",
		"two letters": strings.Repeat("ab", 16_000-1) + "c", "a number": strings.Repeat("65,", 10_000)} {
		moved := 0
		red, err := NewRedactor(Secrets{Given: map[string]string{"A": value}})
		if err != nil {
			t.Fatal(err)
		}
		w := red.writer(io.Discard)
		text := strings.Repeat(value[:len(value)/2], 8)
		for i := range text {
			before := w.gone
			if _, err := w.Write([]byte{text[i]}); err != nil {
				t.Fatal(err)
			}
			if w.gone < before {
				moved += len(w.pending)
			}
		}
		got := "each byte once or twice"
		if moved > 2*len(text) {
			got = fmt.Sprintf("%d bytes for %d", moved, len(text))
		}
		attack.Check(t, "a secret that repeats "+name+", and text like it, byte by byte: what is moved",
			"each byte once or twice", got)
	}
}
