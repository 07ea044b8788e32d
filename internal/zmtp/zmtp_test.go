package zmtp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testjupyter"
	"github.com/unitask/unitask/internal/testwait"
)

// serve serves a socket of a kind on loopback. A Router sends messages back.
func serve(t *testing.T, kind Kind, most int) (s *Socket, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	s = Serve(l, kind, most, func(from string, m Message) {
		<-ready
		s.Send(from, m)
	})
	close(ready)
	t.Cleanup(s.Close)
	return s, l.Addr().(*net.TCPAddr).Port
}

// Each kind of socket does what ZeroMQ says, and what waits is still sent at the end.
func TestSockets(t *testing.T) {
	_, port := serve(t, Rep, 1<<10)
	c := testjupyter.Dial(t, port, "REQ", "")
	c.Send(nil, []byte("ping"))
	if got := c.Receive(); len(got) != 2 || len(got[0]) != 0 || string(got[1]) != "ping" {
		t.Errorf("%q", got)
	}
	router, port := serve(t, Router, 1<<20)
	a, b := testjupyter.Dial(t, port, "DEALER", "a"), testjupyter.Dial(t, port, "DEALER", "b")
	large := bytes.Repeat([]byte("x"), 100_000)
	a.Send([]byte("one"), large)
	if got := a.Receive(); len(got) != 2 || !bytes.Equal(got[1], large) {
		t.Errorf("%d frames", len(got))
	}
	if router.Send("c", Message{large}) || !router.Send("b", Message{[]byte("for b")}) {
		t.Error("it knows other peers")
	}
	if got := b.Receive(); string(got[0]) != "for b" {
		t.Errorf("%q", got)
	}
	pub, port := serve(t, Pub, 1<<10)
	all, some := testjupyter.Dial(t, port, "SUB", ""), testjupyter.Dial(t, port, "SUB", "")
	all.Send([]byte{1})
	some.Send([]byte("\x01some"))
	some.Send([]byte("\x01other"))
	some.Send([]byte("\x00other"))
	testwait.Until(t, "both have subscribed", func() bool {
		pub.mu.Lock()
		defer pub.mu.Unlock()
		n := 0
		for _, p := range pub.peers {
			for _, topic := range []string{"x", "some"} {
				if p.subscribed([]byte(topic)) {
					n++
				}
			}
		}
		return n == 3
	})
	for _, topic := range []string{"other", "some.thing"} {
		pub.Publish(Message{[]byte(topic), []byte("text")}, false)
	}
	pub.Close()
	if got := fmt.Sprintf("%s %s %s", all.Receive(), all.Receive(), some.Receive()); got !=
		"[other text] [some.thing text] [some.thing text]" {
		t.Error(got)
	}
}

// Whoever can connect takes a bounded part of the memory, and disturbs nobody.
func TestAttackPeers(t *testing.T) {
	router, port := serve(t, Router, 1<<20)
	victim := testjupyter.Dial(t, port, "DEALER", "victim")
	closed := func(s *testjupyter.Socket) string {
		return map[bool]string{true: "cut off", false: "served"}[s.Closed()]
	}
	for name, text := range map[string]string{
		"a frame of 2^63 bytes":       "\x02\x80\x00\x00\x00\x00\x00\x00\x00",
		"a frame of all bits":         "\x02\xff\xff\xff\xff\xff\xff\xff\xff" + strings.Repeat("x", 2<<20),
		"more than the largest":       "\x02\x00\x00\x00\x00\x00\x20\x00\x00" + strings.Repeat("x", 2<<20),
		"a thousand frames":           strings.Repeat("\x01\x00", 1000),
		"flags that nobody knows":     "\x80\x00",
		"a command inside a message":  "\x01\x00\x04\x06\x05READY",
		"a command with more to come": "\x05\x06\x05READY",
	} {
		s := testjupyter.Dial(t, port, "DEALER", "")
		_ = s.Write([]byte(text))            // it may be cut off before all is written
		if name == "a frame of 2^63 bytes" { // a length alone takes no memory: the peer waits for the rest
			_ = s.CloseWrite()
		}
		attack.Check(t, "ZeroMQ: "+name, "cut off", closed(s))
	}
	for name, first := range map[string]string{
		"no greeting":       "GET / HTTP/1.1\r\n" + strings.Repeat("x", 64),
		"an old greeting":   "\x01\x00" + strings.Repeat("\x00", 62),
		"another mechanism": "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00PLAIN" + strings.Repeat("\x00", 47),
	} {
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(first))
		got := "served"
		if all, _ := readAll(conn); len(all) <= 64 { // nothing but our greeting
			got = "cut off"
		}
		conn.Close()
		attack.Check(t, "ZeroMQ: "+name, "cut off", got)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = conn.Write(append(greeting(), "\x04\x2f\x05READY\x0bSocket-Type"+
		"\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x06victim"...))
	all, _ := readAll(conn)
	attack.Check(t, "ZeroMQ: an identity that another client has", "64 bytes", fmt.Sprintf("%d bytes", len(all)))
	router.Send("victim", Message{[]byte("secret")})
	attack.Check(t, "ZeroMQ: a message to the client who had it first", "secret", string(victim.Receive()[0]))
}

// A subscriber that reads nothing costs bounded memory: output is dropped, and then the subscriber.
func TestAttackSubscriber(t *testing.T) {
	p := &peer{more: make(chan struct{}, 1), gone: make(chan struct{}), topics: map[string]int{"": 1}}
	here, there := net.Pipe()
	defer there.Close()
	p.conn = here
	s := &Socket{kind: Pub, peers: map[string]*peer{"p": p}}
	lost := false
	for range 2 * maxQueued / (64 << 10) {
		lost = s.Publish(Message{[]byte("t"), make([]byte, 64<<10)}, true)
	}
	attack.Check(t, "ZeroMQ: output that nobody reads", "dropped", map[bool]string{true: "dropped", false: "kept"}[lost])
	for range 2 * maxReserved / (64 << 10) {
		s.Publish(Message{[]byte("t"), make([]byte, 64<<10)}, false)
	}
	_, err := here.Write([]byte("x"))
	attack.Check(t, "ZeroMQ: what may not be dropped", "cut off, bounded true",
		fmt.Sprintf("%s, bounded %v", map[bool]string{true: "cut off", false: "served"}[err != nil],
			p.size <= maxQueued+maxReserved))
	var topics []error
	for i := range maxTopics + 1 {
		topics = append(topics, p.subscribe(Message{[]byte(fmt.Sprint("\x01", i))}))
	}
	attack.Check(t, "ZeroMQ: many subscriptions", errTooMuch.Error(), fmt.Sprint(topics[maxTopics]))
}

// write writes a message at once.
func write(to *bytes.Buffer, m Message) error {
	out := bufio.NewWriter(to)
	if err := encode(out, m); err != nil {
		return err
	}
	return out.Flush()
}

// readAll reads what comes until the other end closes the connection.
func readAll(conn net.Conn) ([]byte, error) {
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	return io.ReadAll(conn)
}

// FuzzPeer reads what a peer sends after the greetings. What is read as a message is written as the same.
func FuzzPeer(f *testing.F) {
	f.Add([]byte("\x01\x01a\x00\x01b"))
	f.Add([]byte("\x04\x09\x04PINGxxab"))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00\x02ab"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p := &peer{in: bufio.NewReader(bytes.NewReader(data)), more: make(chan struct{}, 1)}
		held := 0
		for {
			m, err := p.read(func(n int) error { held += n; return limited(held, 1<<20) })
			if err != nil {
				break
			}
			if m == nil {
				continue
			}
			var again bytes.Buffer
			if err := write(&again, m); err != nil {
				t.Fatal(err)
			}
			back, err := (&peer{in: bufio.NewReader(&again)}).read(func(int) error { return nil })
			if err != nil || fmt.Sprintf("%q", back) != fmt.Sprintf("%q", m) {
				t.Fatalf("%q %v instead of %q", back, err, m)
			}
		}
		_, _ = properties(data)
	})
}

// A peer that sends much and reads nothing costs little memory: anyone who can connect may be one.
func TestAttackAnswersUnread(t *testing.T) {
	for name, text := range map[string]string{
		"pings":      "\x04\x17\x04PING\x00\x00" + strings.Repeat("x", 16),
		"heartbeats": "\x02\x00\x00\x00\x00\x00\x00\xff\x00" + strings.Repeat("x", 0xff00),
	} {
		conn, other := net.Pipe()
		defer conn.Close()
		defer other.Close()
		p := &peer{conn: conn, in: bufio.NewReader(strings.NewReader(strings.Repeat(text, 4<<20/len(text)))),
			more: make(chan struct{}, 1), gone: make(chan struct{})}
		s := &Socket{kind: Rep, most: 64 << 10}
		for s.take(p) == nil {
		}
		attack.Check(t, "ZeroMQ: answers to "+name+" that nobody reads", "at most 1 MiB",
			map[bool]string{true: "at most 1 MiB", false: fmt.Sprint(p.size, " bytes")}[p.size <= 1<<20])
	}
}

// Peers that stop inside a message give back what they hold, and do not keep others from sending.
func TestAttackStalledMessage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int, 1)
	s := Serve(l, Router, 1<<20, func(_ string, m Message) { got <- len(m[0]) })
	t.Cleanup(s.Close)
	s.mu.Lock()
	s.patience = 200 * time.Millisecond
	s.mu.Unlock()
	port := l.Addr().(*net.TCPAddr).Port
	large := make([]byte, 1<<20-1)
	var stalled []*testjupyter.Socket
	for range 2 { // a third had no room
		c := testjupyter.Dial(t, port, "DEALER", "")
		c.Raw(append([]byte{flagLong, 0, 0, 0, 0, 0, 0x0f, 0xff, 0xff}, large[1:]...)) // without its last byte
		stalled = append(stalled, c)
	}
	idle := testjupyter.Dial(t, port, "DEALER", "") // which may be silent
	for _, c := range stalled {
		attack.Check(t, "ZeroMQ: a peer that stops inside a message", "true", fmt.Sprint(c.Closed()))
	}
	idle.Send(large)
	attack.Check(t, "ZeroMQ: bytes of an honest message afterwards", fmt.Sprint(len(large)), fmt.Sprint(<-got))
}

// All peers together leave a bounded amount unread.
func TestAttackSubscribersUnread(t *testing.T) {
	pub, port := serve(t, Pub, 1<<10)
	for range 8 {
		testjupyter.Dial(t, port, "SUB", "").Send([]byte{1})
	}
	large := Message{[]byte("topic"), make([]byte, 8<<20)}
	unread := func() int {
		pub.mu.Lock()
		defer pub.mu.Unlock()
		sum := 0
		for _, p := range pub.peers {
			sum += p.unread()
		}
		return sum
	}
	most := 0
	for range 100 {
		pub.Publish(large, true)
		most = max(most, unread())
	}
	testwait.Until(t, "those that read nothing are cut off", func() bool {
		pub.Publish(large, true)
		return unread() <= maxQueuedSum
	})
	attack.Check(t, "ZeroMQ: what 8 subscribers that read nothing leave unread", "at most 320 MiB",
		map[bool]string{true: "at most 320 MiB", false: fmt.Sprint(most, " bytes")}[most <= 320<<20])
}
