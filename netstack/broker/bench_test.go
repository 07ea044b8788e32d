package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// BenchmarkBody sends a large body through the broker, and spliced as to other hosts, in the same loop. The ratio is
// the result.
func BenchmarkBody(b *testing.B) {
	chunk := make([]byte, 1<<20)
	for i := range chunk {
		chunk[i] = byte(i * 7)
	}
	const chunks = 64
	o := newOrigin(b, originConfig{}, func(w http.ResponseWriter, _ *http.Request) {
		for range chunks {
			_, _ = w.Write(chunk)
		}
	})
	for _, h2 := range []bool{false, true} {
		name := "HTTP 1"
		if h2 {
			name = "HTTP 2"
		}
		r := newRig(b, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}, In: everywhere}}})
		spliced := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: h2,
			TLSClientConfig: &tls.Config{RootCAs: o.roots}, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return splice(ctx, o) }}}
		for what, c := range map[string]*http.Client{"broker": r.client(h2), "splice": spliced} {
			b.Run(name+"/"+what, func(b *testing.B) {
				b.SetBytes(chunks << 20)
				for b.Loop() {
					res, err := c.Get("https://" + host + "/")
					if err != nil {
						b.Fatal(err)
					}
					if n, err := io.Copy(io.Discard, res.Body); err != nil || n != chunks<<20 {
						b.Fatal(n, err)
					}
					res.Body.Close()
				}
			})
		}
	}
}

// splice returns a connection to an origin that is passed through unchanged.
func splice(ctx context.Context, o *origin) (net.Conn, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	var d net.Dialer
	client, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return nil, err
	}
	guest, err := l.Accept()
	if err != nil {
		return nil, err
	}
	up, err := d.DialContext(ctx, "tcp", o.server.Listener.Addr().String())
	if err != nil {
		return nil, err
	}
	var group sync.WaitGroup
	group.Go(func() { _, _ = io.Copy(struct{ io.Writer }{up}, struct{ io.Reader }{guest}); up.Close() })
	group.Go(func() { _, _ = io.Copy(struct{ io.Writer }{guest}, struct{ io.Reader }{up}); guest.Close() })
	return client, nil
}

// BenchmarkFirst is the first request of a connection, including all handshakes.
func BenchmarkFirst(b *testing.B) {
	o := newOrigin(b, originConfig{}, func(http.ResponseWriter, *http.Request) {})
	r := newRig(b, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	for what, way := range map[string]struct {
		dial  func() (net.Conn, error)
		roots *x509.CertPool
	}{
		"broker": {r.dial, roots},
		"splice": {func() (net.Conn, error) { return splice(b.Context(), o) }, o.roots},
	} {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: way.roots},
					DisableKeepAlives: true,
					DialContext:       func(context.Context, string, string) (net.Conn, error) { return way.dial() }}}
				res, err := c.Get("https://" + host + "/")
				if err != nil {
					b.Fatal(err)
				}
				res.Body.Close()
			}
		})
	}
}

// BenchmarkRedact looks for a value, in all its forms, in text that resembles it.
func BenchmarkRedact(b *testing.B) {
	text := bytes.Repeat([]byte(`{"id": 12345, "name": "words and ghp numbers 0123456789", "hex": "67686f7f5e3a"}`+"\n"),
		10_000)
	for name, value := range map[string]string{"a token": plain, "with special characters": key} {
		broker := &Broker{cfg: Config{Secrets: []Secret{{Name: "KEY", Value: value, Hosts: []Host{host},
			placeholder: strings.Repeat("x", len(value))}}}, redactors: map[redactorKey]*swapper{}}
		s := redaction{swapper: broker.redactor(host, false, nil)}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				_, _ = io.Copy(io.Discard, struct{ io.Reader }{s.body(newReadAhead(io.NopCloser(bytes.NewReader(text)),
					&broker.ahead), func() error { return nil })})
			}
		})
	}
}
