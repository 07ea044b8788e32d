package mcp_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
	"github.com/unitask/unitask/record"
)

// issuer is a fake issuer of JWTs: its keys, and how often they were fetched.
type issuer struct {
	url     string
	keys    jose.JSONWebKeySet
	fetched atomic.Int64
}

const audience = "https://unitask.example/mcp"

func newIssuer(t *testing.T, keys ...jose.JSONWebKey) *issuer {
	t.Helper()
	i := &issuer{keys: jose.JSONWebKeySet{Keys: keys}}
	hs := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		i.fetched.Add(1)
		_ = json.NewEncoder(w).Encode(i.keys)
	}))
	t.Cleanup(hs.Close)
	i.url = hs.URL
	return i
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// claims returns the claims of a valid token, for a test to change.
func claims(change func(map[string]any)) map[string]any {
	c := map[string]any{"iss": "https://issuer.example", "sub": "carol", "aud": audience,
		"exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	if change != nil {
		change(c)
	}
	return c
}

func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, opts *jose.SignerOptions, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, opts)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

type attackJWTsRow struct{ name, token, want string }

// attackJWTsRows are the cases of TestAttackJWTs.
func attackJWTsRows(
	fine string, t *testing.T, rsaKey *rsa.PrivateKey, encoded func(text string) string, parts []string, der,
	public []byte, stranger, good *ecdsa.PrivateKey, whole []byte, header,
	set func(name string, value any) string, without func(name string) string,
	es func(change func(map[string]any)) string,
) []attackJWTsRow {
	return []attackJWTsRow{
		{"good", fine, "200"},
		{"good, of the other key", sign(t, jose.RS256, jose.JSONWebKey{Key: rsaKey, KeyID: "r"}, nil, claims(nil)), "200"},
		{"alg none", encoded(`{"alg":"none"}`) + "." + parts[1] + ".", "401"},
		{"alg nOnE, with a signature", encoded(`{"alg":"nOnE"}`) + "." + parts[1] + "." + parts[2], "401"},
		{"alg none and the key's id", encoded(`{"alg":"none","kid":"k"}`) + "." + parts[1] + ".", "401"},
		{"no alg", encoded(`{"kid":"k"}`) + "." + parts[1] + "." + parts[2], "401"},
		{"HS256 with the public key as PEM", sign(t, jose.HS256,
			jose.JSONWebKey{Key: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), KeyID: "r"}, nil, claims(nil)),
			"401"},
		{"HS256 with the public key as DER", sign(t, jose.HS256, jose.JSONWebKey{Key: der, KeyID: "r"}, nil, claims(nil)),
			"401"},
		{"HS256 with the whole set", sign(t, jose.HS256, jose.JSONWebKey{Key: public, KeyID: "k"}, nil, claims(nil)), "401"},
		{"HS256 with nothing", sign(t, jose.HS256, jose.JSONWebKey{Key: make([]byte, 32), KeyID: ""}, nil, claims(nil)),
			"401"},
		{"a stranger's key under the known id", sign(t, jose.ES256, jose.JSONWebKey{Key: stranger, KeyID: "k"}, nil,
			claims(nil)), "401"},
		{"a stranger's key, no id", sign(t, jose.ES256, stranger, nil, claims(nil)), "401"},
		{"the RSA key's id on the other key", sign(t, jose.ES256, jose.JSONWebKey{Key: good, KeyID: "r"}, nil, claims(nil)),
			"401"},
		{"the signature cut off", parts[0] + "." + parts[1] + ".", "401"},
		{"the signature of zeros", parts[0] + "." + parts[1] + "." + base64.RawURLEncoding.EncodeToString(make([]byte, 64)),
			"401"},
		{"the claims changed", parts[0] + "." + encoded(`{"iss":"https://issuer.example","sub":"root","aud":"`+audience+
			`","exp":9999999999}`) + "." + parts[2], "401"},
		{"two parts", parts[0] + "." + parts[1], "401"},
		{"four parts", fine + ".x", "401"},
		{"five parts, as if encrypted", fine + ".x.y", "401"},
		{"JSON serialization", string(whole), "401"},
		{"a jwk of its own in the header", sign(t, jose.ES256, stranger, &jose.SignerOptions{EmbedJWK: true}, claims(nil)),
			"401"},
		{"a jku of its own", header("jku", "http://127.0.0.1:1/keys"), "401"},
		{"an x5u of its own", header("x5u", "http://127.0.0.1:1/cert"), "401"},
		{"a crit that nobody knows", sign(t, jose.ES256, jose.JSONWebKey{Key: good, KeyID: "k"},
			(&jose.SignerOptions{}).WithHeader("crit", []string{"x"}).WithHeader("x", 1), claims(nil)), "401"},
		{"a kid that is a path", sign(t, jose.ES256, jose.JSONWebKey{Key: stranger, KeyID: "../../../../dev/null"}, nil,
			claims(nil)), "401"},
		{"a kid that is SQL", sign(t, jose.ES256, jose.JSONWebKey{Key: stranger, KeyID: "' OR '1'='1"}, nil, claims(nil)),
			"401"},
		{"expired", set("exp", time.Now().Add(-time.Hour).Unix()), "401"},
		{"expired a moment ago", set("exp", time.Now().Add(-2*time.Second).Unix()), "401"},
		{"never expires", without("exp"), "401"},
		{"an exp that is no time", set("exp", "never"), "401"},
		{"not yet valid", set("nbf", time.Now().Add(time.Hour).Unix()), "401"},
		{"for another server", set("aud", "https://other.example"), "401"},
		{"for a server whose name begins like ours", set("aud", audience+"/more"), "401"},
		{"for our name in capitals", set("aud", strings.ToUpper(audience)), "401"},
		{"for nobody", without("aud"), "401"},
		{"for an empty list", set("aud", []string{}), "401"},
		{"of another issuer", set("iss", "https://evil.example"), "401"},
		{"of an issuer with a slash more", set("iss", "https://issuer.example/"), "401"},
		{"of no issuer", without("iss"), "401"},
		{"no subject", without("sub"), "401"},
		{"an empty subject", set("sub", ""), "401"},
		{"a subject that is a list", set("sub", []string{"carol"}), "401"},
		{"a subject of 8 KiB", set("sub", strings.Repeat("s", 8<<10)), "401"},
		{"a subject with a newline", set("sub", "carol\nroot"), "401"},
		{"a subject with an escape", set("sub", "carol\x1b[2J"), "401"},
		{"a subject with a NUL", set("sub", "carol\x00"), "401"},
		{"a subject that turns the text round", set("sub", "carol\u202egro.elpmaxe"), "401"},
		{"a subject with a blank at its end", set("sub", "carol "), "401"},
		{"a subject of blanks", set("sub", "  "), "401"},
		{"a subject with an invisible character", set("sub", "car\u200bol"), "401"},
		{"a second subject, by Unicode's case", set("\u017fub", "root"), "401"},
		{"a second issuer, by Unicode's case", set("is\u017f", "https://issuer.example"), "401"},
		{"the only subject in another case", es(func(c map[string]any) { c["Sub"] = c["sub"]; delete(c, "sub") }), "401"},
		{"the only audience in capitals", es(func(c map[string]any) { c["AUD"] = c["aud"]; delete(c, "aud") }), "401"},
		{"the only end of it in capitals", es(func(c map[string]any) { c["EXP"] = c["exp"]; delete(c, "exp") }), "401"},
		{"an nbf in another case", set("Nbf", 0), "401"},
		{"a claim that begins like one", set("subject", "root"), "200"},
		{"a token of 20 KiB", set("junk", strings.Repeat("x", 20<<10)), "401"},
	}
}

func TestAttackJWTs(t *testing.T) {
	good, stranger := newKey(t), newKey(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	i := newIssuer(t, jose.JSONWebKey{Key: good.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"},
		jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "r", Algorithm: "RS256", Use: "sig"})
	auth, err := mcp.JWTs(mcp.JWTOptions{JWKS: i.url, Audience: audience, Issuer: "https://issuer.example"})
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{Auth: auth})
	der, err := x509.MarshalPKIXPublicKey(rsaKey.Public())
	if err != nil {
		t.Fatal(err)
	}
	public, err := json.Marshal(i.keys)
	if err != nil {
		t.Fatal(err)
	}
	es := func(change func(map[string]any)) string {
		return sign(t, jose.ES256, jose.JSONWebKey{Key: good, KeyID: "k"}, nil, claims(change))
	}
	set := func(name string, value any) string {
		return es(func(c map[string]any) { c[name] = value })
	}
	without := func(name string) string { return es(func(c map[string]any) { delete(c, name) }) }
	header := func(name string, value any) string {
		return sign(t, jose.ES256, jose.JSONWebKey{Key: stranger, KeyID: "k"},
			(&jose.SignerOptions{}).WithHeader(jose.HeaderKey(name), value), claims(nil))
	}
	encoded := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	fine := es(nil)
	parts := strings.Split(fine, ".")
	whole, err := json.Marshal(map[string]any{"payload": parts[1],
		"signatures": []any{map[string]any{"protected": parts[0], "signature": parts[2]}}})
	if err != nil {
		t.Fatal(err)
	}
	rows := attackJWTsRows(
		fine, t, rsaKey, encoded, parts, der, public, stranger, good, whole, header, set, without, es,
	)
	for _, c := range rows {
		attack.Check(t, "JWT: "+c.name, c.want, status(t, url, "Authorization: Bearer "+c.token))
	}
	for _, token := range []string{sign(t, jose.ES256, stranger, nil, claims(nil)), "x"} {
		_, _, body := send(t, "POST", url+"/mcp", listTools, "Authorization: Bearer "+token, revision, named)
		if strings.Contains(body, "127.0.0.1") || strings.Contains(body, i.url) {
			t.Errorf("it says where the keys are: %s", body)
		}
	}
}

// Many false tokens do not cause a request to the issuer for each.
func TestAttackKeyFetches(t *testing.T) {
	good, stranger := newKey(t), newKey(t)
	i := newIssuer(t, jose.JSONWebKey{Key: good.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"})
	auth, err := mcp.JWTs(mcp.JWTOptions{JWKS: i.url, Audience: audience, Issuer: "https://issuer.example"})
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t, newServer(t, bare(t), mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{Auth: auth})
	begin := time.Now()
	refused := 0
	for n := range 200 {
		if status(t, url, "Authorization: Bearer "+sign(t, jose.ES256,
			jose.JSONWebKey{Key: stranger, KeyID: fmt.Sprint("k", n)}, nil, claims(nil))) == "401" {
			refused++
		}
	}
	most := mcp.KeyFetches + int64(time.Since(begin)/(10*time.Second)) + 1
	got := "bounded"
	if n := i.fetched.Load(); n > most {
		got = fmt.Sprintf("%d fetches", n)
	}
	attack.Check(t, "200 tokens with key ids of their own", "200 refused, bounded",
		fmt.Sprintf("%d refused, %s", refused, got))
	attack.Check(t, "a good token in the middle of it", "200",
		status(t, url, "Authorization: Bearer "+sign(t, jose.ES256, jose.JSONWebKey{Key: good, KeyID: "k"}, nil,
			claims(nil))))
}

// Two issuers share one set of keys: the same subject is two callers.
func TestAttackIssuers(t *testing.T) {
	good := newKey(t)
	i := newIssuer(t, jose.JSONWebKey{Key: good.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"})
	auth, err := mcp.JWTs(mcp.JWTOptions{JWKS: i.url, Audience: audience})
	if err != nil {
		t.Fatal(err)
	}
	rt := bare(t)
	of := recorded(t, rt, "https://one.example#carol", record.ViaHTTP)
	url := serve(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{Auth: auth})
	for _, c := range []struct{ iss, sub, want string }{
		{"https://one.example", "carol", "all of it"},
		{"https://two.example", "carol", "nothing"},
		{"https://one.example", "Carol", "nothing"},
		{"https://one", "example#carol", "nothing"},
	} {
		token := sign(t, jose.ES256, jose.JSONWebKey{Key: good, KeyID: "k"}, nil,
			claims(func(m map[string]any) { m["iss"], m["sub"] = c.iss, c.sub }))
		attack.Check(t, "subject "+c.sub+" of "+c.iss+" reaches for carol's of one.example", c.want,
			reach(t, connect(t, url, token), of))
	}
	for _, iss := range []string{"", "https://one.example#carol", "local:root\n", strings.Repeat("i", 600)} {
		token := sign(t, jose.ES256, jose.JSONWebKey{Key: good, KeyID: "k"}, nil,
			claims(func(m map[string]any) { m["iss"] = iss }))
		attack.Check(t, fmt.Sprintf("an issuer %.40q", iss), "401", status(t, url, "Authorization: Bearer "+token))
	}
}
