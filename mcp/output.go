package mcp

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/bounded"
)

// Limits of the output in a result, in bytes: of both streams and a step's value together. The record has all of it.
const (
	usualShown = 24 << 10 // the rest of a result's text has some KiB in addition
	mostShown  = 256 << 10
	leastShown = 16 // with less room nothing is shown
)

// stream receives output: it sends the output to the client, and keeps its beginning and its end for the result.
type stream struct {
	live  *live
	rest  []byte // of an incomplete character
	most  int    // bytes of the beginning; half as many of the end
	head  []byte
	tail  []byte // ends with the latest output
	total int64
}

func (s *stream) Write(p []byte) (int, error) {
	written := len(p)
	if s.live.kept != nil {
		_, _ = s.live.kept.Write(p)
	}
	s.rest = s.live.add(s.rest, p)
	s.total += int64(written)
	n := min(len(p), s.most-len(s.head))
	s.head, p = append(s.head, p[:n]...), p[n:]
	if keep := s.most / 2; len(s.tail)+len(p) > 2*keep {
		if len(p) >= keep {
			s.tail, p = s.tail[:0], p[len(p)-keep:]
		} else {
			end := s.tail[max(0, len(s.tail)-(keep-len(p))):]
			s.tail = s.tail[:copy(s.tail, end)]
		}
	}
	s.tail = append(s.tail, p...)
	return written, nil
}

// shown returns the stream, or its beginning and its end, as valid text of at most room bytes. It also returns how many
// bytes of the stream that is.
func (s *stream) shown(room int, resource string) (text string, of int64) {
	room = min(room, s.most)
	if int64(len(s.head)+len(s.tail)) == s.total && len(s.head)+len(s.tail) <= room {
		all := append(s.head[:len(s.head):len(s.head)], s.tail...)
		if text = strings.ToValidUTF8(string(all), "\ufffd"); len(text) <= room {
			return text, s.total
		}
	}
	if room < leastShown {
		return "", 0
	}
	half := room / 2
	for {
		head, tail := s.head[:min(half, len(s.head))], s.end(half)
		first := strings.ToValidUTF8(string(head[:bounded.Whole(head)]), "\ufffd")
		last := strings.ToValidUTF8(string(tail), "\ufffd")
		if len(first)+len(last) > room { // not UTF-8: the replacements are longer
			half = half * 2 / 3
			continue
		}
		of = int64(bounded.Whole(head) + len(tail))
		return fmt.Sprintf("%s\n[%d bytes are left out here: %s]\n%s", first, s.total-of, resource, last), of
	}
}

// end returns the last n bytes, without an incomplete first character.
func (s *stream) end(n int) []byte {
	tail := s.tail
	if len(tail) < n { // the end begins in the head
		tail = append(s.head[max(0, len(s.head)-(n-len(tail))):len(s.head):len(s.head)], tail...)
	}
	tail = tail[max(0, len(tail)-n):]
	for i := range min(len(tail), utf8.UTFMax) {
		if utf8.RuneStart(tail[i]) {
			return tail[i:]
		}
	}
	return tail
}

// streams are the streams of a run, and how much of them its result may contain, in bytes.
type streams struct {
	stdout, stderr stream
	room           int
	counts         [2]int64 // visible bytes of each
}

// newStreams returns streams for a result; most is its maximum size in bytes, and nil means usualShown.
func newStreams(live *live, most *int) *streams {
	room := usualShown
	if most != nil {
		room = *most
	}
	return &streams{stdout: stream{live: live, most: room}, stderr: stream{live: live, most: room}, room: room}
}

// show puts the visible parts of the streams and of the value into a result. Each gets a fair part of the room.
func (s *streams) show(res *unitask.Result) {
	res.Value = shorten(res.Value, s.room/2)
	room := s.room - len(res.Value)
	half := room / 2
	outRoom := max(half, room-int(min(s.stderr.total, int64(room))))
	errRoom := max(half, room-int(min(s.stdout.total, int64(room))))
	var out, stderr string
	out, s.counts[0] = s.stdout.shown(outRoom, partURI(res.RunID, "stdout"))
	stderr, s.counts[1] = s.stderr.shown(errRoom, partURI(res.RunID, "stderr"))
	res.Stdout, res.Stderr = []byte(out), []byte(stderr)
}

// forget drops the output: a result then says where it is.
func (s *streams) forget() {
	s.room = 0
	s.stdout.head, s.stdout.tail, s.stderr.head, s.stderr.tail = nil, nil, nil, nil
}

// cut returns the streams of a run that are not shown completely.
func (s *streams) cut(id string) (list []cut) {
	for i, one := range []struct {
		name string
		*stream
	}{{"stdout", &s.stdout}, {"stderr", &s.stderr}} {
		if s.counts[i] < one.total {
			list = append(list, cut{one.name, s.counts[i], one.total, partURI(id, one.name)})
		}
	}
	return list
}

// shorten returns the beginning and the end of a text as valid text of at most room bytes, plus a mark between them.
func shorten(text string, room int) string {
	text = strings.ToValidUTF8(text, "\ufffd")
	if len(text) <= room {
		return text
	}
	s := stream{live: &live{}, most: room}
	_, _ = s.Write([]byte(text))
	short, _ := s.shown(room, "print it to see all of it")
	return short
}

// lines writes lines of a list, and the number of the remaining ones; most is the maximum number of lines.
func lines[T any](b *bytes.Buffer, list []T, most int, line func(T) string) {
	for _, one := range list[:min(len(list), most)] {
		b.WriteString("\n" + line(one))
	}
	if len(list) > most {
		fmt.Fprintf(b, "\n(and %d more)", len(list)-most)
	}
}
