// Package testjupyter is a client of Jupyter kernels for tests, over ZeroMQ on TCP. It shares no code with the kernel.
package testjupyter

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testwait"
)

// Names are the sockets of a kernel, and their clients' types.
var Names = map[string]string{"shell": "DEALER", "control": "DEALER", "stdin": "DEALER", "iopub": "SUB", "hb": "REQ"}

// File writes a connection file with free ports and returns its path and content.
func File(t testing.TB) (string, map[string]any) {
	t.Helper()
	content := map[string]any{"transport": "tcp", "ip": "127.0.0.1", "key": "a key", "signature_scheme": "hmac-sha256",
		"kernel_name": "unitask"}
	for name := range Names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // so that all are different
		content[name+"_port"] = l.Addr().(*net.TCPAddr).Port
	}
	text, err := json.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "connection.json")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name, content
}

// Message is a message of a kernel.
type Message struct {
	Type, Parent string
	Content      map[string]any
}

// Client has a connection to each socket of a kernel.
type Client struct {
	t       testing.TB
	key     string
	count   int
	sockets map[string]*Socket
}

// Connect connects to a kernel, which may only be starting.
func Connect(t testing.TB, content map[string]any) *Client {
	t.Helper()
	c := &Client{t: t, key: content["key"].(string), sockets: map[string]*Socket{}}
	for name, kind := range Names {
		s := Dial(t, content[name+"_port"].(int), kind, "client")
		c.sockets[name] = s
		if name == "iopub" {
			s.Send([]byte{1})
		}
	}
	for subscribed := false; !subscribed; { // what comes before the subscription is lost
		c.Ask("kernel_info_request", nil)
		iopub := c.sockets["iopub"]
		_ = iopub.conn.SetReadDeadline(time.Now().Add(time.Second / 5))
		_, err := iopub.in.Peek(1)
		subscribed = err == nil
		_ = iopub.conn.SetReadDeadline(time.Now().Add(limit))
	}
	return c
}

// Send sends a request and returns its id.
func (c *Client) Send(socket, kind string, content map[string]any) string {
	c.t.Helper()
	c.count++
	id := fmt.Sprint("request-", c.count)
	c.sockets[socket].Send(Frames(c.key, id, kind, content)...)
	return id
}

// Frames returns the frames of a request.
func Frames(key, id, kind string, content any) [][]byte {
	head, _ := json.Marshal(map[string]any{"msg_id": id, "msg_type": kind, "session": "s", "username": "u", "date": "",
		"version": "5.3"})
	body, _ := json.Marshal(content)
	parts := [][]byte{head, []byte("{}"), []byte("{}"), body}
	return append([][]byte{[]byte("<IDS|MSG>"), []byte(sum(key, parts))}, parts...)
}

func sum(key string, parts [][]byte) string {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(bytes.Join(parts, nil))
	return hex.EncodeToString(mac.Sum(nil))
}

// Receive returns the next message on a socket.
func (c *Client) Receive(socket string) (m Message) {
	c.t.Helper()
	frames := c.sockets[socket].Receive()
	for len(frames) > 0 && string(frames[0]) != "<IDS|MSG>" {
		frames = frames[1:]
	}
	if len(frames) < 6 || string(frames[1]) != sum(c.key, frames[2:6]) {
		c.t.Fatalf("%s: no signed message: %q", socket, frames)
	}
	var head, parent struct {
		ID   string `json:"msg_id"`
		Type string `json:"msg_type"`
	}
	for i, to := range []any{&head, &parent, nil, &m.Content} {
		if to != nil {
			if err := json.Unmarshal(frames[2+i], to); err != nil {
				c.t.Fatalf("%s: %v: %s", socket, err, frames[2+i])
			}
		}
	}
	m.Type, m.Parent = head.Type, parent.ID
	return m
}

// Closed waits until the kernel closes a socket, and reports whether it does.
func (c *Client) Closed(socket string) bool { return c.sockets[socket].Closed() }

// Outputs returns what a request shows until the kernel is idle again. see, if not nil, gets each message at once.
func (c *Client) Outputs(id string, see func(Message)) (list []Message) {
	c.t.Helper()
	for {
		m := c.Receive("iopub")
		switch {
		case m.Parent != id:
		case m.Type == "status":
			if m.Content["execution_state"] == "idle" {
				return list
			}
		case m.Type != "execute_input":
			list = append(list, m)
			if see != nil {
				see(m)
			}
		}
	}
}

// Ask sends a request on the shell socket and returns the content of its reply.
func (c *Client) Ask(kind string, content map[string]any) map[string]any {
	c.t.Helper()
	id := c.Send("shell", kind, content)
	for {
		if m := c.Receive("shell"); m.Parent == id {
			return m.Content
		}
	}
}

// Run runs a cell, and returns its reply and what it shows.
func (c *Client) Run(code string, see func(Message)) (map[string]any, []Message) {
	c.t.Helper()
	id := c.Send("shell", "execute_request", map[string]any{"code": code, "allow_stdin": true})
	list := c.Outputs(id, see)
	return c.Receive("shell").Content, list
}

// Socket is a ZeroMQ connection.
type Socket struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

// limit bounds the wait for a kernel, whose machine may start under emulation.
const limit = 3 * time.Minute

// Dial connects a socket of a type, and exchanges greetings.
func Dial(t testing.TB, port int, kind, identity string) *Socket {
	t.Helper()
	var conn net.Conn
	testwait.Until(t, "the kernel listens", func() bool {
		var err error
		conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		return err == nil
	})
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(limit))
	s := &Socket{t, conn, bufio.NewReader(conn)}
	s.Raw([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL" + string(make([]byte, 48))))
	ready := "\x05READY" + "\x0bSocket-Type" + prefixed(kind) + "\x08Identity" + prefixed(identity)
	s.Raw(append([]byte{4, byte(len(ready))}, ready...))
	if _, err := io.ReadFull(s.in, make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
	if flags, body := s.frame(); flags != 4 || !bytes.HasPrefix(body, []byte("\x05READY")) {
		t.Fatalf("%d %q instead of READY", flags, body)
	}
	return s
}

func prefixed(text string) string {
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text
}

// Raw writes bytes.
func (s *Socket) Raw(text []byte) {
	s.t.Helper()
	if _, err := s.conn.Write(text); err != nil {
		s.t.Fatal(err)
	}
}

// Write writes bytes, and returns an error if the other end takes no more.
func (s *Socket) Write(text []byte) error {
	_, err := s.conn.Write(text)
	return err
}

// CloseWrite says that nothing more comes.
func (s *Socket) CloseWrite() error { return s.conn.(*net.TCPConn).CloseWrite() }

// Send sends a message.
func (s *Socket) Send(frames ...[]byte) {
	s.t.Helper()
	for i, frame := range frames {
		head := []byte{2}
		if i < len(frames)-1 {
			head[0] |= 1
		}
		s.Raw(append(binary.BigEndian.AppendUint64(head, uint64(len(frame))), frame...))
	}
}

// Receive returns the next message.
func (s *Socket) Receive() (list [][]byte) {
	s.t.Helper()
	for {
		flags, body := s.frame()
		if list = append(list, body); flags&1 == 0 {
			return list
		}
	}
}

// Closed reports whether the other end closes the connection without another word.
func (s *Socket) Closed() bool {
	_, err := s.in.ReadByte()
	return err != nil && !os.IsTimeout(err)
}

func (s *Socket) frame() (flags byte, body []byte) {
	s.t.Helper()
	var head [9]byte
	_, err := io.ReadFull(s.in, head[:2])
	size := uint64(head[1])
	if err == nil && head[0]&2 != 0 {
		_, err = io.ReadFull(s.in, head[2:])
		size = binary.BigEndian.Uint64(head[1:])
	}
	if err == nil {
		body = make([]byte, size)
		_, err = io.ReadFull(s.in, body)
	}
	if err != nil {
		s.t.Fatalf("no message: %v", err)
	}
	return head[0], body
}
