package netstack

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Limits on the data read from a connection before its name is known to be allowed.
const (
	peekTime   = 10 * time.Second // a slower client is a slow loris
	maxHello   = 32 << 10         // a hello with post-quantum keys has 2 KiB
	maxHead    = 32 << 10         // of an HTTP request: Node's own limit is 16 KiB
	tlsRecord  = 0x16             // type of a TLS handshake record
	echOuter   = 0xfe0d           // encrypted_client_hello (RFC 9849)
	maxHTTPRun = 4 << 10          // a chunk's size line, a trailer
)

// refusal explains why a connection was closed after its first data was read.
type refusal struct {
	reason string
	quotes bool // the reason quotes the guest
}

func (r *refusal) Error() string { return r.reason }

func refuse(format string, args ...any) error { return &refusal{reason: fmt.Sprintf(format, args...)} }

// refuseText refuses for a reason that quotes the guest.
func refuseText(format, text string) error {
	return &refusal{reason: fmt.Sprintf(format, printable(text)), quotes: true}
}

// refuseProtocol refuses what only a raw rule allows.
func refuseProtocol(format string, args ...any) error {
	return refuse(format+": this is not HTTP or TLS: --allow-tcp allows other protocols", args...)
}

// readOnly is a net.Conn for crypto/tls that can only be read.
type readOnly struct{ r io.Reader }

func (c readOnly) Read(p []byte) (int, error)       { return c.r.Read(p) }
func (c readOnly) Write(p []byte) (int, error)      { return len(p), nil } // its alert is discarded
func (c readOnly) Close() error                     { return nil }
func (c readOnly) LocalAddr() net.Addr              { return nil }
func (c readOnly) RemoteAddr() net.Addr             { return nil }
func (c readOnly) SetDeadline(time.Time) error      { return nil }
func (c readOnly) SetReadDeadline(time.Time) error  { return nil }
func (c readOnly) SetWriteDeadline(time.Time) error { return nil }

var errHelloRead = errors.New("the hello is read")

// peekTLS reads a ClientHello from any number of records and segments. It returns the server name and every byte
// that was read. Go's own parser parses the hello.
func peekTLS(r io.Reader) (name string, read []byte, err error) {
	var kept bytes.Buffer
	var hello *tls.ClientHelloInfo
	limited := &io.LimitedReader{R: io.TeeReader(r, &kept), N: maxHello}
	err = tls.Server(readOnly{limited}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		hello = h
		return nil, errHelloRead
	}}).Handshake()
	switch {
	case hello == nil && limited.N <= 0:
		return "", nil, refuse("a TLS hello of more than %d bytes", maxHello)
	case hello == nil:
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return "", nil, refuse("no complete TLS hello within %s", peekTime)
		}
		return "", nil, refuse("no TLS hello")
	}
	for _, e := range hello.Extensions {
		if e == echOuter {
			return "", nil, refuse("encrypted client hello")
		}
	}
	return hello.ServerName, kept.Bytes(), nil
}
