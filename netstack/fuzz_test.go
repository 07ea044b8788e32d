package netstack

import (
	"bufio"
	"bytes"
	"io"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// A name in normal form is one to everybody: no parser of addresses takes it, and
// making it normal again changes nothing.
func FuzzNormalName(f *testing.F) {
	for _, s := range []string{"a.example", "A.Example.", "127.1", "0x7f.1", "1.0x10", "a..b", "_dmarc.a.example", "xn--bcher-kva.example", "a.1e3", "٣.٣"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name, ok := normalName(s)
		if !ok {
			return
		}
		if again, ok := normalName(name); !ok || again != name {
			t.Errorf("%q became %q, which becomes %q", s, name, again)
		}
		if !strings.EqualFold(strings.TrimSuffix(s, "."), name) {
			t.Errorf("%q became %q", s, name)
		}
		if _, err := netip.ParseAddr(name); err == nil {
			t.Errorf("%q is an address", name)
		}
		// As inet_aton and the URL Standard read it: up to four numbers in base 8, 10 or 16.
		last := name[strings.LastIndexByte(name, '.')+1:]
		if _, err := strconv.ParseUint(last, 0, 64); err == nil && !strings.ContainsAny(last, "_bo") {
			t.Errorf("%q ends in a number", name)
		}
	})
}

// What copyChunked passes on is what it read, byte for byte, and Go's own reader finds
// the same end of the body in it.
func FuzzChunked(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n", "3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n", "1\nab\r\n", "ffffffffffffffff\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var out bytes.Buffer
		r := bufio.NewReaderSize(bytes.NewReader(text), 4<<10)
		err := copyChunked(&out, r)
		if !bytes.HasPrefix(text, out.Bytes()) {
			t.Fatalf("passed on what was not there: %q", out.Bytes())
		}
		if err != nil {
			return
		}
		theirs := bufio.NewReader(bytes.NewReader(text))
		if _, err := io.Copy(io.Discard, httputil.NewChunkedReader(theirs)); err != nil {
			return // it is stricter here
		}
		// Theirs stops before the trailers.
		rest, _ := io.ReadAll(theirs)
		for {
			line, after, _ := bytes.Cut(rest, []byte("\r\n"))
			if rest = after; len(line) == 0 {
				break
			}
		}
		if ours := text[out.Len():]; !bytes.Equal(ours, rest) {
			t.Errorf("the body ends before %q, and before %q to net/http", ours, rest)
		}
	})
}
