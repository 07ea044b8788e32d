package main

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"
)

// The suites test the broker with a server behind it that answers; they also test that server directly.
func TestBegin(t *testing.T) {
	broker, reference, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	for port, issuer := range map[string]string{broker: "unitask, for this run", reference: ""} {
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			ForceAttemptHTTP2: true}}
		res, err := c.Get("https://" + host + ":" + port + "/")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.ProtoMajor != 2 || string(body) != "an answer of some length" ||
			res.TLS.PeerCertificates[0].Issuer.CommonName != issuer {
			t.Errorf("%s %q %q %v", res.Proto, body, res.TLS.PeerCertificates[0].Issuer, err)
		}
		c.CloseIdleConnections()
	}
}
