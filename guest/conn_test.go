package guest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/guest/contract"
)

// wire is a Network whose guest is a function on its end of the connection. So a test controls the other end of the
// protocol, so that a guest can break it; other tests cover the real one.
type wire struct {
	conn      net.Conn
	datagrams chan []byte
	gone      chan struct{}
	seeds     int
	deaf      int // number of seeds to ignore
	mangle    func([]byte) []byte
}

func (w *wire) SendDatagram(p []byte) {
	if w.seeds++; w.seeds <= w.deaf {
		return
	}
	ack := append([]byte(contract.WordSeeded), p[4:12]...)
	if w.mangle != nil {
		ack = w.mangle(ack)
	}
	w.datagrams <- ack
}

func (w *wire) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	select {
	case p := <-w.datagrams:
		return p, nil
	case <-w.gone:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (w *wire) DialGuest(context.Context, uint16) (net.Conn, error) { return w.conn, nil }
func (w *wire) Done() <-chan struct{}                               { return w.gone }

// loopback returns a connected pair of TCP connections.
func loopback(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func withGuest(t *testing.T, guest func(net.Conn)) *wire {
	t.Helper()
	host, inside := loopback(t)
	w := &wire{conn: host, datagrams: make(chan []byte, 1000), gone: make(chan struct{})}
	var group sync.WaitGroup
	group.Go(func() { guest(inside) })
	t.Cleanup(func() { inside.Close(); host.Close(); group.Wait() })
	return w
}

const goodHello = `{"version":1,"kernel":"linux"}`

func sendFrame(c net.Conn, kind byte, payload string) {
	_, _ = c.Write(appendFrame(nil, kind, []byte(payload)))
}

func TestHelloViolations(t *testing.T) {
	for name, guest := range map[string]func(net.Conn){
		"wrong version":          func(c net.Conn) { sendFrame(c, 'h', `{"version":2,"kernel":"linux"}`) },
		"no version":             func(c net.Conn) { sendFrame(c, 'h', `{}`) },
		"unknown field":          func(c net.Conn) { sendFrame(c, 'h', `{"version":1,"kernel":"linux","evil":1}`) },
		"not JSON":               func(c net.Conn) { sendFrame(c, 'h', `hello`) },
		"output first":           func(c net.Conn) { sendFrame(c, 'o', `hello`) },
		"exit first":             func(c net.Conn) { sendFrame(c, 'x', `{"code":0}`) },
		"a length of a gigabyte": func(c net.Conn) { _, _ = c.Write([]byte{0x40, 0, 0, 0, 'h'}) },
		"HTTP":                   func(c net.Conn) { _, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := Connect(ctx, withGuest(t, guest))
			if !errors.As(err, new(*ProtocolError)) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("hangs up", func(t *testing.T) {
		if _, err := Connect(t.Context(), withGuest(t, func(c net.Conn) { c.Close() })); err == nil {
			t.Error("connected")
		}
	})
	t.Run("says nothing", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := Connect(ctx, withGuest(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// A run whose guest does not acknowledge the exact entropy does not start.
func TestSeed(t *testing.T) {
	quiet := func(c net.Conn) { sendFrame(c, 'h', goodHello); _, _ = io.Copy(io.Discard, c) }
	t.Run("the first ones are lost", func(t *testing.T) {
		w := withGuest(t, quiet)
		w.deaf = 3
		if _, err := Connect(t.Context(), w); err != nil || w.seeds != 4 {
			t.Errorf("%v after %d seeds", err, w.seeds)
		}
	})
	for name, mangle := range map[string]func([]byte) []byte{
		"another nonce":  func(p []byte) []byte { p[5] ^= 1; return p },
		"too short":      func(p []byte) []byte { return p[:8] },
		"too long":       func(p []byte) []byte { return append(p, 0) },
		"something else": func([]byte) []byte { return []byte(contract.WordBell) },
		"empty":          func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := withGuest(t, quiet)
			w.mangle = mangle
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := Connect(ctx, w); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("the guest is gone", func(t *testing.T) {
		w := withGuest(t, quiet)
		w.deaf = 1 << 30
		close(w.gone)
		if _, err := Connect(t.Context(), w); err == nil {
			t.Error("seeded nobody")
		}
	})
}

// stream runs the conversation up to Stream, and the guest then executes the given function.
func stream(t *testing.T, ctx context.Context, stdin io.Reader, then func(net.Conn)) (end End, stdout string,
	err error) {
	t.Helper()
	w := withGuest(t, func(c net.Conn) {
		sendFrame(c, 'h', goodHello)
		for { // until the start
			var h [5]byte
			if _, err := io.ReadFull(c, h[:]); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint32(h[:4]))); err != nil {
				return
			}
			if h[4] == 'S' {
				break
			}
		}
		sendFrame(c, 's', "")
		then(c)
	})
	c, err := Connect(ctx, w)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.Start(ctx, Start{Argv: []string{"/x.js"}, Dir: "/"}); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	end, err = c.Stream(ctx, stdin, &out, &errs)
	return end, out.String(), err
}

func TestStream(t *testing.T) {
	for name, c := range map[string]struct {
		then func(net.Conn)
		end  End
		err  any // nil, an error for errors.Is, or *ProtocolError
	}{
		"ends well": {func(c net.Conn) {
			sendFrame(c, 'o', "a")
			sendFrame(c, 'x', `{"code":7,"signal":0,"oom":false,"out":false}`)
		}, End{Code: 7}, nil},
		"out of memory": {func(c net.Conn) {
			sendFrame(c, 'o', "a")
			sendFrame(c, 'x', `{"code":0,"signal":9,"oom":true,"out":false}`)
		}, End{Signal: 9, OOM: true}, nil},
		"processes refused": {func(c net.Conn) {
			sendFrame(c, 'o', "a")
			sendFrame(c, 'x', `{"code":1,"signal":0,"oom":false,"out":false,"refused":7}`)
		}, End{Code: 1, Refused: 7}, nil},
		"fewer than no processes refused": {func(c net.Conn) {
			sendFrame(c, 'o', "a")
			sendFrame(c, 'x', `{"code":1,"signal":0,"oom":false,"out":false,"refused":-7}`)
		}, End{}, new(*ProtocolError)},
		"exit code 256": {func(c net.Conn) { sendFrame(c, 'o', "a"); sendFrame(c, 'x', `{"code":256}`) }, End{},
			new(*ProtocolError)},
		"exit code of a million": {func(c net.Conn) { sendFrame(c, 'o', "a"); sendFrame(c, 'x', `{"code":1e6}`) }, End{},
			new(*ProtocolError)},
		"negative signal": {func(c net.Conn) { sendFrame(c, 'o', "a"); sendFrame(c, 'x', `{"signal":-1}`) }, End{},
			new(*ProtocolError)},
		"exit is not JSON": {func(c net.Conn) { sendFrame(c, 'o', "a"); sendFrame(c, 'x', `0`) }, End{},
			new(*ProtocolError)},
		"second hello": {func(c net.Conn) { sendFrame(c, 'o', "a"); sendFrame(c, 'h', goodHello) }, End{},
			new(*ProtocolError)},
		"second start": {func(c net.Conn) { sendFrame(c, 'o', "a"); sendFrame(c, 's', "") }, End{},
			new(*ProtocolError)},
		"a length that lies": {func(c net.Conn) { sendFrame(c, 'o', "a"); _, _ = c.Write([]byte{0x7f, 0, 0, 0, 'o'}) },
			End{}, new(*ProtocolError)},
		"garbage": {func(c net.Conn) {
			sendFrame(c, 'o', "a")
			_,
				_ = c.Write(bytes.Repeat([]byte{0xaa}, 1000))
		}, End{}, new(*ProtocolError)},
		"goes away": {func(c net.Conn) { sendFrame(c, 'o', "a"); c.Close() }, End{}, ErrGone},
		"goes away in mid-frame": {func(c net.Conn) {
			sendFrame(c, 'o', "a")
			_,
				_ = c.Write([]byte{0, 0, 1, 0, 'o', 'b'})
			c.Close()
		}, End{}, ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			end, out, err := stream(t, t.Context(), nil, c.then)
			if end != c.end || out != "a" {
				t.Errorf("%+v, stdout %q", end, out)
			}
			switch want := c.err.(type) {
			case nil:
				if err != nil {
					t.Error(err)
				}
			case error:
				if !errors.Is(err, want) {
					t.Errorf("%v", err)
				}
			default:
				if !errors.As(err, new(*ProtocolError)) {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

func TestStreamContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	time.AfterFunc(50*time.Millisecond, func() { cancel(why) })
	_, _, err := stream(t, ctx, strings.NewReader("in"), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	if !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}

// A guest that disappears silently (its machine was killed) is noticed.
func TestStreamGuestGone(t *testing.T) {
	w := withGuest(t, func(c net.Conn) {
		sendFrame(c, 'h', goodHello)
		sendFrame(c, 's', "")
		_, _ = io.Copy(io.Discard, c)
	})
	c, err := Connect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Start(t.Context(), Start{}); err != nil {
		t.Fatal(err)
	}
	close(w.gone)
	if _, err := c.Stream(t.Context(), nil, io.Discard, io.Discard); !errors.Is(err, ErrGone) {
		t.Errorf("%v", err)
	}
}

// If a writer fails, the stream ends with its error: nobody reads any more.
func TestStreamWriterFails(t *testing.T) {
	w := withGuest(t, func(c net.Conn) {
		sendFrame(c, 'h', goodHello)
		sendFrame(c, 's', "")
		sendFrame(c, 'o', "x")
		_, _ = io.Copy(io.Discard, c)
	})
	c, err := Connect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Start(t.Context(), Start{}); err != nil {
		t.Fatal(err)
	}
	r, pipe := io.Pipe()
	r.CloseWithError(fs.ErrClosed)
	if _, err := c.Stream(t.Context(), nil, pipe, io.Discard); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("%v", err)
	}
}

func TestPut(t *testing.T) {
	var got bytes.Buffer
	w := withGuest(t, func(c net.Conn) {
		sendFrame(c, 'h', goodHello)
		_, _ = io.Copy(&got, c)
	})
	c, err := Connect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]File{
		"relative":  {Path: "x"},
		"empty":     {},
		"too long":  {Path: "/" + strings.Repeat("x", 5000)},
		"a device":  {Path: "/x", Mode: fs.ModeDevice},
		"too short": {Path: "/x", Size: 10},
	} {
		if err := c.Put(f, strings.NewReader("123")); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestStartTooLarge(t *testing.T) {
	w := withGuest(t, func(c net.Conn) { sendFrame(c, 'h', goodHello); _, _ = io.Copy(io.Discard, c) })
	c, err := Connect(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Start(t.Context(), Start{Argv: []string{strings.Repeat("x", contract.MaxFrame)}}); err == nil ||
		!strings.Contains(err.Error(), "arguments and environment") {
		t.Errorf("%v", err)
	}
}

// taken is a Sink that records its calls.
type taken struct{ log []string }

func (s *taken) Begin(kind, perm fs.FileMode, path string) error {
	s.log = append(s.log, fmt.Sprintf("%v %04o %q", kind, perm, path))
	return nil
}

func (s *taken) Large(path string) error {
	s.log = append(s.log, fmt.Sprintf("too large %q", path))
	return nil
}

func (s *taken) Data(p []byte) error {
	s.log = append(s.log, string(p))
	return nil
}

func TestCollect(t *testing.T) {
	entry := func(kind byte, mode string, path string) string { return string(kind) + mode + path }
	for name, c := range map[string]struct {
		send func(net.Conn)
		want string // the sink's calls, or part of the error
		bad  bool
	}{
		"nothing": {func(c net.Conn) { sendFrame(c, 'z', "") }, "[]", false},
		"some": {func(c net.Conn) {
			sendFrame(c, 'a', entry('f', "\x00\x00\x01\xed", "x/y"))
			sendFrame(c, 'd', "one")
			sendFrame(c, 'd', "two")
			sendFrame(c, 'a', entry('l', "\xff\xff\xff\xff", "../z"))
			sendFrame(c, 'a', entry('?', "\x00\x00\x00\x00", "\x00"))
			sendFrame(c, 'z', "")
		}, `[---------- 0755 "x/y" one two L--------- 0777 "../z" ?--------- 0000 "\x00"]`, false},
		"a large one": {func(c net.Conn) {
			sendFrame(c, 'a', entry('b', "\x00\x00\x01\xed", "x/y"))
			sendFrame(c, 'a', entry('f', "\x00\x00\x01\xed", "z"))
			sendFrame(c, 'z', "")
		}, `[too large "x/y" ---------- 0755 "z"]`, false},
		"data for a large one": {func(c net.Conn) {
			sendFrame(c, 'a', entry('b', "\x00\x00\x00\x00", "x"))
			sendFrame(c, 'd',
				"one")
		}, "", true},
		"data without a file": {func(c net.Conn) { sendFrame(c, 'd', "one") }, "", true},
		"data for a link": {func(c net.Conn) {
			sendFrame(c, 'a', entry('l', "\x00\x00\x00\x00", "x"))
			sendFrame(c, 'd',
				"one")
		}, "", true},
		"an entry without one": {func(c net.Conn) { sendFrame(c, 'a', "f\x00\x00") }, "", true},
		"an endless name": {func(c net.Conn) { sendFrame(c, 'a', "f\x00\x00\x00\x00"+strings.Repeat("x", 5000)) }, "",
			true},
		"another exit": {func(c net.Conn) { sendFrame(c, 'x', `{"code":0,"signal":0,"oom":false,"out":true}`) }, "",
			true},
		"output": {func(c net.Conn) { sendFrame(c, 'o', "late") }, "", true},
	} {
		w := withGuest(t, func(end net.Conn) {
			sendFrame(end, 'h', goodHello)
			_, _ = io.ReadFull(end, make([]byte, 5+8)) // the collect
			c.send(end)
			_, _ = io.Copy(io.Discard, end)
		})
		conn, err := Connect(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		var s taken
		err = conn.Collect(t.Context(), &s, 1<<20)
		if c.bad != errors.As(err, new(*ProtocolError)) || (!c.bad && (err != nil || fmt.Sprint(s.log) != c.want)) {
			t.Errorf("%s: %v %v", name, s.log, err)
		}
		conn.Close()
	}
	t.Run("never ends", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		conn, err := Connect(t.Context(), withGuest(t, func(c net.Conn) {
			sendFrame(c, 'h', goodHello)
			_,
				_ = io.Copy(io.Discard, c)
		}))
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Collect(ctx, &taken{}, 1<<20); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	t.Run("goes away", func(t *testing.T) {
		conn, err := Connect(t.Context(), withGuest(t, func(c net.Conn) { sendFrame(c, 'h', goodHello); c.Close() }))
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.Collect(t.Context(), &taken{}, 1<<20); !errors.Is(err, ErrGone) {
			t.Error(err)
		}
	})
}
