package mcp

import (
	"bytes"
	"net"
	"net/http"
	"sync"
	"time"
)

// stallTime bounds how long a client may read nothing of an answer.
const stallTime = 30 * time.Second

// leastRate is the minimum number of bytes that a client must read in a second, once its stallTime is used up.
// Until then an answer stays in memory, and others wait for its room.
const leastRate = 16 << 10

// steadyChunk is the size of a part of a write with its own deadline.
const steadyChunk = 32 << 10

// patience bounds how long a writer waits for one client: at first stallTime. Each leastRate bytes that the
// client reads add a second, and so does each second without a write.
type patience struct {
	most, used time.Duration
	since      time.Time // the end of the last write
}

// write writes in chunks, each with a deadline, until p is written or the patience is used up.
func (w *patience) write(p []byte, deadline func(time.Time), write func([]byte) (int, error)) (written int, err error) {
	now := time.Now()
	if !w.since.IsZero() {
		w.used -= now.Sub(w.since)
	}
	for first := true; first || written < len(p) && err == nil; first = false {
		w.used = max(0, w.used)
		deadline(now.Add(w.most - w.used))
		var n int
		n, err = write(p[written:min(len(p), written+steadyChunk)])
		written += n
		end := time.Now()
		w.used += end.Sub(now) - time.Duration(n)*time.Second/leastRate
		now = end
	}
	w.since = now
	deadline(time.Time{}) // HTTP/2 ends a stream at its deadline, even without a write
	return written, err
}

// connBuffer bounds a connection's buffers in the kernel, which are the server's memory, too. Further data waits
// for the client.
const connBuffer = 128 << 10

// steadyConn is a connection whose writes continue as long as the client reads them, but not slower than
// leastRate.
type steadyConn struct {
	net.Conn
	mu       sync.Mutex // held by Write
	patience patience
}

func newSteadyConn(c net.Conn, stall time.Duration) *steadyConn {
	return &steadyConn{Conn: c, patience: patience{most: stall}}
}

func (c *steadyConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patience.write(p, func(at time.Time) { _ = c.Conn.SetWriteDeadline(at) }, c.Conn.Write)
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
		if one := l.doors.open(newSteadyConn(c, stallTime)); one != nil {
			return one, nil
		}
		c.Close()
	}
}

// steadily cuts each write of a handler off if the client reads too slowly. Streams of HTTP/2 share a connection,
// and each can stall alone.
func steadily(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &steadyWriter{ResponseWriter: w, control: http.NewResponseController(w), patience: patience{most: stall}}
		next.ServeHTTP(s, r)
		s.extend(time.Now().Add(stall)) // for data that is still in buffers
	})
}

type steadyWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	patience patience
}

func (s *steadyWriter) extend(at time.Time) { _ = s.control.SetWriteDeadline(at) }

// primed begins the first event of a stream. The SDK gives that event a name that the protocol does not have and strict
// clients do not know.
var primed = []byte("event: prime\n")

func (s *steadyWriter) Write(p []byte) (int, error) {
	rest, isPrimed := bytes.CutPrefix(p, primed)
	n, err := s.patience.write(rest, s.extend, s.ResponseWriter.Write)
	if isPrimed {
		n += len(primed)
	}
	return n, err
}

// Flush is called by handlers that take an http.Flusher.
func (s *steadyWriter) Flush() { _ = s.FlushError() }

// FlushError is called by a ResponseController.
func (s *steadyWriter) FlushError() error {
	_, err := s.patience.write(nil, s.extend, func([]byte) (int, error) { return 0, s.control.Flush() })
	return err
}

// Unwrap gives a ResponseController access to the wrapped writer.
func (s *steadyWriter) Unwrap() http.ResponseWriter { return s.ResponseWriter }
