package broker

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A server whose certificate is not good fails the guest's handshake, as without us.
func TestServerCertificate(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  originConfig
		want string
	}{
		"expired":        {originConfig{expired: true}, "expired"},
		"for other name": {originConfig{names: []string{"other.example.com"}}, "not " + host},
	} {
		o := newOrigin(t, c.cfg, func(http.ResponseWriter, *http.Request) {})
		r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
		if _, err := r.client(true).Get("https://" + host + "/"); err == nil || !strings.Contains(err.Error(), "tls:") {
			t.Errorf("%s: %v", name, err)
		}
		r.served.Wait()
		if r.errs[0] == nil || !strings.Contains(r.errs[0].Error(), c.want) || len(o.got()) != 0 {
			t.Errorf("%s: %v, %v", name, r.errs[0], o.got())
		}
	}
	o := newOrigin(t, originConfig{}, func(http.ResponseWriter, *http.Request) {})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	r.cfg.Roots = x509.NewCertPool() // nobody vouches for it
	if _, err := r.client(false).Get("https://" + host + "/"); err == nil {
		t.Error("an unknown CA is trusted")
	}
}

func TestHandshakes(t *testing.T) {
	o, _ := recorder(t, originConfig{})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}, {Name: "below", Host: "*.wild.example"}}})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	for name, c := range map[string]struct {
		cfg   *tls.Config
		proto string
		fails bool
	}{
		"without ALPN":      {&tls.Config{ServerName: host}, "", false},
		"TLS 1.2":           {&tls.Config{ServerName: host, MaxVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, "http/1.1", false},
		"HTTP/2":            {&tls.Config{ServerName: host, NextProtos: []string{"h2", "http/1.1"}}, "h2", false},
		"HTTP/1 and others": {&tls.Config{ServerName: host, NextProtos: []string{"acme", "http/1.1"}}, "http/1.1", false},
		"nothing we speak":  {&tls.Config{ServerName: host, NextProtos: []string{"imap"}}, "", true},
		"another name":      {&tls.Config{ServerName: "a.wild.example"}, "", true},
		"no name":           {&tls.Config{InsecureSkipVerify: true}, "", true},
		"TLS 1.1":           {&tls.Config{ServerName: host, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "", true},
	} {
		c.cfg.RootCAs = roots
		conn, err := r.dial()
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		secured := tls.Client(conn, c.cfg)
		err = secured.Handshake()
		if (err != nil) != c.fails || secured.ConnectionState().NegotiatedProtocol != c.proto {
			t.Errorf("%s: %v, %q", name, err, secured.ConnectionState().NegotiatedProtocol)
		}
		if err == nil && c.proto != "h2" {
			fmt.Fprintf(secured, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
			if answer, err := io.ReadAll(secured); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
				t.Errorf("%s: %q %v", name, answer, err)
			}
		}
		conn.Close()
	}
	// The CA is good for its hosts and nothing else.
	for name, good := range map[string]bool{host: true, "x.wild.example": true, "evil.example": false, "example.com": false} {
		leaf, err := r.ca.leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(leaf.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
	}
	if conn, err := r.dial(); err != nil {
		t.Fatal(err)
	} else { // a hello in pieces of one byte
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if err := tls.Client(slowly{conn}, &tls.Config{ServerName: host, RootCAs: roots}).Handshake(); err != nil {
			t.Error(err)
		}
		conn.Close()
	}
}

type slowly struct{ net.Conn }

func (s slowly) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := s.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// A server without HTTP/2 makes the guest speak HTTP/1 too.
func TestHTTP1Server(t *testing.T) {
	o, saw := recorder(t, originConfig{http1: true})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}}})
	res, _ := do(t, r.client(true), "GET", "https://"+host+"/", http.Header{"Authorization": {r.Placeholder("KEY")}}, "")
	if res.ProtoMajor != 1 || saw().Header.Get("Authorization") != key {
		t.Errorf("%s %+v", res.Proto, saw())
	}
}
