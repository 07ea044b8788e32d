package supervisor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/unitask/unitask/guest/contract"
	"github.com/unitask/unitask/internal/attack"
)

// pair is the two ends of a connection: a client's, and the one for Connect.
func pair(t *testing.T) (client, ours *net.TCPConn) {
	t.Helper()
	l := listenOn(t)
	got := make(chan net.Conn, 1)
	go func() {
		conn, _ := l.Accept()
		got <- conn
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn), (<-got).(*net.TCPConn)
}

func listenOn(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func unused() (func(), error) { return func() {}, nil }

// A connection is forwarded to the listener on the port, including ends and errors.
func TestConnect(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 5*contract.ForwardWindow/16)
	for _, row := range []struct {
		name   string
		server func(conn *net.TCPConn)
		client func(conn *net.TCPConn) ([]byte, error)
		want   []byte
		fails  bool // the client gets a reset
		ends   error
	}{
		{name: "an echo, until the client has no more",
			server: func(conn *net.TCPConn) { _, _ = io.Copy(struct{ io.Writer }{conn}, conn) },
			client: func(conn *net.TCPConn) ([]byte, error) {
				go func() {
					_, _ = conn.Write(big)
					_ = conn.CloseWrite()
				}()
				return io.ReadAll(conn)
			}, want: big},
		{name: "a server that ends",
			server: func(conn *net.TCPConn) { _, _ = conn.Write(big) },
			client: func(conn *net.TCPConn) ([]byte, error) { return io.ReadAll(conn) }, want: big},
		{name: "a server that does not read what is sent, and answers",
			server: func(conn *net.TCPConn) {
				_ = conn.CloseRead()
				_, _ = conn.Write([]byte("no"))
				_ = conn.CloseWrite()
			},
			client: func(conn *net.TCPConn) ([]byte, error) { return io.ReadAll(conn) }, want: []byte("no")},
		{name: "a reset",
			server: func(conn *net.TCPConn) { _ = conn.SetLinger(0) },
			client: func(conn *net.TCPConn) ([]byte, error) { return io.ReadAll(conn) }, fails: true, ends: syscall.ECONNRESET},
		{name: "nothing listens",
			client: func(conn *net.TCPConn) ([]byte, error) { return io.ReadAll(conn) }, fails: true,
			ends: syscall.ECONNREFUSED},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := open(t)
			l := listenOn(t)
			var serving sync.WaitGroup
			if row.server == nil {
				l.Close()
			} else {
				serving.Go(func() {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					row.server(conn.(*net.TCPConn))
					conn.Close()
				})
			}
			client, ours := pair(t)
			over := make(chan error, 1)
			go func() {
				over <- c.Connect(within(t), uint16(l.Addr().(*net.TCPAddr).Port), ours, unused)
			}()
			got, err := row.client(client)
			if !bytes.Equal(got, row.want) || (err != nil) != row.fails {
				t.Errorf("the client has %d bytes, %v", len(got), err)
			}
			if err := <-over; !errors.Is(err, row.ends) || row.ends == nil && err != nil {
				t.Errorf("%v, want %v", err, row.ends)
			}
			serving.Wait()
		})
	}
}

// A client that disconnects, or must, ends only its own connection, even if the code has stopped the machine's end.
func TestConnectEnds(t *testing.T) {
	c := open(t)
	l := listenOn(t)
	client, ours := pair(t)
	over := make(chan error, 1)
	go func() { over <- c.Connect(within(t), uint16(l.Addr().(*net.TCPAddr).Port), ours, unused) }()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = client.SetLinger(0)
	client.Close()
	for err == nil { // the machine is told of the end, however much data there is
		_, err = server.Write(make([]byte, 64<<10))
	}
	server.Close()
	if err := <-over; err == nil {
		t.Error("no error")
	}

	stopper := filepath.Join(t.TempDir(), "stop")
	if err := os.WriteFile(stopper, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c = open(t, "STOP="+stopper)
	client, ours = pair(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { over <- c.Connect(ctx, uint16(l.Addr().(*net.TCPAddr).Port), ours, unused) }()
	if _, err := client.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	cancel(why)
	if err := <-over; !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
	if _, err := io.ReadAll(client); err == nil {
		t.Error("the client was not told")
	}
}

// A machine that sends more than its client accepts is not trusted.
func TestAttackConnect(t *testing.T) {
	c := New(io.Discard)
	_, ours := pair(t)
	over := make(chan error, 1)
	sent := make(chan struct{})
	go func() {
		over <- c.Connect(t.Context(), 1, ours, func() (func(), error) {
			return func() { // the command is started
				select {
				case <-sent:
				default:
					close(sent)
				}
			}, nil
		})
	}()
	<-sent
	frame := binary.BigEndian.AppendUint32(nil, contract.MaxChunk)
	frame = binary.BigEndian.AppendUint32(append(frame, contract.StepStdout), 1)
	frame = append(frame, make([]byte, contract.MaxChunk)...)
	for range 1 << 10 { // nobody reads; it is also what the sockets can hold
		if _, err := c.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	got := fmt.Sprint(errors.Is(<-over, errWindow))
	attack.Check(t, "a machine sends beyond the window of a connection that nobody reads: it ends", "true", got)
}
