package embedded

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testwait"
)

// said is a log that a test reads.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// pair is a cluster of two servers in this process.
func pair(t *testing.T, more ...string) (servers [2]*Server, log *said) {
	t.Helper()
	log = &said{}
	ports := freePorts(t, 2)
	var starting sync.WaitGroup
	var errs [2]error
	for i := range servers {
		c := Cluster{Listen: ports[i], Routes: routesTo(append([]string{ports[1-i]}, more...)...), Key: testKey}
		home := t.TempDir()
		starting.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			servers[i], errs[i] = Start(ctx, home, Options{Cluster: &c, Log: slog.New(slog.NewTextHandler(log, nil))})
		})
	}
	starting.Wait()
	for i, s := range servers {
		if errs[i] != nil {
			t.Fatal(errs[i], log)
		}
		t.Cleanup(s.Close)
	}
	return servers, log
}

func (s *Server) routes() string {
	return s.nats.ClusterAddr().String()
}

// talk is the first message of a NATS node on a route.
const talk = "INFO {\"server_id\":\"stranger\",\"server_name\":\"stranger\",\"version\":\"2.15.0\",\"proto\":1," +
	"\"host\":\"127.0.0.1\",\"port\":1," +
	"\"headers\":true,\"max_payload\":1048576,\"jetstream\":true,\"cluster\":\"unitask\",\"lnoc\":true}\r\n" +
	"CONNECT {\"verbose\":false,\"pedantic\":false,\"name\":\"stranger\",\"cluster\":\"unitask\"}\r\nRS+ $G >\r\n" +
	"RS+ $SYS >\r\nPING\r\n"

// A stranger without the key on the route port receives no byte of NATS and can't join the cluster, whatever it sends.
// If a server is directed to a stranger, it reveals nothing either.
func TestAttackRoutes(t *testing.T) {
	if testing.Short() {
		t.Skip("servers of NATS; not in -short")
	}
	t.Parallel()
	_, other, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := routeTLS(bytes.Repeat([]byte{0x5b}, KeySize))
	if err != nil {
		t.Fatal(err)
	}
	lure, caught := listenAsRoute(t, foreign) // one of the routes leads to a stranger
	servers, log := pair(t, lure)
	at, routes := servers[0].routes(), servers[0].nats.NumRoutes()
	var stolen tls.Certificate // the real server's certificate, which every client sees, without its key
	show := func(cert tls.Certificate) func(net.Conn) (net.Conn, error) {
		return func(conn net.Conn) (net.Conn, error) {
			c := tls.Client(conn, &tls.Config{InsecureSkipVerify: true,
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }})
			if err := c.Handshake(); err != nil {
				return nil, err
			}
			stolen = tls.Certificate{Certificate: [][]byte{c.ConnectionState().PeerCertificates[0].Raw}, PrivateKey: other}
			return c, nil
		}
	}
	for _, row := range []struct {
		what string
		wrap func(net.Conn) (net.Conn, error)
	}{
		{"in clear", func(c net.Conn) (net.Conn, error) { return c, nil }},
		{"TLS without a certificate", show(tls.Certificate{})},
		{"TLS with another cluster's certificate", show(foreign.Certificates[0])},
		{"TLS with this cluster's certificate and another key",
			func(c net.Conn) (net.Conn, error) { return show(stolen)(c) }},
	} {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		c, err := row.wrap(conn)
		if err == nil {
			_, _ = io.WriteString(c, talk)
			var heard []byte
			heard, err = io.ReadAll(c)
			got := "at most an alert"
			// a TLS alert has 7 bytes
			if bytes.Contains(heard, []byte("INFO")) || bytes.Contains(heard, []byte("unitask")) || len(heard) > 16 {
				got = string(heard)
			}
			attack.Check(t, "a stranger on the port of routes, "+row.what+": hears", "at most an alert", got)
		}
		if errors.Is(err, context.DeadlineExceeded) || err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: it is not let go: %v", row.what, err)
		}
		conn.Close()
	}
	if len(stolen.Certificate) == 0 {
		t.Error("the attempt with this cluster's certificate was not made")
	} else if c, err := x509.ParseCertificate(stolen.Certificate[0]); err != nil ||
		len(c.DNSNames)+len(c.IPAddresses) > 0 {
		t.Errorf("%v: the certificate says more than it needs to: %+v", err, c)
	}
	select {
	case text := <-caught:
		if text != "" {
			t.Errorf("a server says to a stranger: %q", text)
		}
	case <-time.After(time.Minute):
		t.Error("no server tried the route to the stranger")
	}

	// Complete servers; one of them would receive all traffic of the cluster.
	joinWithoutKey(t, at, &servers, foreign, routes, log)
}

// joinWithoutKey starts servers without the key, which try to join.
func joinWithoutKey(t *testing.T, at string, servers *[2]*Server, foreign *tls.Config, routes int, log *said) {
	t.Helper()
	spy := func(change func(*server.Options)) { joinAsSpy(t, at, servers[0], change) }
	spy(func(*server.Options) {})
	spy(func(o *server.Options) {
		o.Cluster.TLSConfig = &tls.Config{InsecureSkipVerify: true}
		o.Cluster.TLSTimeout = 10
	})
	spy(func(o *server.Options) {
		c := foreign.Clone()
		c.VerifyConnection = nil
		o.Cluster.TLSConfig, o.Cluster.TLSTimeout = c, 10
	})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(func() { cancel() })
	if _, err := Start(ctx, t.TempDir(), Options{Cluster: &Cluster{Listen: freePorts(t, 1)[0], Routes: routesTo(at),
		Key: bytes.Repeat([]byte{0x5b}, KeySize)}}); err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server with another key: %v", err)
	}
	if now := servers[0].nats.NumRoutes(); now != routes {
		t.Errorf("there are %d routes, and were %d", now, routes)
	}
	if text := log.String(); !strings.Contains(text, errStranger.Error()) || strings.Count(text, "NATS: ") > 40 {
		t.Errorf("the log does not say why, or says too much: %s", text)
	}
	if now := servers[1].standing(); !now.leads || now.here != 2 || now.known != 2 {
		t.Errorf("the cluster after all that: %+v", now)
	}
}

// listenAsRoute is a stranger at the end of a route. It returns its address, and the first data from a server that
// connects.
func listenAsRoute(t *testing.T, foreign *tls.Config) (addr string, caught chan string) {
	t.Helper()
	lure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lure.Close() })
	caught = make(chan string, 1)
	go func() {
		for first := true; ; first = false {
			conn, err := lure.Accept()
			if err != nil {
				return
			}
			if !first {
				conn.Close()
				continue
			}
			stranger := tls.Server(conn, &tls.Config{Certificates: foreign.Certificates, ClientAuth: tls.RequestClientCert})
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, _ = io.WriteString(stranger, talk)
			text, _ := io.ReadAll(stranger)
			caught <- string(text)
			conn.Close()
		}
	}()
	return lure.Addr().String(), caught
}

// joinAsSpy starts a NATS server without the key. The server tries to join the cluster of member, and to read what its
// users publish.
func joinAsSpy(t *testing.T, at string, member *Server, change func(*server.Options)) {
	t.Helper()
	opts := &server.Options{ServerName: "spy", Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
		Routes: server.RoutesFromStr("nats://" + at), Cluster: server.ClusterOpts{Name: defaultName, Host: "127.0.0.1",
			Port: -1}}
	change(opts)
	ns, err := server.NewServer(opts)
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer ns.WaitForShutdown()
	defer ns.Shutdown()
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the spy does not start")
	}
	nc, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	heard := make(chan *nats.Msg, 64)
	if _, err := nc.ChanSubscribe("unitask.>", heard); err != nil {
		t.Fatal(err)
	}
	user, err := nats.Connect(member.at.URL, nats.UserInfo(member.at.User, member.at.Password))
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	const none = "0 routes, 0 messages"
	got := none
	testwait.Holds(2*time.Second, func() bool { // a refused route is tried again each second
		if err := errors.Join(user.Publish("unitask.out.default.run", []byte("secret")), user.Flush()); err != nil {
			t.Fatal(err)
		}
		got = fmt.Sprintf("%d routes, %d messages", ns.NumRoutes(), len(heard))
		return got != none
	})
	attack.Check(t, "a server of NATS without the key joins: it has", none, got)
}

// A silent client on the route port is disconnected, and does not block others.
func TestAttackSilentRoutes(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a time limit; not in -short")
	}
	t.Parallel()
	servers, _ := pair(t)
	var silent []net.Conn
	for range 200 {
		conn, err := net.Dial("tcp", servers[0].routes())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	begin := time.Now()
	for _, conn := range silent {
		_ = conn.SetReadDeadline(begin.Add(routeTime + 30*time.Second))
		if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, context.DeadlineExceeded) || err == nil ||
			strings.Contains(fmt.Sprint(err), "timeout") {
			t.Fatalf("%d bytes, %v after %v", n, err, time.Since(begin))
		}
	}
	attack.Check(t, "200 routes that say nothing are let go within 9 seconds", "true",
		fmt.Sprint(time.Since(begin) <= 9*time.Second))
	if now := servers[0].standing(); !now.leads || now.here != 2 {
		t.Errorf("%+v", now)
	}
}
