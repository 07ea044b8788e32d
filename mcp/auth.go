package mcp

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/fetch"
)

// Auth identifies callers by their bearer tokens: with a file of tokens, or as an OAuth 2.1 resource server with
// JWTs.
type Auth struct {
	tokens []namedToken // of a file

	verifier *oidc.IDTokenVerifier // of JWTs
	issuer   string                // required in all of them; "" for any
	resource *resource             // document for clients without a token; nil for none
}

// resource describes a server to clients that have no token.
type resource struct {
	url string // of the document
	doc *oauthex.ProtectedResourceMetadata
}

type namedToken struct {
	name string
	hash [sha256.Size]byte
}

// Limits of tokens.
const (
	minToken     = 16       // characters of a token in a file: as many random ones can't be guessed
	maxTokenFile = 1 << 20  // bytes of the file
	maxToken     = 16 << 10 // bytes of a sent token; JWTs have one or two thousand
)

// TokenFile reads a file of tokens: a line each, NAME TOKEN; blank lines and those that begin with # are ignored.
// Only the owner may be able to read the file.
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
		if err := checkName(fields[0]); err != nil {
			return nil, fmt.Errorf("token file %s:%d: the name %.100q %w", name, n, fields[0], err)
		}
		if strings.HasPrefix(fields[0], unitask.LocalOwnerPrefix) || strings.Contains(fields[0], "#") {
			return nil,
				fmt.Errorf("token file %s:%d: the name %q: %q and names with # are kept for users of this system and of issuers",
					name, n, fields[0], unitask.LocalOwnerPrefix)
		}
		named := namedToken{fields[0], sha256.Sum256([]byte(fields[1]))}
		for _, other := range a.tokens {
			switch {
			case other.name != named.name && strings.EqualFold(other.name, named.name):
				return nil, fmt.Errorf("token file %s:%d: names %q and %q differ only in case: use one", name, n, other.name,
					named.name)
			case other.name != named.name && other.hash == named.hash:
				return nil, fmt.Errorf("token file %s:%d: %q has the same token as %q: each caller needs its own", name, n,
					named.name, other.name)
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

// JWTOptions configure which JWTs are valid.
type JWTOptions struct {
	// JWKS is the URL of the issuer's keys; https, or http on loopback.
	JWKS string
	// Audience must be in aud: this server's name at the issuer, usually its URL.
	Audience string
	// Issuer must equal iss; "" is not checked.
	Issuer string
	// URL is the address of the server's /mcp for clients; "" means Audience, if that is a URL.
	URL string
}

// JWTs accepts JSON Web Tokens for the audience that a key of the set has signed with an asymmetric algorithm.
// The caller's name is the token's iss, "#" and its sub.
func JWTs(opts JWTOptions) (*Auth, error) {
	u, err := url.Parse(opts.JWKS)
	if err != nil || !goodKeysURL(u) {
		return nil, fmt.Errorf("--jwks %q: use an https URL", opts.JWKS)
	}
	if opts.Audience == "" {
		return nil, errors.New("--jwks needs --audience: a token for another server must not do here")
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: newKeyFetches(fetch.Transport(nil, u.Host)),
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if !goodKeysURL(r.URL) || len(via) > maxKeyRedirects {
				return errors.New("the keys' URL redirects too often, or not to https")
			}
			return nil
		}}
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), opts.JWKS)
	a := &Auth{issuer: opts.Issuer, verifier: oidc.NewVerifier(opts.Issuer, keys,
		&oidc.Config{ClientID: opts.Audience, SkipIssuerCheck: opts.Issuer == "",
			SupportedSigningAlgs: []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.ES256, oidc.ES384, oidc.ES512, oidc.PS256,
				oidc.PS384, oidc.PS512, oidc.EdDSA}})}
	if opts.URL == "" {
		opts.URL = opts.Audience
	}
	if at, err := url.Parse(opts.URL); err == nil && at.Host != "" && opts.Issuer != "" {
		metadata := url.URL{Scheme: at.Scheme, Host: at.Host,
			Path: "/.well-known/oauth-protected-resource" + strings.TrimSuffix(at.Path, "/")}
		a.resource = &resource{url: metadata.String(), doc: &oauthex.ProtectedResourceMetadata{Resource: opts.URL,
			AuthorizationServers: []string{opts.Issuer}, BearerMethodsSupported: []string{"header"}}}
	}
	return a, nil
}

// Nobody returns why no caller can have a name, "" if one may. An entry in a file under such a name would have no
// effect. Names of users of this system are for servers without tokens.
func (a *Auth) Nobody(name string) string {
	switch {
	case strings.HasPrefix(name, unitask.LocalOwnerPrefix):
	case a == nil:
		return "callers without tokens are " + unitask.LocalOwnerPrefix + "USER"
	case a.verifier == nil:
		if !slices.ContainsFunc(a.tokens, func(t namedToken) bool { return t.name == name }) {
			return "no token has this name"
		}
	case a.issuer == "" && !strings.Contains(name, "#"):
		return "callers are ISSUER#SUB, or with --issuer SUB alone"
	case a.issuer != "" && strings.Contains(name, "#") && !strings.HasPrefix(name, a.issuer+"#"):
		return "callers are " + a.issuer + "#SUB, or SUB alone"
	}
	return ""
}

// goodKeysURL reports whether keys from a URL are certainly the issuer's.
func goodKeysURL(u *url.URL) bool {
	return u.Host != "" && (u.Scheme == "https" || u.Scheme == "http" && isLoopback(u.Hostname()))
}

// compactLetters are the characters of a JWT (RFC 7519): three parts in base64url.
const compactLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

// verify is an auth.TokenVerifier.
func (a *Auth) verify(ctx context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
	if len(token) > maxToken {
		return nil, fmt.Errorf("%w: it has more than %d bytes", auth.ErrInvalidToken, maxToken)
	}
	if a.verifier == nil {
		hash := sha256.Sum256([]byte(token))
		name := ""
		for _, t := range a.tokens { // check all of them: the time reveals nothing
			if subtle.ConstantTimeCompare(t.hash[:], hash[:]) == 1 {
				name = t.name
			}
		}
		if name == "" {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: name}, nil
	}
	if strings.Count(token, ".") != 2 || strings.Trim(token, compactLetters) != "" { // not the JSON form
		return nil, fmt.Errorf("%w: it is no JWT", auth.ErrInvalidToken)
	}
	id, err := a.verifier.Verify(ctx, token)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, fmt.Errorf("%w: it expired", auth.ErrInvalidToken)
	case err != nil: // the error names expected values and our connection to the issuer, which strangers must not learn
		return nil, fmt.Errorf("%w: it is not signed by a known key of the issuer for this server, or not valid now",
			auth.ErrInvalidToken)
	}
	name, err := issuedName(id.Issuer, id.Subject)
	if err == nil {
		err = exactClaims(id)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrInvalidToken, err)
	}
	info := &auth.TokenInfo{UserID: name, Expiration: id.Expiry}
	// With a single issuer the subject suffices, unless it could be another caller's whole name.
	if a.issuer != "" && !strings.Contains(id.Subject, "#") && !strings.HasPrefix(id.Subject, unitask.LocalOwnerPrefix) {
		info.Extra = map[string]any{shortName: id.Subject}
	}
	return info, nil
}

// exactClaims refuses a token with a claim that only resembles a claim that unitask reads. The verifier uses
// encoding/json, which accepts "Sub" and "\u017fub" for sub, and takes the last of several. Issuers may let their users
// name claims.
func exactClaims(id *oidc.IDToken) error {
	var members map[string]json.RawMessage
	if err := id.Claims(&members); err != nil {
		return err
	}
	for name := range members {
		for _, read := range []string{"iss", "sub", "aud", "exp", "iat", "nbf"} {
			if name != read && strings.EqualFold(name, read) {
				return fmt.Errorf("it has a claim %q, which is not %s", name, read)
			}
		}
	}
	return nil
}
