package broker

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
)

// A server with an invalid certificate fails the guest's handshake, as without the broker.
func TestAttackServerCertificate(t *testing.T) {
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
		refused := r.errs[0] != nil && strings.Contains(r.errs[0].Error(), c.want)
		got := fmt.Sprintf("refused %t, requests %d", refused, len(o.got()))
		attack.Check(t, "a server whose certificate is "+name, "refused true, requests 0", got)
	}
	o := newOrigin(t, originConfig{}, func(http.ResponseWriter, *http.Request) {})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	r.cfg.Roots = x509.NewCertPool() // no authority signed it
	_, err := r.client(false).Get("https://" + host + "/")
	got := fmt.Sprintf("refused %t, requests %d", err != nil, len(o.got()))
	attack.Check(t, "a server whose certificate is of an unknown authority", "refused true, requests 0", got)
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
		"without ALPN": {&tls.Config{ServerName: host}, "", false},
		"TLS 1.2": {&tls.Config{ServerName: host, MaxVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}},
			"http/1.1", false},
		"HTTP/2":            {&tls.Config{ServerName: host, NextProtos: []string{"h2", "http/1.1"}}, "h2", false},
		"HTTP/1 and others": {&tls.Config{ServerName: host, NextProtos: []string{"acme", "http/1.1"}}, "http/1.1", false},
		"nothing we speak":  {&tls.Config{ServerName: host, NextProtos: []string{"imap"}}, "", true},
		"another name":      {&tls.Config{ServerName: "a.wild.example"}, "", true},
		"no name":           {&tls.Config{InsecureSkipVerify: true}, "", true},
		"TLS 1.1": {&tls.Config{ServerName: host, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, "",
			true},
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

// A run's authority is valid for its hosts and nothing else, whatever it is made to sign. It is valid for no other
// name, no address, and no authority below it.
func TestAttackAuthority(t *testing.T) {
	o, _ := recorder(t, originConfig{})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}, {Name: "below", Host: "*.wild.example"}}})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	verify := func(der []byte, name string, between *x509.CertPool) string {
		t.Helper()
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, DNSName: name}); err != nil {
			return "not trusted"
		}
		return "trusted"
	}
	for name, want := range map[string]string{
		host: "trusted", "x.wild.example": "trusted", "evil.example": "not trusted", "example.com": "not trusted",
		"evil" + host: "not trusted", host + ".evil.example": "not trusted", "wild.example.evil.example": "not trusted",
	} {
		leaf, err := r.ca.leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		attack.Check(t, "the run's authority signs for "+name, want, verify(leaf.Certificate[0], name, nil))
	}
	sign := func(template, parent *x509.Certificate, key *ecdsa.PrivateKey) []byte {
		t.Helper()
		template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(7), r.ca.cert.NotBefore, r.ca.cert.NotAfter
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &r.ca.key.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	ip := []net.IP{net.IPv4(93, 184, 216, 34)}
	address := sign(&x509.Certificate{IPAddresses: ip, ExtKeyUsage: server}, r.ca.cert, r.ca.key)
	attack.Check(t, "the run's authority signs for an address", "not trusted", verify(address, "93.184.216.34", nil))
	authority := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	below, err := x509.ParseCertificate(sign(authority, r.ca.cert, r.ca.key))
	if err != nil {
		t.Fatal(err)
	}
	between := x509.NewCertPool()
	between.AddCert(below)
	leaf := sign(&x509.Certificate{DNSNames: []string{host}, ExtKeyUsage: server}, below, r.ca.key)
	attack.Check(t, "an authority that the run's has signed signs for "+host, "not trusted", verify(leaf, host, between))
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

// If a server lacks HTTP/2, the guest uses HTTP/1 too.
func TestHTTP1Server(t *testing.T) {
	o, saw := recorder(t, originConfig{http1: true})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: key, Hosts: []Host{host}}}})
	res, _ := do(t, r.client(true), "GET", "https://"+host+"/", http.Header{"Authorization": {r.Placeholder("KEY")}}, "")
	if res.ProtoMajor != 1 || saw().Header.Get("Authorization") != key {
		t.Errorf("%s %+v", res.Proto, saw())
	}
}
