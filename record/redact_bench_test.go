package record

import (
	"io"
	"math/rand/v2"
	"strings"
	"testing"
)

// How fast streams pass: lines of a log, and base64, which looks most like what is
// searched for.
func BenchmarkRedact(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	lines := []byte(strings.Repeat("2026-10-12 12:34:56 GET /items/42?page=7 200 1832 bytes in 12 ms (cache miss, retried 2 times)\n", 700))
	dense := make([]byte, 64<<10)
	for i := range dense {
		dense[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[r.IntN(64)]
	}
	red, err := NewRedactor(map[string]string{"A": "ghp_0123456789abcdefABCDEF", "B": "postgres://user:passw0rd-long@db.example/x"})
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
