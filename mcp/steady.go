package mcp

import (
	"errors"
	"net"
	"net/http"
	"os"
	"time"
)

// stallTime is how long a client may take nothing of what is written to it. One that reads slowly, but does, is not
// cut.
const stallTime = 30 * time.Second

// connBuffer bounds a connection's buffers in the kernel, which are the server's memory, too. What is beyond waits for
// the client.
const connBuffer = 128 << 10

// steadyConn is a connection whose writes go on as long as the client takes some of them.
type steadyConn struct {
	net.Conn
	stall time.Duration
}

func (c *steadyConn) Write(p []byte) (written int, err error) {
	for {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return written, err
		}
		n, err := c.Conn.Write(p[written:])
		written += n
		if err == nil || n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return written, err
		}
	}
}

// SetWriteDeadline does nothing: each write has its own.
func (c *steadyConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline bounds reads.
func (c *steadyConn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// listener accepts such connections, as doors.
type listener struct {
	net.Listener
	doors *doors
}

func (l listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetReadBuffer(connBuffer)
			_ = tcp.SetWriteBuffer(connBuffer)
		}
		if one := l.doors.open(&steadyConn{c, stallTime}); one != nil {
			return one, nil
		}
		c.Close()
	}
}

// steadily has each write of a handler be cut where the client takes nothing of it. Streams of HTTP/2 share a
// connection, and stall by themselves.
func steadily(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &steadyWriter{w, http.NewResponseController(w)}
		s.extend()
		next.ServeHTTP(s, r)
		s.extend() // for what is in buffers yet
	})
}

// steadyChunk is how much of a write has a deadline of its own.
const steadyChunk = 32 << 10

type steadyWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (s *steadyWriter) extend() { _ = s.control.SetWriteDeadline(time.Now().Add(stallTime)) }

func (s *steadyWriter) Write(p []byte) (written int, err error) {
	for first := true; first || len(p) > 0; first = false {
		s.extend()
		n, err := s.ResponseWriter.Write(p[:min(len(p), steadyChunk)])
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

// FlushError is what a ResponseController calls.
func (s *steadyWriter) FlushError() error {
	s.extend()
	return s.control.Flush()
}

// Unwrap gives a ResponseController the rest.
func (s *steadyWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
