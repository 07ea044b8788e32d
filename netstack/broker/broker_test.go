package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/testwait"
)

// Features that programs use. These are events that come at once, 100 Continue, WebSocket, a large body both ways, many
// at once, HEAD, and an answer without a body.
func TestProtocols(t *testing.T) {
	release := make(chan struct{})
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: first\n\n")
			_ = http.NewResponseController(w).Flush()
			<-release
			fmt.Fprint(w, "data: second\n\n")
		case "/digest":
			h := sha256.New()
			n, _ := io.Copy(h, r.Body)
			fmt.Fprintf(w, "%d %x", n, h.Sum(nil))
		case "/large":
			b := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
			for range 1 << 8 {
				_, _ = w.Write(b)
			}
		case "/none":
			w.WriteHeader(http.StatusNoContent)
		case "/refuses":
			http.Error(w, "no", http.StatusExpectationFailed)
		case "/upgrade":
			if r.Header.Get("X-Key") != plain || r.Header.Get("Sec-Websocket-Extensions") != "" {
				http.Error(w, "no", 400)
				return
			}
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Echo: "+plain+
				"\r\n\r\n")
			_ = rw.Flush()
			_, _ = io.Copy(conn, rw)
		}
	})
	secrets := []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}, In: everywhere}}
	both(t, func(t *testing.T, h2 bool) {
		r := newRig(t, o, Config{Secrets: secrets})
		c, at := r.client(h2), "https://"+host
		release = make(chan struct{})
		res, err := c.Get(at + "/events")
		if err != nil {
			t.Fatal(err)
		}
		events := bufio.NewReader(res.Body)
		if first, err := events.ReadString('\n'); err != nil || first != "data: first\n" {
			t.Errorf("%q %v", first, err)
		}
		close(release)
		rest, _ := io.ReadAll(events)
		res.Body.Close()
		if string(rest) != "\ndata: second\n\n" || res.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%q %v", rest, res.Header)
		}
		carryBodies(t, c, at)
	})
	upgradeThroughBroker(t, o, secrets)
}

// upgradeThroughBroker checks that a WebSocket gets through.
func upgradeThroughBroker(t *testing.T, o *origin, secrets []Secret) {
	t.Helper()
	r := newRig(t, o, Config{Secrets: secrets})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	conn, err := r.dial()
	if err != nil {
		t.Fatal(err)
	}
	secured := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"http/1.1"}})
	_ = secured.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(secured,
		"GET /upgrade HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
			"Sec-WebSocket-Extensions: permessage-deflate\r\nX-Key: %s\r\n\r\n", host, r.Placeholder("KEY"))
	in := bufio.NewReader(secured)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 101 || res.Header.Get("X-Echo") != r.Placeholder("KEY") {
		t.Fatalf("%v %v", res, err)
	}
	_, _ = io.WriteString(secured, "\x81\x85mask!")
	echo := make([]byte, 7)
	if _, err := io.ReadFull(in, echo); err != nil || string(echo) != "\x81\x85mask!" {
		t.Errorf("%q %v", echo, err)
	}
	secured.Close()
	r.served.Wait() // the guest's end ends everything
}

// carryBodies checks bodies that are large, refused, expected and missing.
func carryBodies(t *testing.T, c *http.Client, at string) {
	t.Helper()
	body := strings.Repeat("0123456789abcdef", 1<<20)
	if _, text := do(t, c, "POST", at+"/digest", http.Header{"Expect": {"100-continue"}},
		body); text != fmt.Sprintf("%d %x", len(body), sha256.Sum256([]byte(body))) {
		t.Errorf("%q", text)
	}
	if res, _ := do(t, c, "POST", at+"/refuses", http.Header{"Expect": {"100-continue"}},
		body); res.StatusCode != http.StatusExpectationFailed {
		t.Errorf("%d", res.StatusCode)
	}
	if _, text := do(t, c, "GET", at+"/large", nil, ""); len(text) != 1<<24 {
		t.Errorf("%d bytes", len(text))
	}
	if res, text := do(t, c, "GET", at+"/none", nil, ""); res.StatusCode != 204 || text != "" ||
		res.Header.Get("Content-Type") != "" {
		t.Errorf("%d %q", res.StatusCode, text)
	}
	var group sync.WaitGroup
	for i := range 50 {
		group.Go(func() {
			want := fmt.Sprint(i)
			if _, text := do(t, c, "POST", at+"/digest", nil, want); text != fmt.Sprintf("%d %x", len(want),
				sha256.Sum256([]byte(want))) {
				t.Errorf("%d: %q", i, text)
			}
		})
	}
	group.Wait()
}

// If a guest cancels, the request ends at the server. One connection carries thousands of requests in sequence, and
// nothing is left at the end.
func TestEnds(t *testing.T) {
	runtime.GC()
	before := runtime.NumGoroutine()
	t.Run("", func(t *testing.T) {
		both(t, func(t *testing.T, h2 bool) {
			begun, ended := make(chan struct{}, 1), make(chan struct{})
			o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/" {
					return
				}
				_, _ = io.WriteString(w, "begun")
				_ = http.NewResponseController(w).Flush()
				begun <- struct{}{}
				<-r.Context().Done()
				close(ended)
			})
			r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
			c := r.client(h2)
			for range 300 {
				if res, _ := do(t, c, "GET", "https://"+host+"/", nil, ""); res.StatusCode != 200 {
					t.Fatal(res.Status)
				}
			}
			if r.dialed != 1 {
				t.Errorf("%d connections to the server", r.dialed)
			}
			ctx, cancel := context.WithCancel(t.Context())
			req, _ := http.NewRequestWithContext(ctx, "GET", "https://"+host+"/wait", nil)
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			<-begun
			cancel()
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Error("the server was not told")
			}
			res.Body.Close()
		})
	})
	testwait.Holds(2*time.Second, func() bool { return runtime.NumGoroutine() <= before })
	if now := runtime.NumGoroutine(); now > before {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines, %d before\n%s", now, before, buf[:runtime.Stack(buf, true)])
	}
}

// The end of the run ends everything in progress, on both sides.
func TestCancelled(t *testing.T) {
	begun := make(chan struct{}, 1)
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
	})
	r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
	ctx, cancel := context.WithCancel(t.Context())
	r.ctx = ctx
	failed := make(chan error)
	c := r.client(true)
	go func() {
		_, err := c.Get("https://" + host + "/")
		failed <- err
	}()
	<-begun
	cancel()
	if err := <-failed; err == nil {
		t.Error("the request ended well")
	}
	r.served.Wait()
}

func TestConfig(t *testing.T) {
	ok := Secret{Name: "A", Value: plain, Hosts: []Host{host}}
	with := func(edit func(*Secret)) Config {
		s := ok
		edit(&s)
		return Config{Secrets: []Secret{s}}
	}
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no name":           {with(func(s *Secret) { s.Name = "" }), "no name"},
		"short":             {with(func(s *Secret) { s.Value = "1234567" }), "7 bytes"},
		"long":              {with(func(s *Secret) { s.Value = strings.Repeat("x", maxSecret+1) }), "8193 bytes"},
		"no host":           {with(func(s *Secret) { s.Hosts = nil }), "no host"},
		"an address":        {with(func(s *Secret) { s.Hosts = []Host{"10.0.0.1"} }), "an address"},
		"all hosts":         {with(func(s *Secret) { s.Hosts = []Host{"*"} }), "not a host name"},
		"upper case":        {with(func(s *Secret) { s.Hosts = []Host{"A.example"} }), "not a host name"},
		"a place":           {with(func(s *Secret) { s.In = []Place{"cookie"} }), "place"},
		"a newline":         {with(func(s *Secret) { s.Value = "-----BEGIN\nKEY" }), "control character"},
		"too many":          {Config{Secrets: make([]Secret, maxSecrets+1)}, "65 secrets"},
		"a rule's host":     {Config{Rules: []Rule{{Name: "x", Host: "*."}}}, "not a host name"},
		"a rule's method":   {Config{Rules: []Rule{{Name: "x", Host: host, Methods: []string{"get"}}}}, "method"},
		"a rule's path":     {Config{Rules: []Rule{{Name: "x", Host: host, Path: "repos"}}}, "path"},
		"a rule's encoding": {Config{Rules: []Rule{{Name: "x", Host: host, Path: "/%41"}}}, "path"},
		"a rule's stars":    {Config{Rules: []Rule{{Name: "x", Host: host, Path: "/**/x"}}}, "last segment"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b, err := New(Config{Secrets: []Secret{ok, {Name: "PEM", Value: "-----BEGIN\nKEY", Hosts: []Host{"*.w.example"},
		In: []Place{InBody}}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{host: true, "x.w.example": true, "w.example": false, "xw.example": false,
		"evil.example": false, "": false} {
		if b.Concerns(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	server, client := net.Pipe()
	if err := b.Serve(t.Context(), server, Target{Host: "evil.example", Port: 443, TLS: true}, nil, nil); err == nil {
		t.Error("served a host that is not its own")
	}
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
