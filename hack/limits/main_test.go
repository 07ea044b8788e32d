package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// docs/limits.md agrees with the code.
func TestPage(t *testing.T) {
	const root = "../.."
	want, err := render(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is old: go run ./hack/limits", page)
	}
	// Three values that other packages define: through an import, an expression, and a duration.
	for _, row := range []string{"| one folder that a run brings | 256 MiB |", "| to install packages | 15m |",
		"| `timeoutSeconds` | `--timeout` | 1m | 1ms | 24h |"} {
		if !strings.Contains(want, row) {
			t.Errorf("got no row %q", row)
		}
	}
	if n := strings.Count(want, "\n| "); n < 300 {
		t.Errorf("got %d rows, want 300 or more", n)
	}
}

func TestPlainly(t *testing.T) {
	for d, want := range map[time.Duration]string{10 * time.Second: "10s", time.Minute: "1m", 90 * time.Minute: "1h30m",
		24 * time.Hour: "24h", time.Millisecond: "1ms", 10 * time.Hour: "10h", 61 * time.Second: "1m1s"} {
		if got := plainly(d); got != want {
			t.Errorf("%v: got %q, want %q", d, got, want)
		}
	}
}

func TestValue(t *testing.T) {
	for n, want := range map[int64]string{6: "6 bytes", 1 << 20: "1 MiB", 3 << 30: "3 GiB", 1025: "1025 bytes",
		1: "1 byte", 12_345_678: "12 345 678 bytes"} {
		if got := size(n); got != want {
			t.Errorf("size(%d): got %q, want %q", n, got, want)
		}
	}
}
