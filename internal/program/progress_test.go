package program

import (
	"testing"
	"time"

	"github.com/unitask/unitask/internal/hostfiles"
	"github.com/unitask/unitask/run"
)

// Half a second is not reported. Then there are two reports a second, with the rest.
func TestProgress(t *testing.T) {
	var said []string
	begin := time.Unix(0, 0)
	p := progress{Start: begin, Tell: func(e run.Event) { said = append(said, e.Message) }}
	for ms := range 2000 {
		p.Sent(begin.Add(time.Duration(ms)*time.Millisecond),
			hostfiles.Sent{Files: ms, AllFiles: 4000, Bytes: int64(ms) << 16, AllBytes: 4000 << 16})
	}
	want := []string{
		"500 of 4000 files, 31 of 250 MiB are in the machine; some 4 s more",
		"1000 of 4000 files, 62 of 250 MiB are in the machine; some 4 s more",
		"1500 of 4000 files, 93 of 250 MiB are in the machine; some 3 s more",
	}
	if len(said) != len(want) {
		t.Fatalf("%q", said)
	}
	for i := range want {
		if said[i] != want[i] {
			t.Errorf("%q, want %q", said[i], want[i])
		}
	}
}
