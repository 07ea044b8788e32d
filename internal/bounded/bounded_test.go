package bounded

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

var errMore = errors.New("more")

func TestHead(t *testing.T) {
	for _, row := range []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"less", []string{"abc"}, "abc"},
		{"all", []string{"abc", "de"}, "abcde!"},
		{"more", []string{"abc", "defg", "h"}, "abcde!"},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got strings.Builder
			h := &Head{To: &got, Left: 5, More: "!"}
			for _, w := range row.writes {
				if n, err := h.Write([]byte(w)); n != len(w) || err != nil {
					t.Errorf("Write(%q) = %d, %v", w, n, err)
				}
			}
			if got.String() != row.want {
				t.Errorf("got %q, want %q", &got, row.want)
			}
		})
	}
}

func TestWriter(t *testing.T) {
	var got strings.Builder
	w := &Writer{To: &got, Left: 5, Err: errMore}
	if n, err := w.Write([]byte("abc")); n != 3 || err != nil {
		t.Errorf("Write below the limit: got %d, %v", n, err)
	}
	if n, err := w.Write([]byte("def")); n != 2 || !errors.Is(err, errMore) {
		t.Errorf("Write beyond the limit: got %d, %v, want 2, %v", n, err, errMore)
	}
	if got.String() != "abcde" {
		t.Errorf("got %q, want %q", &got, "abcde")
	}
}

func TestReader(t *testing.T) {
	for limit, want := range map[int64]error{5: nil, 4: errMore} {
		if _, err := io.ReadAll(&Reader{From: strings.NewReader("abcde"), Left: limit, Err: errMore}); err != want {
			t.Errorf("limit %d: got %v, want %v", limit, err, want)
		}
	}
}

func TestStream(t *testing.T) {
	var record bytes.Buffer
	var all strings.Builder
	s := NewStream(4, &record, nil)
	s.All = &all
	for _, w := range []string{"abc", "def", "g"} {
		if n, err := s.Write([]byte(w)); n != len(w) || err != nil {
			t.Errorf("Write(%q) = %d, %v", w, n, err)
		}
	}
	if got := string(
		s.Bytes(),
	); got != "abcd" || record.String() != got || !s.Truncated ||
		s.Tail.String() != "abcdefg" {
		t.Errorf("got %q, record %q, truncated %t, tail %q", got, &record, s.Truncated, s.Tail.String())
	}
	if all.String() != "abcdefg" {
		t.Errorf("all is %q", &all)
	}
	s.Restart(4)
	if s.Truncated || len(s.Bytes()) != 0 {
		t.Errorf("after Restart: truncated %t, %q", s.Truncated, s.Bytes())
	}
	r, w := io.Pipe()
	r.CloseWithError(errMore)
	if _, err := NewStream(4, &record, w).Write([]byte("x")); !errors.Is(err, errMore) {
		t.Errorf("the caller's writer fails: got %v, want %v", err, errMore)
	}
}

func TestText(t *testing.T) {
	for text, want := range map[string]string{"plain": "plain", "a\x1b[31m\u2028\xffb": "a?[31m??",
		strings.Repeat("x", 20): "xxxxxxxxxx"} {
		if got := Text(text, 10); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
}
