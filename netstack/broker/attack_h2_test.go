package broker

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/unitask/unitask/internal/attack"
)

// frames is a guest that sends single HTTP/2 frames, which a library would not.
type frames struct {
	*http2.Framer
	conn *tls.Conn
	head bytes.Buffer
	enc  *hpack.Encoder
}

func newFrames(t *testing.T, r *rig) *frames {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	conn, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	f := &frames{conn: tls.Client(conn, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"h2"}})}
	f.enc = hpack.NewEncoder(&f.head)
	if _, err := io.WriteString(f.conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f.Framer = http2.NewFramer(f.conn, f.conn)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// block returns a header block of names and values.
func (f *frames) block(fields ...string) []byte {
	f.head.Reset()
	for i := 0; i+1 < len(fields); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(f.head.Bytes())
}

// answer returns the result on the stream: a status, a reset, or the end of the connection.
func (f *frames) answer(stream uint32) string {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "closed"
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if frame.StreamID == stream {
				return frame.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == stream {
				return "reset"
			}
		case *http2.GoAwayFrame:
			return "closed"
		}
	}
}

type attackBrokerFramesRow struct {
	name   string
	fields []string
	want   string
}

// attackBrokerFramesRows are the cases of TestAttackBrokerFrames.
func attackBrokerFramesRows(
	with func(path string, authority string, more ...string) []string, p string,
) []attackBrokerFramesRow {
	return []attackBrokerFramesRow{
		{"a plain one", with("/a", host, "x-key", p), "200 /a with the value"},
		{"another authority", with("/a", "evil.example", "x-key", p), "421"},
		{"Host beside the authority", with("/a", host, "host", "evil.example", "x-key", p), "200 /a with the value"},
		{"Host and another authority", with("/a", "evil.example", "host", host, "x-key", p), "421"},
		{"a path behind a scheme", with("x:http://evil.example/a", host, "x-key", p), "400"},
		{"a whole address as path", with("https://evil.example/a", host, "x-key", p), "200 /a with the value"},
		{"a path without a slash", with("a", host, "x-key", p), "reset"},
		{"a request line in the path", with("/a HTTP/1.1\r\nHost: evil.example\r\n\r\n", host, "x-key", p), "reset"},
		{"a space in the path", with("/a HTTP/1.1", host, "x-key", p), "200 /a%20HTTP/1.1 with the value"},
		{"a space in the query", with("/a?b HTTP/1.1", host, "x-key", p), "200 /a?b%20HTTP/1.1 with the value"},
		{"a fragment", with("/a?b#c", host, "x-key", p), "200 /a?b%23c with the value"},
		{"a line's end in a value", with("/a", host, "x-key", p+"\r\nx: y"), "reset"},
		{"a space in a name", with("/a", host, "x key", p), "reset"},
		{"an upper case name", with("/a", host, "X-Key", p), "reset"},
		{"Connection", with("/a", host, "connection", "x-key", "x-key", p), "400"},
		{"Transfer-Encoding", with("/a", host, "transfer-encoding", "chunked", "x-key", p), "400"},
		{"two paths", with("/a", host, ":path", "/b", "x-key", p), "reset"},
		{"two authorities", with("/a", host, ":authority", "evil.example", "x-key", p), "reset"},
		{"CONNECT", []string{":method", "CONNECT", ":authority", host, "x-key", p}, "403"},
		{"CONNECT for WebSocket", []string{":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority",
			host, ":path", "/a", "x-key", p}, "reset"},
		{"a field of 100 KB", with("/a", host, "x-key", p, "x-long", strings.Repeat("x", 100_000)), "closed"},
	}
}

// Requests that only single frames can make.
func TestAttackBrokerFrames(t *testing.T) {
	o, saw := recorder(t, originConfig{})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
	p := r.Placeholder("KEY")
	with := func(path, authority string, more ...string) []string {
		return append([]string{":method", "GET", ":scheme", "https", ":authority", authority, ":path", path}, more...)
	}
	for _, c := range attackBrokerFramesRows(with, p) {
		f := newFrames(t, r)
		before := saw().Count
		block := f.block(c.fields...)
		for first := true; first || len(block) > 0; first = false {
			part := block[:min(len(block), 16<<10)]
			block = block[len(part):]
			var err error
			if first {
				err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: part, EndStream: true,
					EndHeaders: len(block) == 0})
			} else {
				err = f.WriteContinuation(1, len(block) == 0, part)
			}
			if err != nil {
				t.Fatal(c.name, err)
			}
		}
		got := f.answer(1)
		if s := saw(); s.Count > before {
			got += " " + s.URL + " with "
			if s.Header.Get("X-Key") == plain {
				got += "the value"
			}
		}
		attack.Check(t, "HTTP/2: "+c.name, c.want, got)
	}

	// A field that arrives in single bytes is accepted all the same.
	f := newFrames(t, r)
	block := f.block(with("/a", host, "x-key", p)...)
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:1], EndStream: true}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(block); i++ {
		if err := f.WriteContinuation(1, i == len(block)-1, block[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	got := f.answer(1)
	if saw().Header.Get("X-Key") != plain {
		got += " without the value"
	}
	attack.Check(t, "HTTP/2: a head in single bytes", "200", got)

	// An endless field ends the connection, and does not exhaust our memory.
	f = newFrames(t, r)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
	sent := 0
	for ; err == nil && sent < 1<<16; sent++ {
		err = f.WriteContinuation(1, false, f.block("x-more", strings.Repeat("x", 1000)))
	}
	got = "the end of the connection"
	if err == nil && f.answer(1) != "closed" {
		got = fmt.Sprint(sent, " frames are taken")
	}
	attack.Check(t, "HTTP/2: CONTINUATION without end", "the end of the connection", got)

	// Of requests that are cancelled at once, not all are started.
	f = newFrames(t, r)
	err = nil
	for id := uint32(1); err == nil && id < 1<<17; id += 2 {
		if err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block(with("/a", host)...),
			EndStream: true, EndHeaders: true}); err == nil {
			err = f.WriteRSTStream(id, http2.ErrCodeCancel)
		}
	}
	got = "the end of the connection"
	if err == nil && f.answer(1<<17) != "closed" {
		got = "goes on"
	}
	attack.Check(t, "HTTP/2: requests that are given up at once", "the end of the connection", got)
}

// Text that exists only in HTTP/2 is filtered, too: a reset's reason, GOAWAY's data.
func TestAttackBrokerGoAway(t *testing.T) {
	o := newOrigin(t, originConfig{}, func(http.ResponseWriter, *http.Request) {})
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: o.server.TLS.Certificates,
		NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	came := make(chan bool, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		f := http2.NewFramer(conn, conn)
		f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		_ = f.WriteSettings()
		value := ""
		for { // until the client closes: otherwise a reset would discard the unread rest
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if head, ok := frame.(*http2.MetaHeadersFrame); ok {
				for _, field := range head.RegularFields() {
					if field.Name == "x-key" {
						value = field.Value
					}
				}
				came <- value == plain
			}
			if data, ok := frame.(*http2.DataFrame); ok && data.StreamEnded() {
				_ = f.WriteGoAway(data.StreamID, http2.ErrCodeEnhanceYourCalm, []byte("not with "+value))
				_ = conn.(*tls.Conn).CloseWrite()
			}
		}
	}()
	o = &origin{server: &httptest.Server{Listener: l}, roots: o.roots}
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
	req, _ := http.NewRequest("POST", "https://"+host+"/", strings.NewReader("body"))
	req.Header.Set("X-Key", r.Placeholder("KEY"))
	res, err := r.client(true).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	got := "nothing"
	switch all := fmt.Sprint(res.Header, string(text), r.last()); {
	case !<-came:
		got = "the value did not come to the server"
	case !strings.Contains(all, "not with"):
		got = "other words: " + all
	case strings.Contains(all, plain):
		got = "the value"
	}
	attack.Check(t, "a server's answer: GOAWAY's words", "nothing", got)
}
