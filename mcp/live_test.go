package mcp

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Incomplete characters wait in their own stream: output of the other stream in between breaks none.
func TestLiveStreams(t *testing.T) {
	l := &live{token: "t", wake: make(chan struct{}, 1)}
	s := newStreams(l, nil)
	euro := "€"
	for _, piece := range []struct {
		to   *stream
		text string
	}{{&s.stdout, "one " + euro[:1]}, {&s.stderr, "a warning\n" + euro[:2]}, {&s.stdout, euro[1:] + " two"},
		{&s.stderr, euro[2:]}} {
		if _, err := piece.to.Write([]byte(piece.text)); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(l.pending); got != "one a warning\n€ two€" {
		t.Errorf("%q", got)
	}
	long := strings.Repeat(euro, liveMessage)
	_, _ = s.stdout.Write([]byte(long))
	if got := l.pending; !utf8.Valid(got) || len(got) > liveMessage ||
		len(got)+l.dropped != len("one a warning\n€ two€")+len(long) {
		t.Errorf("%d bytes, %d left out, whole characters %t", len(got), l.dropped, utf8.Valid(got))
	}
}
