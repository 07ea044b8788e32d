package broker

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/unitask/unitask/internal/attack"
)

// A guest that abandons its WebSockets leaves nothing behind: no goroutine waits for a silent server.
func TestAttackTunnelLeft(t *testing.T) {
	o := newOrigin(t, originConfig{http1: true}, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
		_ = rw.Flush()
		_, _ = io.Copy(io.Discard, conn)
	})
	r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA())
	const tunnels = 40
	for range tunnels {
		conn, err := r.dial()
		if err != nil {
			t.Fatal(err)
		}
		secured := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: host, NextProtos: []string{"http/1.1"}})
		fmt.Fprintf(secured, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", host)
		from := bufio.NewReader(secured)
		if res, err := http.ReadResponse(from, nil); err != nil || res.StatusCode != 101 {
			t.Fatal(res, err)
		}
		if _, err := io.ReadFull(from, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
		secured.Close()
	}
	r.served.Wait()
	left := 0
	for until := time.Now().Add(5 * time.Second); ; runtime.Gosched() {
		stacks := make([]byte, 4<<20)
		if left = strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "broker.(*redactReader).Read"); left == 0 ||
			time.Now().After(until) {
			break
		}
	}
	attack.Check(t, fmt.Sprintf("%d WebSockets that the guest leaves", tunnels), "0 readers are left",
		fmt.Sprintf("%d readers are left", left))
}

// stuck is a server that sends nothing, even when its connection is closed.
type stuck struct{ closed chan struct{} }

func (s *stuck) Read([]byte) (int, error) { <-s.closed; return 0, net.ErrClosed }
func (s *stuck) Close() error             { close(s.closed); return nil }

// A close ends a current read.
func TestRedactReaderClosed(t *testing.T) {
	for range 200 {
		r := newRig(t, &origin{}, Config{Secrets: []Secret{{Name: "KEY", Value: plain, Hosts: []Host{host}}}})
		body := redaction{swapper: r.redactor(host, true, nil)}.body(newReadAhead(&stuck{make(chan struct{})}, &r.ahead),
			func() error { return nil })
		ended := make(chan error)
		go func() {
			_, err := body.Read(make([]byte, 10))
			ended <- err
		}()
		body.Close()
		if err := <-ended; err == nil {
			t.Fatal("no error")
		}
	}
}

// Two names of one value, and a value in another, are not an exposure if the request contained one of them.
func TestAttackSameValue(t *testing.T) {
	const part = "Zk3vQ8sXw1Lr7Tn5"
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
		_, text, _ := strings.Cut(r.Header.Get("Authorization"), "app:")
		fmt.Fprint(w, r.Header.Get("Authorization"), " ", text)
	})
	both(t, func(t *testing.T, h2 bool) {
		for name, row := range map[string]struct{ one, other string }{
			"the same":        {plain, plain},
			"in upper case":   {plain, strings.ToUpper(plain)},
			"part of another": {part, "app:" + part},
		} {
			r := newRig(t, o, Config{Secrets: []Secret{{Name: "ONE", Value: row.one, Hosts: []Host{host}},
				{Name: "OTHER", Value: row.other, Hosts: []Host{host}}}})
			c := r.client(h2)
			got := ""
			for range maxExposed + 1 {
				res, text := do(t, c, "GET", "https://"+host+"/", http.Header{"Authorization": {r.Placeholder("OTHER")}}, "")
				got = fmt.Sprint(res.StatusCode)
				if strings.Contains(strings.ToLower(text), strings.ToLower(row.one)) {
					got += " with the value"
				}
			}
			attack.Check(t, fmt.Sprintf("an echo of a secret, where the value of another is %s, HTTP/2 %t", name, h2), "200",
				got)
		}
	})
}

// A signed query is not valid for longer than the run, however the time is written. A signature in a field does not
// sign a link.
func TestAttackSignedExpiry(t *testing.T) {
	var real http.Request
	o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) { real = *r })
	r := newRig(t, o, Config{MaxSigned: time.Minute, Secrets: []Secret{{Name: "KEY", Value: awsKey, Hosts: []Host{host},
		In: []Place{InSigV4}}}})
	c, creds := r.client(true), aws.Credentials{AccessKeyID: "AKIA", SecretAccessKey: r.Placeholder("KEY")}
	for _, query := range []string{
		"X-Amz-Expires=604800",
		"X-Amz-Expires=%3604800",
		"X%2dAmz-Expires=604800",
		"a=X-Amz-Expires=604800&X-Amz-Expires=%3604800",
		"XX-Amz-Expires=604800&X-Amz-Expires=%3604800",
		"X-Amz-Expires=30&X-Amz-Expires=604800",
		"X-Amz-Expires=30&x-amz-expires=604800",
		"X-Amz-Expires=30&X-Amz-Expires=604800;",
		"X-Amz-Expires=30&X-Amz-Expires=604800%zz",
		"a=1",
	} {
		for _, field := range []bool{false, true} {
			real = http.Request{}
			if field {
				query += "&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F" + time.Now().UTC().Format("20060102") +
					"%2Feu-central-1%2Fs3%2Faws4_request&X-Amz-SignedHeaders=host"
			}
			req, _ := http.NewRequest("GET", "https://"+host+"/bucket/key?"+query, nil)
			s := signature{scope: []string{time.Now().UTC().Format("20060102"), "eu-central-1", "s3", sigV4End},
				fields: []string{"host"}, date: time.Now().UTC().Format(sigV4Date), query: !field}
			credential := "AKIA/" + strings.Join(s.scope, "/")
			if field {
				req.Header.Set("X-Amz-Date", s.date)
				req.Header.Set(sigV4Body, "UNSIGNED-PAYLOAD")
			} else {
				req.URL.RawQuery += "&X-Amz-Algorithm=" + sigV4 + "&X-Amz-Credential=" +
					strings.ReplaceAll(credential, "/", "%2F") + "&X-Amz-Date=" + s.date + "&X-Amz-SignedHeaders=host"
			}
			value := s.of(creds.SecretAccessKey, "GET", host, req.URL.EscapedPath(), req.URL.RawQuery, req.Header, 0,
				"UNSIGNED-PAYLOAD", false)
			if field {
				req.Header.Set("Authorization", sigV4+" Credential="+credential+", SignedHeaders=host, Signature="+value)
			} else {
				req.URL.RawQuery += "&X-Amz-Signature=" + value
			}
			res, err := c.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			got := "403, or a minute at most"
			if res.StatusCode != 403 {
				for pair := range strings.SplitSeq(real.URL.RawQuery, "&") {
					if strings.Contains(strings.ToLower(strings.ReplaceAll(pair, "%2d", "-")), "expires") &&
						strings.Contains(pair, "04800") && !strings.HasPrefix(pair, "a=") && !strings.HasPrefix(pair, "XX") {
						got = "signed: " + pair
					}
				}
			}
			attack.Check(t, fmt.Sprintf("a signature, in a field %t, of a link with %.60s", field, query),
				"403, or a minute at most", got)
		}
	}
}

// A request's signature is not in its own answer. That also holds for a guessable key, which could be computed from it,
// and if many other signatures were made meanwhile.
func TestAttackSignatureOwn(t *testing.T) {
	const waiting = 2 * maxSignatures
	for name, value := range map[string]string{"of AWS": awsKey, "that can be guessed": "minioadmin"} {
		came, all := make(chan struct{}, waiting), make(chan struct{})
		o := newOrigin(t, originConfig{}, func(w http.ResponseWriter, r *http.Request) {
			came <- struct{}{}
			<-all
			_, signature, _ := strings.Cut(r.Header.Get("Authorization"), "Signature=")
			fmt.Fprint(w, signature)
		})
		r := newRig(t, o, Config{Secrets: []Secret{{Name: "KEY", Value: value, Hosts: []Host{host}, In: []Place{InSigV4}}}})
		clients := []*http.Client{r.client(true), r.client(true)}
		through := make(chan int, waiting)
		for i := range waiting {
			go func() {
				req, _ := http.NewRequest("GET", fmt.Sprintf("https://%s/%d", host, i), nil)
				if err := v4.NewSigner().SignHTTP(context.Background(),
					aws.Credentials{AccessKeyID: "AKIA", SecretAccessKey: r.Placeholder("KEY")}, req, "UNSIGNED-PAYLOAD", "s3",
					"eu-central-1", time.Now()); err != nil {
					t.Error(err)
				}
				_, own, _ := strings.Cut(req.Header.Get("Authorization"), "Signature=")
				req.Header.Set(sigV4Body, "UNSIGNED-PAYLOAD")
				n := 0
				if res, err := clients[i%len(clients)].Do(req); err == nil {
					text, _ := io.ReadAll(res.Body)
					res.Body.Close()
					if !bytes.Equal(text, []byte(own)) {
						n = 1
					}
				}
				through <- n
			}()
		}
		for range waiting {
			<-came
		}
		close(all)
		n := 0
		for range waiting {
			n += <-through
		}
		attack.Check(t, fmt.Sprintf("answers with their requests' signatures by a key %s, %d at once", name, waiting),
			"0 with the real one", fmt.Sprintf("%d with the real one", n))
	}
}

// A request that the guest cancels was sent all the same, and is not a refusal.
func TestAttackGivenUp(t *testing.T) {
	both(t, func(t *testing.T, h2 bool) {
		came := make(chan struct{}, 1)
		o := newOrigin(t, originConfig{}, func(_ http.ResponseWriter,
			r *http.Request) {
			came <- struct{}{}
			<-r.Context().Done()
		})
		r := newRig(t, o, Config{Rules: []Rule{{Name: "all", Host: host}}})
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "POST", "https://"+host+"/given-up", nil)
		go func() { <-came; cancel() }()
		if res, err := r.client(h2).Do(req); err == nil {
			res.Body.Close()
		}
		x := r.logged(1)
		attack.Check(t, fmt.Sprintf("a request that is given up once it was sent, HTTP/2 %t", h2), "sent true",
			fmt.Sprintf("sent %t", x.Sent))
		refused := newRig(t, o, Config{Rules: []Rule{{Name: "some", Host: host, Methods: []string{"GET"}}}})
		do(t, refused.client(h2), "POST", "https://"+host+"/", nil, "")
		if x := refused.logged(1); x.Sent || x.Allowed {
			t.Errorf("%+v", x)
		}
	})
}

// A signature adds the work of one text to look for: the forms of the values are not computed again.
func TestAttackSignatureCost(t *testing.T) {
	r := newRig(t, &origin{}, Config{Secrets: []Secret{{Name: "KEY", Value: awsKey, Hosts: []Host{host},
		In: []Place{InSigV4}},
		{Name: "LONG", Value: strings.Repeat("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEX&<", maxSecret/40), Hosts: []Host{host}}}})
	r.redactor(host, false, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const n = 100
	for i := range n {
		r.signed(&exchange{}, &r.cfg.Secrets[0], fmt.Sprintf("%064d", i), fmt.Sprintf("%064x", -i))
		r.redactor(host, false, nil)
	}
	runtime.ReadMemStats(&after)
	got := "256 KiB at most"
	if each := (after.TotalAlloc - before.TotalAlloc) / n; each > 256<<10 {
		got = fmt.Sprint(each>>10, " KiB")
	}
	attack.Check(t, "memory that one more signature takes, beside a secret of 8 KiB", "256 KiB at most", got)
}
