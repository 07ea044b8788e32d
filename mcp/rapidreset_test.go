package mcp_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testcert"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/mcp"
)

// A caller opens streams of HTTP/2 and resets each at once (CVE-2023-44487). The server answers others meanwhile, and
// keeps nothing.
func TestAttackRapidReset(t *testing.T) {
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	file := filepath.Join(t.TempDir(), "tokens")
	const tokens = "hostile hostile-token-0123456789\nquiet quiet-token-0123456789\n"
	if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := mcp.TokenFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cert := testcert.For(t, "server.test")
	s := newServer(t, rt, mcp.Options{Dir: t.TempDir()})
	at := make(chan net.Addr, 1)
	go func() {
		_ = s.ServeHTTP(t.Context(), mcp.HTTPOptions{Addr: "127.0.0.1:0", Auth: auth,
			TLS: &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}},
			func(a net.Addr) { at <- a })
	}()
	addr := (<-at).String()
	with := &tls.Config{RootCAs: testcert.Roots(cert), NextProtos: []string{"h2"},
		ServerName: "server.test"}
	before := runtime.NumGoroutine()
	conn, err := tls.Dial("tcp", addr, with)
	if err != nil || conn.ConnectionState().NegotiatedProtocol != "h2" {
		t.Fatal("no HTTP/2", err)
	}
	defer conn.Close()
	most, sent := 0, make(chan int)
	go func() { sent <- resetStreams(conn, addr, 30_000) }()
	quiet := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: with.RootCAs,
		ServerName: "server.test"}}}
	for ended := false; !ended; {
		select {
		case n := <-sent:
			if n < 1000 { // then the server has had enough
				t.Errorf("only %d streams were reset", n)
			}
			ended = true
		default:
		}
		most = max(most, runtime.NumGoroutine())
		attackQuiet(t, quiet, addr)
	}
	attack.Check(t, "30,000 streams that are reset: goroutines at once", "at most 300", map[bool]string{
		true: "at most 300", false: fmt.Sprint(most)}[most-before <= 300])
	conn.Close()
	quiet.CloseIdleConnections()
	testwait.Within(t, 10*time.Second, "the end of the goroutines", func() bool {
		return runtime.NumGoroutine() <= before+5
	})
}

// attackQuiet asks as another caller, and must be answered soon.
func attackQuiet(t *testing.T, client *http.Client, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr+"/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
}

// resetStreams opens streams and resets them, until the server has had enough. It returns how many there were.
func resetStreams(conn net.Conn, addr string, most int) int {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return 0
	}
	framer := http2.NewFramer(conn, conn)
	go func() {
		for {
			if _, err := framer.ReadFrame(); err != nil {
				return
			}
		}
	}()
	if framer.WriteSettings() != nil {
		return 0
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for n := range most {
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":path", "/mcp"}, {":scheme", "https"}, {":authority", addr},
			{"authorization", "Bearer hostile-token-0123456789"}, {"content-type", "application/json"}} {
			_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		id := uint32(2*n + 1)
		h := http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}
		if framer.WriteHeaders(h) != nil || framer.WriteRSTStream(id, http2.ErrCodeCancel) != nil {
			return n
		}
	}
	return most
}
