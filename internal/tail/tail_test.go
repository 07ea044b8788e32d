package tail

import (
	"strings"
	"testing"
)

func TestBuffer(t *testing.T) {
	for size := range 6 {
		b := Buffer{Size: size}
		all := ""
		for _, p := range []string{"", "a", "bc", "", "defghijklmnop", "q", "rs", "t", strings.Repeat("x", 100), "yz"} {
			if n, err := b.Write([]byte(p)); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
			all += p
			if want := all[max(0, len(all)-size):]; b.String() != want {
				t.Errorf("the last %d of %q: %q", size, all, b.String())
			}
			if len(b.text) > 2*size {
				t.Errorf("%d bytes are kept for %d", len(b.text), size)
			}
		}
	}
}
