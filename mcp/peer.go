package mcp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/auth"

	"github.com/unitask/unitask"
)

// NeedsToken reports whether the server would admit nobody without tokens. The reason is that this system does not
// report the user of a local connection. NewToken makes a token.
func (o *HTTPOptions) NeedsToken() bool {
	host, _, err := net.SplitHostPort(o.Addr)
	return err == nil && isLoopback(host) && o.Auth == nil && !o.Anyone && !peersKnown()
}

// NewToken makes a token for the user of this process, and an Auth that accepts only that token.
func NewToken() (*Auth, string) {
	token := rand.Text()
	return &Auth{tokens: []namedToken{{unitask.LocalOwner(os.Geteuid()), sha256.Sum256([]byte(token))}}}, token
}

// peerKey is the key of a connection's context for its peer, a func() (int, error).
type peerKey struct{}

// withPeer returns an http.Server's ConnContext: the user at the other end is looked up once for each connection,
// with its first request.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, sync.OnceValues(func() (int, error) {
		return uidBetween(c.RemoteAddr().String(), c.LocalAddr().String())
	}))
}

// requestUID returns the user at the other end of a request's connection.
func requestUID(r *http.Request) (int, error) {
	if look, ok := r.Context().Value(peerKey{}).(func() (int, error)); ok {
		return look()
	}
	own, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return 0, fmt.Errorf("the request came by no connection")
	}
	return uidBetween(r.RemoteAddr, own.String())
}

func uidBetween(peer, own string) (int, error) {
	a, err := netip.ParseAddrPort(peer)
	if err != nil {
		return 0, err
	}
	b, err := netip.ParseAddrPort(own)
	if err != nil {
		return 0, err
	}
	if !a.Addr().Unmap().IsLoopback() {
		return 0, fmt.Errorf("%s is not on this machine", a.Addr())
	}
	return peerUID(a, b)
}

// peers admits, on a loopback address without tokens, the server's own user: the user at the other end of the
// connection. With anyone, every user of this machine is admitted. Each gets a name, which the SDK treats like a
// token's.
func peers(anyone bool, next http.Handler) http.Handler {
	named := identified(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, err := peerName(r, anyone)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		named(w, r, name)
	})
}

// identified returns a handler of requests whose caller is known by other means than a bearer token. The SDK wants one
// nevertheless; next gets the request's own Authorization header.
func identified(next http.Handler) func(w http.ResponseWriter, r *http.Request, caller string) {
	type known struct {
		caller string
		header []string
	}
	type key struct{}
	of := func(ctx context.Context) known {
		is, _ := ctx.Value(key{}).(known)
		return is
	}
	named := auth.RequireBearerToken(func(ctx context.Context, _ string, _ *http.Request) (*auth.TokenInfo, error) {
		if of(ctx).caller == "" {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: of(ctx).caller}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Del("Authorization"); of(r.Context()).header != nil {
				r.Header["Authorization"] = of(r.Context()).header
			}
			next.ServeHTTP(w, r)
		}))
	return func(w http.ResponseWriter, r *http.Request, caller string) {
		is := known{caller, r.Header.Values("Authorization")}
		r = r.Clone(context.WithValue(r.Context(), key{}, is))
		r.Header.Set("Authorization", "Bearer peer")
		named.ServeHTTP(w, r)
	}
}

// peerName returns the name of the user at the other end; the error tells why the user is not admitted.
func peerName(r *http.Request, anyone bool) (string, error) {
	uid, err := requestUID(r)
	self := os.Geteuid()
	switch {
	case err == nil && (anyone || uid == self):
		return unitask.LocalOwner(uid), nil
	case anyone:
		return unitask.LocalOwnerPrefix + "?", nil
	case err != nil:
		return "", fmt.Errorf("this server answers its own user only: %w", err)
	}
	return "",
		fmt.Errorf(
			"this server answers its own user (uid %d) only, and this is uid %d: "+
				"--token-file lets others in, --loopback-anyone everybody on this machine", self, uid)
}
