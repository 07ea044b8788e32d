package codexexec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/session"
)

// connection is a client's end.
type connection struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner
}

// connect serves a client whose session can't start.
func connect(t *testing.T) *connection {
	t.Helper()
	fromClient, in := io.Pipe()
	out, toClient := io.Pipe()
	done := make(chan error, 1)
	go func() {
		start := func(context.Context) (*session.Session, error) { return nil, errors.New("no room") }
		_, err := Serve(t.Context(), Options{Start: start, Host: "/home/me/app", Guest: "/work", Shell: "/bin/sh"},
			fromClient, toClient)
		toClient.Close()
		done <- err
	}()
	t.Cleanup(func() {
		in.Close()
		go func() { _, _ = io.Copy(io.Discard, out) }()
		if err := <-done; err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("its end: %v", err)
		}
	})
	return &connection{t, in, bufio.NewScanner(out)}
}

// ask sends a line and returns the answer.
func (c *connection) ask(line string) string {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
	if !c.out.Scan() {
		c.t.Fatalf("no answer to %s", line)
	}
	return c.out.Text()
}

// Errors come in the protocol's terms, and the connection continues.
func TestErrors(t *testing.T) {
	c := connect(t)
	for _, row := range [][2]string{
		{`{"id":1,"method":"process/read","params":{}}`, `call initialize first`},
		{`{"id":2,"method":"initialize","params":{"clientName":"x","resumeSessionId":"old"}}`, `unknown session id`},
		{`{"id":3,"method":"initialize"}`, `params are missing`},
		{`{"id":4,"method":"initialize","params":{"clientName":"x","resumeSessionId":null}}`, `"sessionId":"unitask"`},
		{`{"id":5,"method":"initialize","params":{"clientName":"x"}}`, `only be sent once`},
		{"{\"method\":\"initialized\",\"params\":{}}\n{\"id\":6,\"method\":\"no/such\"}", `"code":-32601`},
		{`{"method":"process/start"}`, `"id":-1`},
		{`[{"id":7,"method":"environment/info"}]`, `"code":-32600`},
		{`garbage`, `no JSON-RPC message`},
		{`{"id":{"a":1},"method":"environment/info"}`, `the id must be a number or a text`},
		{`{"id":"` + strings.Repeat("x", 300) + `","method":"environment/info"}`, `the id must be`},
		{`{"id":8,"result":{}}`, `has no method`},
		{`{"id":"nine","method":"process/start","params":{"processId":"p","argv":["x"],"cwd":"file:///","env":{}}}`,
			`the machine did not start: no room`},
		{`{"id":10,"method":"process/write","params":{"processId":"p","chunk":"!"}}`, `"code":-32602`},
		{`{"id":11,"method":"process/write","params":{"processId":"p","chunk":"aGk="}}`, `unknownProcess`},
	} {
		if got := c.ask(row[0]); !strings.Contains(got, row[1]) {
			t.Errorf("%.200s: %s", row[0], got)
		}
	}
}

// A path of the project's folder on the host is one of the folder in the machine; every other path is the machine's.
func TestPaths(t *testing.T) {
	s := &server{Options: Options{Host: "/home/me/app", RealHost: "/data/app", Guest: "/work"}}
	for uri, want := range map[string]string{
		"file:///home/me/app": "/work", "file:///data/app/x": "/work/x", "file:///data/app2": "/data/app2",
		"file:///home/me/app/a%20b": "/work/a b", "file:///home/me/app/../x": "/home/me/x",
		"file:///home/me/application": "/home/me/application", "file://localhost/tmp": "/tmp", "file:///work/x": "/work/x",
		"/tmp": "", "http:///tmp": "", "file://host/tmp": "", "file:tmp": "", "file:///a%00b": "", "": "",
		"file:///" + strings.Repeat("x", 5000): "",
	} {
		got, host, err := s.path(uri)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%.80s: %q %v", uri, got, err)
		}
		if host != "" && uri != s.uri(got, host) {
			t.Errorf("%s goes back to %s", uri, s.uri(got, host))
		}
	}
}

// What a process does not read is bounded.
func TestInput(t *testing.T) {
	i := newInput()
	if err := i.add(make([]byte, maxInput)); err != nil {
		t.Fatal(err)
	}
	if err := i.add([]byte{1}); err == nil {
		t.Error("there is no limit")
	}
	read := make(chan int, 1)
	go func() {
		text, _ := io.ReadAll(i)
		read <- len(text)
	}()
	testwait.Within(t, time.Minute, "room", func() bool { return i.add([]byte{1}) == nil })
	i.close()
	if n := <-read; n != maxInput+1 {
		t.Errorf("%d bytes were read", n)
	}
	if err := i.add([]byte{1}); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// A process's output is kept up to a limit, and read by sequence numbers.
func TestKeptOutput(t *testing.T) {
	s := &server{ctx: t.Context(), answers: make(chan answer, 1<<10)}
	p := &process{s: s, id: "p", opened: make(chan struct{}), printed: make(chan struct{}, 1), next: 1,
		changed: make(chan struct{})}
	close(p.opened)
	for range 40 {
		_, _ = output{p, "stdout"}.Write(make([]byte, 64<<10))
	}
	if p.kept > maxOutput || len(p.chunks) != 16 || p.chunks[0].Seq != 25 {
		t.Errorf("%d bytes in %d chunks from %d on", p.kept, len(p.chunks), p.chunks[0].Seq)
	}
	one := 1
	answer, ready, _ := p.read(readParams{AfterSeq: 30, MaxBytes: &one})
	chunks := answer["chunks"].([]chunk)
	if !ready || len(chunks) != 1 || chunks[0].Seq != 31 || answer["nextSeq"] != uint64(32) {
		t.Errorf("%v %v", ready, answer["nextSeq"])
	}
	if _, ready, _ := p.read(readParams{AfterSeq: 40}); ready {
		t.Error("there is something new")
	}
}

// Single bytes of output use no more memory than large pieces.
func TestKeptBytes(t *testing.T) {
	s := &server{ctx: t.Context(), answers: make(chan answer, 2*maxChunks)}
	p := &process{s: s, opened: make(chan struct{}), printed: make(chan struct{}, 1), changed: make(chan struct{})}
	close(p.opened)
	for range 2 * maxChunks {
		_, _ = output{p, "stdout"}.Write([]byte("."))
	}
	if len(p.chunks) != maxChunks || cap(p.chunks) > 4*maxChunks || p.kept != maxChunks {
		t.Errorf("%d bytes in %d of %d chunks", p.kept, len(p.chunks), cap(p.chunks))
	}
}

// FuzzMessage reads messages of any kind: what can be read is valid, and no path leaves the project's folder by its
// name on the host.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"id":1,"method":"process/start",` +
		`"params":{"processId":"p","argv":["sh"],"cwd":"file:///home/me/app","env":{}}}`))
	f.Add([]byte(`{"id":"x","method":"fs/readFile","params":{"path":"file:///home/me/app/../../x%2f..","sandbox":null}}`))
	f.Add([]byte(`{"method":"initialized"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, line []byte) {
		s := &server{Options: Options{Host: "/home/me/app", Guest: "/work"}}
		m, err := parse(line)
		if err != nil {
			if !errors.As(err, new(*callError)) {
				t.Errorf("%v", err)
			}
			return
		}
		if m.Method == "" || len(m.ID) > maxName || len(m.ID) > 0 && !json.Valid(m.ID) {
			t.Errorf("%+v", m)
		}
		if p, err := params[startParams](m); err == nil {
			if c, err := s.command(p); err == nil && (len(c.Args) == 0 || !strings.HasPrefix(c.Dir, "/")) {
				t.Errorf("%+v", c)
			}
		}
		if name, host, _, err := s.at(m); err == nil && (!strings.HasPrefix(name, "/") ||
			host != "" && name != "/work" && !strings.HasPrefix(name, "/work/")) {
			t.Errorf("%q", name)
		}
	})
}
