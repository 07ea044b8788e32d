package netstack

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// A name in normal form is a name to everybody: no parser of addresses accepts it, and normalizing it again changes
// nothing.
func FuzzNormalName(f *testing.F) {
	for _, s := range []string{"a.example", "A.Example.", "127.1", "0x7f.1", "1.0x10", "a..b", "_dmarc.a.example",
		"xn--bcher-kva.example", "a.1e3", "٣.٣"} {
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

// copyChunked passes on its input byte for byte, and Go's own reader finds the same end of the body in it.
func FuzzChunked(f *testing.F) {
	for _, s := range []string{"0\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n",
		"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n", "1\nab\r\n", "ffffffffffffffff\r\n"} {
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

// Whatever a guest sends, in whatever order: the link continues, an answer is a complete frame, and the network closes.
func FuzzFrames(f *testing.F) {
	syn := []byte{3, 20, 0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0}
	f.Add([]byte{1, 8, 0, 1, 8, 0, 6, 4, 0, 1, 2, 4, 0, 67, 1, 1, 6, 0})
	f.Add(append(append([]byte{}, syn...), syn...))
	f.Add([]byte{0, 3, 1, 2, 3, 2, 0, 0, 53, 4, 0})
	f.Fuzz(func(t *testing.T, session []byte) {
		n, guest := attach(t, Config{Rules: []Rule{{Text: "r", Addr: netip.MustParseAddr("11.1.1.1"), Port: 80}},
			Upstream: Upstream{
				Local: func() ([]netip.Prefix, error) { return nil, nil },
				Here:  func(netip.Addr) (bool, error) { return false, nil },
				Dial: func(context.Context, netip.AddrPort) (net.Conn, error) {
					a, b := net.Pipe()
					b.Close()
					return a, nil
				},
			}})
		answered := make(chan string, 1)
		target := [4]byte{10, 9, 8, 7} // nobody else asks for it: see below
		go func() {
			var h [4]byte
			frame := make([]byte, maxFrame)
			for {
				if _, err := io.ReadFull(guest, h[:]); err != nil {
					answered <- "the link ended"
					return
				}
				size := binary.BigEndian.Uint32(h[:])
				if size < 14 || size > maxFrame {
					answered <- fmt.Sprintf("a frame of %d bytes", size)
					return
				}
				if _, err := io.ReadFull(guest, frame[:size]); err != nil {
					answered <- "half a frame"
					return
				}
				if size >= 42 && frame[12] == 8 && frame[13] == 6 && bytes.Equal(frame[28:32], target[:]) {
					answered <- ""
					return
				}
			}
		}()
		sendFrames(t, session, guest, &target)
		sendTo(t, guest, ethernet(0x0806, arp(1, target)))
		select {
		case what := <-answered:
			if what != "" {
				t.Error(what)
			}
		case <-time.After(10 * time.Second):
			t.Error("nothing is answered any more")
		}
		guest.Close()
		n.Close()
	})
}

// sendFrames sends the guest's frames that a text encodes.
func sendFrames(t *testing.T, session []byte, guest net.Conn, target *[4]byte) {
	t.Helper()
	for range 64 { // frames
		if len(session) < 2 {
			break
		}
		kind, size := session[0], int(session[1])
		session = session[2:]
		body := session[:min(size, len(session))]
		session = session[len(body):]
		switch kind % 5 {
		case 0:
			sendTo(t, guest, body)
		case 1:
			if len(body) < 28 || !bytes.Equal(body[24:28], target[:]) {
				sendTo(t, guest, ethernet(0x0806, body))
			}
		case 2:
			port := uint16(67)
			if len(body) > 1 {
				port = binary.BigEndian.Uint16(body)
			}
			sendTo(t, guest, ethernet(0x0800, packetIPv4(17, udpOf(68, port, 8+len(body), body), nil)))
		case 3:
			if len(body) >= 20 {
				sendTo(t, guest, ethernet(0x0800, checksummed(packetIPv4(6, append(bytes.Clone(body), make([]byte, len(body)%2)...),
					nil))))
			}
		default:
			sendTo(t, guest, ethernet(0x0800, body))
		}
	}
}

func FuzzHTTPHead(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"))
	f.Add([]byte("POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		head, err := parseHead(text)
		if err != nil || !bytes.HasSuffix(text, []byte("\r\n\r\n")) {
			return
		}
		// Go's own parser reads the same from accepted input, if it accepts it.
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(text)))
		if err != nil {
			return
		}
		if !strings.EqualFold(req.Host, head.host) {
			t.Errorf("host %q, and %q to net/http", head.host, req.Host)
		}
		if req.ContentLength != head.length {
			t.Errorf("length %d, and %d to net/http", head.length, req.ContentLength)
		}
	})
}

func FuzzPeekTLS(f *testing.F) {
	var sent bytes.Buffer
	_ = tls.Client(recorder{&sent}, &tls.Config{ServerName: "a.example"}).Handshake()
	f.Add(sent.Bytes())
	f.Fuzz(func(t *testing.T, text []byte) {
		r := bytes.NewReader(text)
		name, read, err := peekTLS(r)
		if err == nil && !bytes.Equal(read, text[:len(text)-r.Len()]) {
			t.Errorf("%q: what was read is not what is passed on", name)
		}
	})
}

func FuzzDNS(f *testing.F) {
	f.Add(dnsQuery("a.w.example.", dnsmessage.TypeA))
	f.Add(dnsQuery("evil.", dnsmessage.TypeTXT))
	f.Fuzz(func(t *testing.T, body []byte) {
		flt := &filter{[]Rule{hostRule("*.w.example")}}
		answer, d := answerDNS(flt, newNames(), body)
		if d == nil {
			t.Fatal("no decision")
		}
		var m dnsmessage.Message
		if answer != nil && m.Unpack(answer) != nil {
			t.Fatalf("an answer that is none: %x", answer)
		}
		if len(answer) > len(body)+64 || (len(m.Answers) > 0) != (d.Verdict == Allowed && d.Addr != "") {
			t.Errorf("%+v: %d bytes for %d", d, len(answer), len(body))
		}
	})
}
