package netstack

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

func withECH(c *tls.Config) {
	key, err := crandECDH()
	if err != nil {
		panic(err)
	}
	c.MinVersion = tls.VersionTLS13
	c.EncryptedClientHelloConfigList = key
}

// crandECDH returns an ECHConfigList (RFC 9849, section 4) with a fresh key.
func crandECDH() ([]byte, error) {
	public := make([]byte, 32)
	if _, err := crand.Read(public); err != nil {
		return nil, err
	}
	name := "front.example"
	body := append([]byte{7, 0, 0x20, 0, 32}, public...)
	body = append(body, 0, 4, 0, 1, 0, 1, 32, byte(len(name)))
	body = append(append(body, name...), 0, 0)
	config := append([]byte{0xfe, 0x0d, byte(len(body) >> 8), byte(len(body))}, body...)
	return append([]byte{byte(len(config) >> 8), byte(len(config))}, config...), nil
}

// recorder is the network of a TLS client without a peer.
type recorder struct{ w io.Writer }

func (r recorder) Read([]byte) (int, error) { return 0, io.EOF }

func (r recorder) Write(p []byte) (int, error) { return r.w.Write(p) }

func (r recorder) Close() error { return nil }

func (r recorder) LocalAddr() net.Addr { return nil }

func (r recorder) RemoteAddr() net.Addr { return nil }

func (r recorder) SetDeadline(time.Time) error { return nil }

func (r recorder) SetReadDeadline(time.Time) error { return nil }

func (r recorder) SetWriteDeadline(time.Time) error { return nil }

// TestForwardTLS does a real handshake with the server's own certificate, a hello in pieces, and HTTP/2 inside.
func TestForwardTLS(t *testing.T) {
	server, roots := secureServer(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto, " ", r.Host) },
		"good.example")
	net1 := &internet{names: map[string][]string{"good.example": {"93.184.216.34"}},
		servers: map[string]string{"93.184.216.34:443": server.Listener.Addr().String()}}
	g := newGuest(t, Config{Rules: []Rule{hostRule("good.example")}, Upstream: net1.upstream()})
	for name, chunk := range map[string]int{"whole": 1 << 20, "in pieces of 7": 7} {
		client := &http.Client{Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				c, err := g.dial("good.example", 443)
				return pieces{c, chunk}, err
			},
			TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}}
		res, err := client.Get("https://good.example/")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != "HTTP/2.0 good.example" {
			t.Errorf("%s: %s", name, body)
		}
		client.CloseIdleConnections()
	}
}

// pieces writes in small pieces.
type pieces struct {
	net.Conn
	size int
}

func (p pieces) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := p.Conn.Write(b[done:min(len(b), done+p.size)])
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}
