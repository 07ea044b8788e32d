package cli

import "testing"

func TestSize(t *testing.T) {
	for _, c := range []struct {
		unit int64
		text string
		want int64 // 0: refused
	}{
		{1 << 20, "512", 512}, {1 << 20, "512M", 512}, {1 << 20, "64MB", 64}, {1 << 20, "2GiB", 2048},
		{1 << 20, "1.5g", 1536}, {1 << 20, "1K", 1},
		{1 << 20, "600000000B", 573}, {1, "400MiB", 400 << 20}, {1, "1t", 1 << 40}, {1, "7", 7}, {1, "-1", -1},
		{1, " 3 kb ", 3 << 10},
		{1, "", 0}, {1, "M", 0}, {1, "1 2", 0}, {1, "1e9", 0}, {1, "0x10", 0}, {1, "1XB", 0}, {1, "9999999999999T", 0},
		{1, "nan", 0}, {1, "1.M", 0},
	} {
		s := &size{unit: c.unit}
		if err := s.Set(c.text); (err == nil) != (c.want != 0) || s.n != c.want {
			t.Errorf("%q in %d: %d %v, want %d", c.text, c.unit, s.n, err, c.want)
		}
	}
	for n, want := range map[int64]string{301 << 20: "301MiB", 2 << 30: "2GiB", 20: "20", 1<<20 + 1: "1048577",
		1536 << 20: "1536MiB"} {
		got := sizeText(n)
		back := &size{unit: 1}
		if err := back.Set(got); err != nil || back.n != n || got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
