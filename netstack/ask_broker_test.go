package netstack

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/netstack/broker"
)

// askedGuest is a guest whose requests to *.w.example are inspected and need an answer.
func askedGuest(t *testing.T, ask func(context.Context, Question) Answer) (g *guestOS, net1 *internet,
	client func(protos ...string) *http.Client) {
	t.Helper()
	server, roots := secureServer(t, func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprint(w, r.Proto, " ", r.Method, " ", r.URL.Path)
	}, "api.w.example")
	net1 = &internet{names: map[string][]string{"api.w.example": {"93.184.216.34"}, "inside.w.example": {"10.0.0.1"}},
		servers: map[string]string{"93.184.216.34:443": server.Listener.Addr().String()}}
	b, err := broker.New(broker.Config{Roots: roots, Rules: []broker.Rule{{Name: "no admin", Host: "*.w.example",
		Path: "/admin/**", Deny: true}}})
	if err != nil {
		t.Fatal(err)
	}
	g = newGuest(t, Config{Rules: []Rule{askRule("*.w.example")}, Upstream: net1.upstream(), Broker: b,
		Asker: NewAsker(ask)})
	trusted := roots.Clone()
	trusted.AppendCertsFromPEM(b.CA())
	return g, net1, func(protos ...string) *http.Client {
		tr := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: trusted, NextProtos: protos},
			Protocols: new(http.Protocols), DialContext: func(_ context.Context, _, to string) (net.Conn, error) {
				name, _, err := net.SplitHostPort(to)
				if err != nil {
					return nil, err
				}
				return g.dial(name, 443)
			}}
		tr.Protocols.SetHTTP1(len(protos) > 1 || protos[0] != "h2")
		tr.Protocols.SetHTTP2(protos[0] == "h2")
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: 20 * time.Second}
	}
}

func (i *internet) lookedUp() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.lookups
}

// If requests are inspected, the question shows the waiting request. No name is looked up before the answer, and "once"
// applies to one request only.
func TestAskRequest(t *testing.T) {
	for _, protos := range [][]string{{"http/1.1"}, {"h2", "http/1.1"}, {"h2"}} {
		t.Run(strings.Join(protos, " "), func(t *testing.T) {
			var mu sync.Mutex
			var asked []string
			answers := map[string]Answer{"/once": {Allow: true, Once: true}, "/never": {Once: true, Why: "denied by somebody"},
				"/run": {Allow: true}}
			var net1 *internet
			early := 0
			g, internet1, client := askedGuest(t, func(_ context.Context, q Question) Answer {
				mu.Lock()
				defer mu.Unlock()
				if len(asked) == 0 {
					early = net1.lookedUp()
				}
				asked = append(asked, q.Method+" "+q.Path)
				return answers[q.Path]
			})
			net1 = internet1
			c := client(protos...)
			do := func(method, path string) string {
				req, err := http.NewRequest(method, "https://api.w.example"+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				res, err := c.Do(req)
				if err != nil {
					return err.Error()
				}
				defer res.Body.Close()
				body, _ := io.ReadAll(res.Body)
				return fmt.Sprint(res.StatusCode, " ", strings.TrimSpace(string(body)))
			}
			proto := "HTTP/1.1"
			if protos[0] == "h2" && len(protos) == 1 {
				proto = "HTTP/2.0"
			}
			for _, row := range []struct{ method, path, want string }{
				{"GET", "/admin/x", "403 unitask: GET api.w.example/admin/x: the rule denies it (no admin)"}, // and nobody is asked
				{"GET", "/once", "200 " + proto + " GET /once"},
				{"DELETE", "/once", "200 " + proto + " DELETE /once"},
				{"GET", "/run", "200 " + proto + " GET /run"},
				{"POST", "/other", "200 " + proto + " POST /other"},
			} {
				attack.Check(t, row.method+" "+row.path+" by "+strings.Join(protos, " "), row.want, do(row.method, row.path))
			}
			attack.Check(t, "requests that were asked about", "[GET /once DELETE /once GET /run]", fmt.Sprint(asked))
			attack.Check(t, "names looked up before the first answer", "0", fmt.Sprint(early))
			if left := g.n.Connections(); len(left) > 1 {
				t.Errorf("%d connections", len(left))
			}
		})
	}
}

// We answer a denied request, and its name is not looked up. No answer allows a private address. A guest that
// disconnects, or whose run ends, leaves no open question.
func TestAttackAskRequest(t *testing.T) {
	said := Answer{Why: "denied by somebody"}
	var last Question
	_, net1, client := askedGuest(t, func(_ context.Context, q Question) Answer { last = q; return said })
	get := func(c *http.Client, at string) string {
		res, err := c.Get(at)
		if err != nil {
			return "no answer"
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return fmt.Sprint(res.StatusCode, " ", strings.TrimSpace(string(body)))
	}
	c := client("http/1.1")
	attack.Check(t, "a denied request", "403 unitask: not approved: denied by somebody", get(c, "https://api.w.example/a"))
	attack.Check(t, "the next one", "403 unitask: not approved: denied by somebody", get(c, "https://api.w.example/b"))
	attack.Check(t, "the next connection", "no answer", get(client("http/1.1"), "https://api.w.example/c"))
	attack.Check(t, "names looked up for denied requests", "0", fmt.Sprint(net1.lookedUp()))
	said = Answer{Allow: true}
	if got := get(client("http/1.1"), "https://inside.w.example/"); !strings.HasPrefix(got, "502 ") {
		t.Errorf("an approved request to a private address: %s", got)
	}

	_, _, client = askedGuest(t, func(_ context.Context,
		q Question) Answer {
		last = q
		return Answer{Once: true, Why: "no"}
	})
	c = client("h2")
	for _, path := range []string{"/%1b%5b2J%00", "/" + strings.Repeat("a", 4000), "/\u202egnp.exe",
		"/a%0aunitask: allow it%3f"} {
		get(c, "https://api.w.example"+path)
		ugly := strings.ContainsFunc(last.Method+last.Path, func(r rune) bool { return r < ' ' || r > '~' })
		attack.Check(t, fmt.Sprintf("a question about %.30q", path), "printable, bounded",
			map[bool]string{false: "printable, bounded"}[ugly || len(last.Path) > 4*maxLogged])
	}

	begun, ended := make(chan struct{}, 1), make(chan struct{}, 1)
	g, _, client := askedGuest(t, func(ctx context.Context, _ Question) Answer {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return Answer{Allow: true}
	})
	go get(client("http/1.1"), "https://api.w.example/late")
	<-begun
	g.n.Cut()
	<-ended
	if left := g.n.Connections(); len(left) != 0 {
		t.Error(left)
	}
}
