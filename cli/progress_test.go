package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressText(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		done, total int64
		took        time.Duration
		columns     int
		want        string
	}{
		{0, 0, 3 * time.Second, 80, "unitask: building x, 3 s"},
		{0, 0, 62 * time.Second, 80, "unitask: building x, 1 min 2 s"},
		{0, 64 * mib, 2 * time.Second, 80, "unitask: building x [....................] 0 bytes of 64 MiB"},
		{16 * mib, 64 * mib, 4 * time.Second, 100,
			"unitask: building x [#####...............] 16 MiB of 64 MiB, 4 MiB/s, 12 s left"},
		{80 * mib, 64 * mib, 4 * time.Second, 100,
			"unitask: building x [####################] 64 MiB of 64 MiB, 16 MiB/s, 0 s left"},
		{0, 0, 3 * time.Second, 20, "unitask: build…, 3 s"},
		{0, 0, 3 * time.Second, 1, "…"},
	} {
		if got := progressText("building x", c.done, c.total, c.took, c.columns); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A step that takes less than a second is not shown. A longer step is one line that is redrawn, and removed at the end.
func TestProgressRedrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		after := func(d time.Duration) { <-time.NewTimer(d).C }
		var out bytes.Buffer
		p := progressLine{out: &out, columns: func() int { return 90 }}
		p.begin("fetching a")
		after(900 * time.Millisecond)
		p.end()
		if out.Len() > 0 {
			t.Errorf("after less than a second: %q", out.String())
		}
		p.begin("fetching \x1b[2J b")
		after(500 * time.Millisecond)
		p.have(1<<20, 2<<20)
		after(600 * time.Millisecond)
		p.begin("building c")
		after(300 * time.Millisecond)
		p.end()
		p.end()
		const from = "\r\x1b[K"
		want := from + `unitask: fetching \x1b[2J b [##########..........] 1 MiB of 2 MiB, 1 MiB/s, 1 s left` +
			from + "unitask: building c, 0 s" + from
		if out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
		after(time.Hour)
		if out.String() != want {
			t.Errorf("after its end: %q", strings.TrimPrefix(out.String(), want))
		}
	})
}

// A line is never wider than its terminal. A wider one would wrap, and each redraw would leave a line.
func TestProgressNarrow(t *testing.T) {
	for columns := 1; columns < 100; columns++ {
		for _, what := range []string{"a", "fetching " + strings.Repeat("x", 200)} {
			for _, total := range []int64{0, 300 << 20} {
				text := progressText(what, 100<<20, total, 100*time.Second, columns)
				if textWidth(text) > columns {
					t.Fatalf("%d columns: %q", columns, text)
				}
			}
			var out bytes.Buffer
			p := progressLine{out: &out, columns: func() int { return columns + 1 }}
			p.set(what)
			if text := strings.TrimPrefix(out.String(), "\r\x1b[K"); textWidth(text) > columns {
				t.Fatalf("%d columns: %q", columns, text)
			}
		}
	}
}
