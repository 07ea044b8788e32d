package oci

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/unitask/unitask/internal/attack"
)

// locked is a registry that requires a login of one kind, with an image tool:1. It counts correct logins.
func locked(t *testing.T, kind string) (at string, seen *atomic.Int32) {
	t.Helper()
	real := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	open := httptest.NewServer(real)
	t.Cleanup(open.Close)
	if err := remote.Write(reference(t, strings.TrimPrefix(open.URL, "http://")+"/tool:1"),
		made(t, "amd64", "", tarOf(t, text("a", "A")))); err != nil {
		t.Fatal(err)
	}
	seen = new(atomic.Int32)
	known := func(r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		return user == "me" && password == "pw-G7kd0Zt"
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		challenge := `Basic realm="x"`
		ok := known(r)
		if kind != "basic" {
			challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="x",scope="repository:tool:pull"`, r.Host)
			ok = r.Header.Get("Authorization") == "Bearer tk-Pq93Lw1x"
		}
		switch {
		case r.URL.Path == "/token" && known(r):
			fmt.Fprint(w, `{"token":"tk-Pq93Lw1x"}`)
		case ok:
			seen.Add(1)
			real.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", challenge)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://"), seen
}

// A registry that requires a login gets its own, and no other registry does.
func TestLogin(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for _, kind := range []string{"basic", "token exchange", "token"} {
		t.Run(kind, func(t *testing.T) {
			at, seen := locked(t, kind)
			asked := ""
			pull := func(user, password, token string, there bool, wrong error) error {
				im, err := Pull(t.Context(), at+"/tool:1", "amd64", func(_ context.Context, registry string) (*Login, error) {
					asked = registry
					if !there {
						return nil, wrong
					}
					return &Login{User: user, Password: password, Token: token}, wrong
				})
				if err != nil {
					return err
				}
				defer im.Close()
				f, stats, err := written(t, im, DefaultLimits)
				if err == nil && !strings.Contains(strings.Join(files(t, f, stats), " "), "a A") {
					t.Error("another image")
				}
				return err
			}
			right := func() error {
				if kind == "token" {
					return pull("", "", "tk-Pq93Lw1x", true, nil)
				}
				return pull("me", "pw-G7kd0Zt", "", true, nil)
			}
			if err := right(); err != nil || asked != at || seen.Load() < 3 {
				t.Errorf("asked of %q, seen %d times: %v", asked, seen.Load(), err)
			}
			for _, err := range []error{pull("", "", "", false, nil), pull("me", "pw-wrong-8Gx2", "", true, nil),
				pull("", "", "tk-wrong-8Gx2", true, nil)} {
				if err == nil || !strings.Contains(err.Error(), "wants a login") || !strings.Contains(err.Error(), at) ||
					strings.Contains(err.Error(), "8Gx2") {
					t.Errorf("a wrong login: %v", err)
				}
			}
			before := seen.Load()
			if err := pull("", "", "", false, errors.New("the keyring is locked")); err == nil ||
				!strings.Contains(err.Error(), "the login of "+at+": the keyring is locked") || seen.Load() != before {
				t.Errorf("a login that can't be read: %v", err)
			}
		})
	}
}

// With a login from the home's configuration, only this host may be asked without TLS, also after a redirect.
func TestAttackLoginInClear(t *testing.T) {
	told := errors.New("told")
	for url, want := range map[string]bool{
		"https://r.example/v2/": true, "http://127.0.0.1:5000/v2/": true, "http://[::1]:5000/v2/": true,
		"http://localhost:5000/v2/": true,
		"http://10.1.2.3:5000/v2/":  false, "http://r.local/v2/": false, "http://r.example/token": false,
		"http://127.0.0.1.r.example/v2/": false, "http://localhost.r.example/": false,
	} {
		for _, sealed := range []bool{true, false} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			way := sealable{roundTripper(func(*http.Request) (*http.Response, error) { return nil, told }), sealed}
			_, before := way.RoundTrip(r)
			r.SetBasicAuth("me", "pw-G7kd0Zt")
			_, err = way.RoundTrip(r)
			if err == nil || strings.Contains(err.Error(), "G7kd0Zt") {
				t.Errorf("%s, sealed %v: %v", url, sealed, err)
			}
			row := fmt.Sprintf("a login for %s, TLS wanted %t: sent before it is asked for, and then", url, sealed)
			may := want || !sealed
			attack.Check(t, row, fmt.Sprint(may, may), fmt.Sprint(errors.Is(before, told), errors.Is(err, told)))
		}
	}
}

// An attacker between us and a registry without TLS can't choose where its login is sent.
func TestAttackLoginElsewhere(t *testing.T) {
	ref, err := name.ParseReference("10.1.2.3:5000/tool:1")
	if err != nil {
		t.Fatal(err)
	}
	for what, answer := range map[string]func(http.Header) int{
		"a token's address": func(h http.Header) int {
			h.Set("WWW-Authenticate", `Bearer realm="https://evil.example/t"`)
			return http.StatusUnauthorized
		},
		"another registry": func(h http.Header) int {
			h.Set("Location",
				"https://evil.example/v2/")
			return http.StatusFound
		},
		"its own, with TLS": func(h http.Header) int { h.Set("WWW-Authenticate", "Basic"); return http.StatusUnauthorized },
	} {
		for _, sealed := range []bool{true, false} {
			var mu sync.Mutex
			var asked, led []string
			way := roundTripper(func(r *http.Request) (*http.Response, error) {
				mu.Lock()
				defer mu.Unlock()
				if r.URL.Scheme == "https" && r.URL.Hostname() == "10.1.2.3" {
					return nil, errors.New("blocked")
				}
				asked = append(asked, r.URL.String())
				if r.URL.Hostname() == "evil.example" || r.Header.Get("Authorization") != "" {
					led = append(led, r.URL.String())
				}
				resp := &http.Response{Header: http.Header{}, Body: http.NoBody, Request: r}
				resp.StatusCode = answer(resp.Header)
				return resp, nil
			})
			login := remote.WithAuth(authn.FromConfig(authn.AuthConfig{Username: "me", Password: "pw-G7kd0Zt"}))
			_, err := remote.Get(ref, remote.WithContext(t.Context()), login, remote.WithTransport(sealable{way, sealed}))
			if err == nil || strings.Contains(err.Error(), "G7kd0Zt") ||
				sealed && !strings.Contains(err.Error(), "plain = true") {
				t.Errorf("%s, sealed %v: %v", what, sealed, err)
			}
			mu.Lock()
			if !sealed && len(led) == 0 {
				t.Errorf("%s, unsealed: asked %q", what, asked)
			}
			if sealed {
				attack.Check(t, "who answers without TLS leads a login to "+what, "[]", fmt.Sprint(asked))
			}
			mu.Unlock()
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A registry may redirect only to the Internet: not to this host or its network for tokens, manifests or layers. No
// answer from there appears in an error.
func TestAttackRegistryLeads(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	asked := new(atomic.Int32)
	inner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Error(w, `{"token":"internal-token","errors":[{"code":"DENIED","message":"internal page"}]}`,
			http.StatusForbidden)
	}))
	defer inner.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(inner.URL, "http://"), ":")
	for _, way := range []struct {
		name  string
		serve func(w http.ResponseWriter, r *http.Request, to string)
	}{
		{"the realm of its tokens", func(w http.ResponseWriter, _ *http.Request, to string) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}},
		{"a redirect of everything", func(w http.ResponseWriter, r *http.Request, to string) {
			http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
		}},
		{"a redirect of manifests", func(w http.ResponseWriter, r *http.Request, to string) {
			if r.URL.Path == "/v2/" {
				return
			}
			http.Redirect(w, r, to+r.URL.Path, http.StatusFound)
		}},
	} {
		for _, to := range []string{"http://localhost:" + port, "http://127.0.0.2:" + port, "http://[::1]:" + port} {
			asked.Store(0)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { way.serve(w, r, to) }))
			_, err := Pull(t.Context(), strings.TrimPrefix(s.URL, "http://")+"/tool:1", "amd64", nil)
			s.Close()
			got := "not asked"
			if n := asked.Load(); n > 0 {
				got = fmt.Sprintf("asked %d times", n)
			}
			if err == nil || strings.Contains(err.Error(), "internal page") || strings.Contains(err.Error(), "internal-token") {
				got += fmt.Sprintf(", %v", err)
			}
			attack.Check(t, "a registry leads to "+strings.ReplaceAll(to, port, "PORT")+" by "+way.name, "not asked", got)
		}
	}
	// Even if the user named the other host, its answers are in no error.
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("WWW-Authenticate", `Bearer realm="http://localhost:`+port+`/token",service="x"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer s.Close()
	_, err := Pull(t.Context(), strings.TrimPrefix(s.URL, "http://")+"/tool:1", "amd64",
		func(context.Context, string) (*Login, error) { return &Login{Also: []string{"localhost"}}, nil })
	got := "asked, and answered 403"
	if err == nil || asked.Load() == 0 || !strings.Contains(err.Error(), "403") ||
		strings.Contains(err.Error(), "internal page") {
		got = fmt.Sprint(asked.Load(), err)
	}
	attack.Check(t, "a registry leads to a host that the user named: what its error says", "asked, and answered 403", got)
}

// An invalid answer, from another port of the registry's host, is in no error.
func TestAttackRegistryAnswers(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for name, answer := range map[string]string{
		"JSON without a token": "HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{\"note\": \"internal page\"}",
		"no HTTP":              "SSH-2.0 internal page\r\n",
		"a bad field":          "HTTP/1.1 200 OK\r\ninternal page\r\n\r\n",
		"a bad length":         "HTTP/1.1 200 OK\r\nContent-Length: internal page\r\n\r\n",
		"another status":       "HTTP/1.1 internal page\r\n\r\n",
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = http.ReadRequest(bufio.NewReader(conn))
				_, _ = io.WriteString(conn, answer)
				conn.Close()
			}
		}()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://localhost:`+port+`/token",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		}))
		_, err = Pull(t.Context(), strings.Replace(s.URL, "http://127.0.0.1", "localhost", 1)+"/tool:1", "amd64", nil)
		s.Close()
		l.Close()
		got := "an error without it"
		if err == nil || strings.Contains(err.Error(), "internal page") {
			got = fmt.Sprint(err)
		}
		attack.Check(t, "a registry leads to another port of its host, which answers "+name, "an error without it", got)
	}
}

// A registry's redirects and realms may have a login or a signature in them, which no error quotes.
func TestAttackPullSays(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	const to = "http://someuser:verysecret@127.0.0.1:1/blob?X-Amz-Signature=verysecret"
	for name, serve := range map[string]http.HandlerFunc{
		"a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) },
		"a realm": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+to+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
		"a redirect to what is no address": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://someuser:verysecret@127.0.0.1:x/")
			w.WriteHeader(http.StatusFound)
		},
	} {
		s := httptest.NewServer(serve)
		_, err := Pull(t.Context(), strings.TrimPrefix(s.URL, "http://")+"/tool:1", "amd64", nil)
		s.Close()
		got := "an error without the login"
		if err == nil || strings.Contains(err.Error(), "verysecret") || strings.Contains(err.Error(), "someuser") {
			got = fmt.Sprint(err)
		}
		attack.Check(t, "a registry leads to an address with a login: "+name, "an error without the login", got)
	}
}
