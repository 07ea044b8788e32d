package mcp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
)

// in returns the time after d.
func in(d time.Duration) *jwt.NumericDate {
	return jwt.NewNumericDate(time.Now().Add(d))
}

// An OAuth 2.1 resource server: which tokens are valid.
func TestJWTs(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer rt.Close()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	good, stranger := key(), key()
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: good.Public(), KeyID: "k",
		Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	defer issuer.Close()
	const audience = "https://unitask.example/mcp"
	auth, err := mcp.JWTs(mcp.JWTOptions{JWKS: issuer.URL, Audience: audience, Issuer: "https://issuer.example"})
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, newServer(t, rt, mcp.Options{}), mcp.HTTPOptions{Auth: auth})
	sign := func(alg jose.SignatureAlgorithm, with any, change func(*jwt.Claims)) string {
		t.Helper()
		signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: with, KeyID: "k"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		claims := jwt.Claims{Issuer: "https://issuer.example", Subject: "carol", Audience: jwt.Audience{audience},
			Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)), IssuedAt: jwt.NewNumericDate(time.Now())}
		if change != nil {
			change(&claims)
		}
		text, err := jwt.Signed(signer).Claims(claims).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	fine := sign(jose.ES256, good, nil)
	parts := strings.Split(fine, ".")
	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"good":          {fine, 200},
		"two audiences": {sign(jose.ES256, good, func(c *jwt.Claims) { c.Audience = append(c.Audience, "other") }), 200},
		"none at all":   {"", 401},
		"no JWT":        {"abc", 401},
		"expired":       {sign(jose.ES256, good, func(c *jwt.Claims) { c.Expiry = in(-time.Hour) }), 401},
		"never expires": {sign(jose.ES256, good, func(c *jwt.Claims) { c.Expiry = nil }), 401},
		"not yet":       {sign(jose.ES256, good, func(c *jwt.Claims) { c.NotBefore = in(time.Hour) }), 401},
		"wrong audience": {sign(jose.ES256, good,
			func(c *jwt.Claims) { c.Audience = jwt.Audience{"https://other.example"} }), 401},
		"no audience":       {sign(jose.ES256, good, func(c *jwt.Claims) { c.Audience = nil }), 401},
		"wrong issuer":      {sign(jose.ES256, good, func(c *jwt.Claims) { c.Issuer = "https://evil.example" }), 401},
		"no subject":        {sign(jose.ES256, good, func(c *jwt.Claims) { c.Subject = "" }), 401},
		"another key":       {sign(jose.ES256, stranger, nil), 401},
		"the key as secret": {sign(jose.HS256, set, nil), 401},
		"unsigned":          {parts[0] + "." + parts[1] + ".", 401},
		"alg none":          {"eyJhbGciOiJub25lIn0." + parts[1] + ".", 401},
		"changed":           {parts[0] + "." + parts[1][:len(parts[1])-4] + "AAAA." + parts[2], 401},
	} {
		headers := []string{revision, named}
		if c.token != "" {
			headers = append(headers, "Authorization: Bearer "+c.token)
		}
		code, h, body := send(t, "POST", url+"/mcp", listTools, headers...)
		if code != c.want || code == 401 && !strings.Contains(h.Get("WWW-Authenticate"),
			`resource_metadata="https://unitask.example/.well-known/oauth-protected-resource/mcp"`) {
			t.Errorf("%s: %d %q %s", name, code, h.Get("WWW-Authenticate"), body)
		}
	}
	checkJWTOptions(t, url, issuer)
}

// checkJWTOptions checks the metadata, and refused options.
func checkJWTOptions(t *testing.T, url string, issuer *httptest.Server) {
	t.Helper()
	for _, at := range []string{"/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"} {
		code, _, body := send(t, "GET", url+at, "")
		if code != 200 || !strings.Contains(body, `"resource":"https://unitask.example/mcp"`) ||
			!strings.Contains(body, "https://issuer.example") {
			t.Errorf("%s: %d %s", at, code, body)
		}
	}
	for _, opts := range []mcp.JWTOptions{{JWKS: "http://keys.example", Audience: "a"}, {JWKS: "nonsense", Audience: "a"},
		{JWKS: issuer.URL}} {
		if _, err := mcp.JWTs(opts); err == nil {
			t.Errorf("%+v", opts)
		}
	}
}
