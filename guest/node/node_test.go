package node

import "testing"

func TestIsSource(t *testing.T) {
	for ext, want := range map[string]bool{".js": true, ".mts": true, ".py": false, "": false, "js": false, ".JS": false} {
		if IsSource(ext) != want {
			t.Errorf("%q: %v", ext, !want)
		}
	}
}

func TestHeapArg(t *testing.T) {
	for mb, want := range map[int]string{128: "--max-old-space-size=40", 512: "--max-old-space-size=344", 4096: "--max-old-space-size=3704"} {
		if got := HeapArg(mb); got != want {
			t.Errorf("%d MiB: %s, want %s", mb, got, want)
		}
	}
}

func TestOutOfMemory(t *testing.T) {
	const words = "<--- Last few GCs --->\nFATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n"
	for _, c := range []struct {
		signal int
		stderr string
		want   bool
	}{{6, words, true}, {6, "Aborted", false}, {9, words, false}, {0, words, false}} {
		if got := OutOfMemory(c.signal, c.stderr); got != c.want {
			t.Errorf("signal %d, %q: %v", c.signal, c.stderr, got)
		}
	}
}
