package mcp

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// Auth tells callers by their bearer tokens: by a file of tokens, or as an OAuth 2.1
// resource server by JWTs.
type Auth struct {
	tokens []namedToken // of a file

	verifier *oidc.IDTokenVerifier // of JWTs
	resource *resource             // what clients without a token are pointed to; nil for none
}

// resource is what a server says of itself to those who have no token.
type resource struct {
	url string // of the document
	doc *oauthex.ProtectedResourceMetadata
}

type namedToken struct {
	name string
	hash [sha256.Size]byte
}

// Bounds of a token file.
const (
	minToken     = 16
	maxTokenFile = 1 << 20
)

// TokenFile reads a file of tokens: a line each, NAME TOKEN; blank lines and those that
// begin with # are left out. Others than the owner must not be able to read it.
func TokenFile(name string) (*Auth, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("token file: %w", err)
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("token file %s is not a regular file", name)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("token file %s may be read by others (mode %04o): chmod 600", name, st.Mode().Perm())
	}
	a := &Auth{}
	lines := bufio.NewScanner(io.LimitReader(f, maxTokenFile))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) != 2 || len(fields[1]) < minToken {
			return nil, fmt.Errorf("token file %s:%d: use NAME TOKEN, the token of %d characters or more", name, n, minToken)
		}
		named := namedToken{fields[0], sha256.Sum256([]byte(fields[1]))}
		for _, other := range a.tokens {
			switch {
			case other.name != named.name && strings.EqualFold(other.name, named.name):
				return nil, fmt.Errorf("token file %s:%d: names %q and %q differ only in case: use one", name, n, other.name, named.name)
			case other.name != named.name && other.hash == named.hash:
				return nil, fmt.Errorf("token file %s:%d: %q has the same token as %q: each caller needs its own", name, n, named.name, other.name)
			}
		}
		a.tokens = append(a.tokens, named)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("token file %s: %w", name, err)
	}
	if len(a.tokens) == 0 {
		return nil, fmt.Errorf("token file %s has no token", name)
	}
	return a, nil
}

// JWTOptions say which JWTs are good.
type JWTOptions struct {
	// JWKS is the URL of the issuer's keys; https, or http on loopback.
	JWKS string
	// Audience is what aud must hold: this server's name at the issuer, mostly its URL.
	Audience string
	// Issuer is what iss must be; "" is not looked at.
	Issuer string
	// URL is where clients reach the server's /mcp; "" is Audience, if that is a URL.
	URL string
}

// JWTs accepts JSON Web Tokens that a key of the set has signed, with an asymmetric
// algorithm, for the audience. The caller's name is the token's sub.
func JWTs(opts JWTOptions) (*Auth, error) {
	u, err := url.Parse(opts.JWKS)
	if err != nil || u.Host == "" || (u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname()))) {
		return nil, fmt.Errorf("--jwks %q: use an https URL", opts.JWKS)
	}
	if opts.Audience == "" {
		return nil, errors.New("--jwks needs --audience: a token for another server must not do here")
	}
	client := &http.Client{Timeout: 10 * time.Second}
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), opts.JWKS)
	a := &Auth{verifier: oidc.NewVerifier(opts.Issuer, keys, &oidc.Config{ClientID: opts.Audience, SkipIssuerCheck: opts.Issuer == "",
		SupportedSigningAlgs: []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256, oidc.PS384, oidc.PS512, oidc.EdDSA}})}
	if opts.URL == "" {
		opts.URL = opts.Audience
	}
	if at, err := url.Parse(opts.URL); err == nil && at.Host != "" && opts.Issuer != "" {
		metadata := url.URL{Scheme: at.Scheme, Host: at.Host, Path: "/.well-known/oauth-protected-resource" + strings.TrimSuffix(at.Path, "/")}
		a.resource = &resource{url: metadata.String(), doc: &oauthex.ProtectedResourceMetadata{Resource: opts.URL, AuthorizationServers: []string{opts.Issuer}, BearerMethodsSupported: []string{"header"}}}
	}
	return a, nil
}

// verify is an auth.TokenVerifier.
func (a *Auth) verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	if a.verifier == nil {
		hash := sha256.Sum256([]byte(token))
		name := ""
		for _, t := range a.tokens { // all of them: time tells nothing
			if subtle.ConstantTimeCompare(t.hash[:], hash[:]) == 1 {
				name = t.name
			}
		}
		if name == "" {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: name}, nil
	}
	id, err := a.verifier.Verify(ctx, token)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrInvalidToken, err)
	}
	if id.Subject == "" {
		return nil, fmt.Errorf("%w: it has no sub", auth.ErrInvalidToken)
	}
	return &auth.TokenInfo{UserID: id.Subject, Expiration: id.Expiry}, nil
}
