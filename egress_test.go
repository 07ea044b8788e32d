package unitask_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/image"
	"github.com/unitask/unitask/internal/testarchive"
	"github.com/unitask/unitask/internal/testcert"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/netstack"
)

// site is the internet of the egress tests: names with public addresses, and local servers behind them.
type site struct {
	ca       string
	file     string // which contains it
	upstream netstack.Upstream
}

const publicAddr = "93.184.216.34"

func newSite(t testing.TB, more ...func(*http.ServeMux)) *site {
	t.Helper()
	handler := http.NewServeMux()
	for _, add := range more {
		add(handler)
	}
	handler.HandleFunc("/", func(w http.ResponseWriter,
		r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Proto, r.Method, r.Host)
	})
	handler.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+r.URL.Query().Get("to")+"/", http.StatusFound)
	})
	handler.HandleFunc("/digest", func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, _ := io.Copy(h, r.Body)
		fmt.Fprint(w, n, " ", hex.EncodeToString(h.Sum(nil)))
	})
	handler.HandleFunc("/big", func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(bigBody) })
	handler.HandleFunc("/key", func(w http.ResponseWriter, r *http.Request) {
		verdict, sent := "no key", r.Header.Get("Authorization")
		if sent == "Bearer sk-Vn41xZp0Qw7eRt6y" {
			verdict = "with the key"
		}
		fmt.Fprintf(w, "%s; you sent %s", verdict, sent)
	})
	handler.HandleFunc("/ws", webSocketEcho)
	plain, secure := httptest.NewServer(handler), httptest.NewUnstartedServer(handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // the tests check refused handshakes
	cert := testcert.For(t, "good.example", "a.b.wild.example")
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	s := &site{ca: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))}
	s.file = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(s.file, []byte(s.ca), 0o644); err != nil {
		t.Fatal(err)
	}
	s.upstream = netstack.Upstream{
		Proxy: func(string, uint16) *url.URL { return nil },
		Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			switch name {
			case "good.example", "a.b.wild.example":
				return []netip.Addr{netip.MustParseAddr(publicAddr)}, nil
			case "inside.example":
				return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
			}
			return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			real := to.String()
			switch real {
			case publicAddr + ":80":
				real = plain.Listener.Addr().String()
			case publicAddr + ":443":
				real = secure.Listener.Addr().String()
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", real)
		},
	}
	return s
}

var bigBody = bytes.Repeat([]byte("0123456789abcdef"), 50<<20/16)

// webSocketEcho answers one short text frame (RFC 6455).
func webSocketEcho(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(rw,
		"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:]))
	_ = rw.Flush()
	var h [6]byte
	if _, err := io.ReadFull(rw, h[:]); err != nil {
		return
	}
	body := make([]byte, h[1]&0x7f)
	if _, err := io.ReadFull(rw, body); err != nil {
		return
	}
	for i := range body {
		body[i] ^= h[2+i%4]
	}
	_, _ = rw.Write(append([]byte{0x81, byte(len(body))}, body...))
	_ = rw.Flush()
	_, _ = rw.ReadByte()
}

type egressCase struct {
	name   string
	req    unitask.Request
	stdout string
	log    string // part of a line of the netlog
}

// egressCases are the cases of TestEgress. A server listens on a port of our loopback.
func egressCases(web *site, port string) []egressCase {
	good, wild := []string{"good.example"}, []string{"*.wild.example"}
	toGood := unitask.Request{AllowNet: good}
	return []egressCase{
		{
			name:   "HTTP",
			req:    toGood,
			stdout: "HTTP/1.1 GET good.example\n",
			log:    `"name":"good.example","addr":"198.18.0.1","port":80,"verdict":"allowed","rule":"net good.example"`,
		},
		{
			name:   "HTTPS with a CA of its own",
			req:    unitask.Request{AllowNet: good, CA: web.ca},
			stdout: "HTTP/1.1 GET good.example\n",
			log:    `"port":443,"verdict":"allowed"`,
		},
		{"HTTPS without it", toGood, "DEPTH_ZERO_SELF_SIGNED_CERT\n", ``},
		{"a worker thread trusts that CA", unitask.Request{AllowNet: good, CA: web.ca}, "HTTP/1.1 GET good.example\n", ``},
		{
			name: "its own NODE_EXTRA_CA_CERTS is heeded",
			req: unitask.Request{AllowNet: good, Env: map[string]string{"NODE_EXTRA_CA_CERTS": "/tmp/own.pem"},
				Files: []unitask.Mount{{Host: web.file, Guest: "/tmp/own.pem"}}},
			stdout: "HTTP/1.1 GET good.example\n",
		},
		{
			name: "and one that is not there",
			req:  unitask.Request{AllowNet: good, CA: web.ca, Env: map[string]string{"NODE_EXTRA_CA_CERTS": "/nowhere.pem"}},
			stdout: "Ignoring extra certs from `/nowhere.pem`, load failed: ENOENT: no such file or directory, " +
				"open '/nowhere.pem'\nHTTP/1.1 GET good.example\n",
		},
		{"without a CA nothing is trusted", toGood, "undefined\nDEPTH_ZERO_SELF_SIGNED_CERT\n", ``},
		{
			name:   "HTTP/2",
			req:    unitask.Request{AllowNet: wild, CA: web.ca},
			stdout: "HTTP/2.0 GET a.b.wild.example:443\n",
			log:    `"rule":"net *.wild.example"`,
		},
		{"WebSocket", toGood, "hello\n", ``},
		{"keep-alive and many at once", toGood, "1 20\n", ``},
		{"a name that is not allowed", toGood, "ENOTFOUND\n", `"name":"evil.example.","verdict":"denied"`},
		{"the apex of a wildcard", unitask.Request{AllowNet: wild}, "ENOTFOUND\n", ``},
		{"another port", toGood, "ECONNREFUSED\n", `"reason":"no rule allows this port"`},
		{"a redirect to a private host", toGood, "ECONNREFUSED\n", `"addr":"10.0.0.1","port":80,"verdict":"denied"`},
		{"a redirect to metadata", toGood, "ECONNREFUSED\n", `"addr":"169.254.169.254"`},
		{
			name:   "a name that leads to our loopback",
			req:    unitask.Request{AllowNet: []string{"inside.example"}},
			stdout: "ECONNREFUSED\n",
			log:    `leads to an address that is not public`,
		},
		{"another Host on the connection", toGood, "ECONNRESET\n", `"reason":"HTTP for evil.example"`},
		{"another name in TLS", toGood, "ECONNRESET\n", `"reason":"TLS for evil.example"`},
		{"DNS of another kind", toGood, "ENOTFOUND\nENODATA\n", `"name":"secret.good.example."`},
		{"UDP to the world", toGood, "silence\n", ``},
		{
			name:   "raw TCP to our loopback",
			req:    unitask.Request{AllowTCP: []string{"127.0.0.1:" + port}},
			stdout: "echo\n",
			log:    `"addr":"127.0.0.1","port":` + port + `,"verdict":"allowed","rule":"tcp 127.0.0.1:` + port,
		},
		{"the same by name", unitask.Request{AllowTCP: []string{"localhost:" + port}}, "echo\n", ``},
		{"another port of our loopback", unitask.Request{AllowTCP: []string{"127.0.0.1:1"}}, "ECONNREFUSED\n", ``},
		{"our loopback by the gateway", unitask.Request{}, "ECONNREFUSED\n", `"addr":"10.0.2.2"`},
		{"a megabyte through the relay, both ways", unitask.Request{AllowTCP: []string{"127.0.0.1:" + port}}, "true\n", ``},
		{"the proxy of the host is not told", unitask.Request{}, "0\n", ``},
		{
			name:   "an upload beyond the limit",
			req:    unitask.Request{AllowNet: good, MaxUpload: 100_000},
			stdout: "cut\n",
			log:    `the run's limit of 100000 bytes up is reached`,
		},
	}
}

// TestEgress tests the network from code in a guest.
func TestEgress(t *testing.T) {
	needVM(t)
	home, web := newHome(t), newSite(t)
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	port := strconv.Itoa(echo.Addr().(*net.TCPAddr).Port)
	programs := testarchive.Open(t, "testdata/egress.txtar")
	cases := egressCases(web, port)
	for i, c := range cases {
		cases[i].req.Code = strings.ReplaceAll(programs.Text(c.name+".js"), "PORT", port)
	}
	for _, kernel := range kernels(t) {
		for i := range 2 * len(cases) {
			c, way, cold := cases[i/2], "clone", i%2 == 1
			if cold {
				way = "cold"
			}
			if !runsNow(cold && c.req.CA == "" && i%8 != 1) { // the host enforces the rules, however the guest began
				continue
			}
			t.Run(string(kernel)+"/"+way+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				slot(t)
				req := c.req
				req.Kernel, req.Timeout, req.Cold = kernel, 30*time.Second, cold
				res, err := unitask.Run(t.Context(), req, unitask.Options{Home: home, Upstream: web.upstream})
				if err != nil || string(res.Stdout) != c.stdout {
					t.Errorf("%v, stdout %q, want %q\n%s", err, res.Stdout, c.stdout, res.Stderr)
				}
				netlog, err := os.ReadFile(filepath.Join(home, "runs", res.RunID, "netlog.jsonl"))
				if err != nil || !strings.Contains(string(netlog), c.log) {
					t.Errorf("the netlog has no %s:\n%s", c.log, netlog)
				}
			})
		}
	}
}

// Child processes and their children trust the run's certificates, too.
func TestEgressCAInChildren(t *testing.T) {
	needVM(t)
	home, web := newHome(t), newSite(t)
	code := testarchive.Open(t, "testdata/egresschildren.txtar").Text("child.js")
	for _, cold := range []bool{false, true} {
		if !runsNow(cold) {
			continue
		}
		res, err := unitask.Run(t.Context(), unitask.Request{Kernel: image.Linux, Cold: cold,
			AllowNet: []string{"good.example"}, CA: web.ca, Code: code, Timeout: 30 * time.Second},
			unitask.Options{Home: home, Upstream: web.upstream})
		if err != nil || string(res.Stdout) != "HTTP/1.1 GET good.example\n" {
			t.Errorf("cold %v: %v, stdout %q\n%s", cold, err, res.Stdout, res.Stderr)
		}
	}
}

// Fifty megabytes each way, with equal digests.
func TestThroughput(t *testing.T) {
	needVM(t)
	home, web := newHome(t), newSite(t)
	sum := sha256.Sum256(bigBody)
	code := testarchive.Open(t, "testdata/throughput.txtar").Text("throughput.js")
	for _, kernel := range kernels(t) {
		t.Run(string(kernel), func(t *testing.T) {
			res, err := unitask.Run(t.Context(), unitask.Request{Kernel: kernel, AllowNet: []string{"good.example"},
				Timeout: 2 * time.Minute, Code: code}, unitask.Options{Home: home, Upstream: web.upstream})
			want := fmt.Sprintf("%x\n%d %x\n", sum, len(bigBody), sum)
			if err != nil || string(res.Stdout) != want {
				t.Errorf("%v: %q, want %q\n%s", err, res.Stdout, want, res.Stderr)
			}
			t.Logf("50 MiB: %s", strings.ReplaceAll(strings.TrimSpace(string(res.Stderr)), "\n", ", "))
		})
	}
}

// Real servers from the distribution, on the host's loopback.
func TestDatabases(t *testing.T) {
	needVM(t)
	home := newHome(t)
	programs := testarchive.Open(t, "testdata/databases.txtar")
	t.Run("redis", func(t *testing.T) {
		port := freePort(t)
		startServer(t, port, "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "")
		res, err := unitask.Run(t.Context(), unitask.Request{AllowTCP: []string{"127.0.0.1:" + port},
			Code: strings.Replace(programs.Text("redis.js"), "PORT", port, 1)}, unitask.Options{Home: home})
		if err != nil || string(res.Stdout) != `"+OK\r\n$5\r\nvalue\r\n"`+"\n" {
			t.Errorf("%v %q %s", err, res.Stdout, res.Stderr)
		}
	})
	t.Run("postgresql", func(t *testing.T) {
		port := freePort(t)
		startPostgres(t, port)
		res, err := unitask.Run(t.Context(), unitask.Request{AllowTCP: []string{"127.0.0.1:" + port}, Args: []string{port},
			Code: programs.Text("postgresql.js")}, unitask.Options{Home: home})
		if err != nil || string(res.Stdout) != "42\n" {
			t.Errorf("%v %q %s", err, res.Stdout, res.Stderr)
		}
	})
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// startServer starts a program and waits until it accepts connections.
func startServer(t *testing.T, port, program string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("no %s on this machine: hack/setup --test installs it", program)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = t.TempDir()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Signal(os.Interrupt); _ = cmd.Wait() })
	testwait.Until(t, program+" comes up", func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func startPostgres(t *testing.T, port string) {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if len(found) == 0 {
		t.Skip("no PostgreSQL on this machine: hack/setup --test installs it")
	}
	dir, err := os.MkdirTemp("", "unitask-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin := filepath.Dir(found[0])
	as := []string{}
	if os.Getuid() == 0 { // it refuses to run as root
		if out, err := exec.Command("chown", "nobody", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		as = []string{"setpriv", "--reuid=nobody", "--clear-groups"}
	}
	data := filepath.Join(dir, "data")
	initdb := append(as, filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E",
		"UTF8", "--locale=C")
	cmd := exec.Command(initdb[0], initdb[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	serve := append(as, found[0], "-D", data, "-p", port, "-h", "127.0.0.1", "-k", dir, "-F")
	startServer(t, port, serve[0], serve[1:]...)
}

// A capture that tshark can read.
func TestPcap(t *testing.T) {
	needVM(t)
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("no tshark on this machine: hack/setup --test installs it")
	}
	home, web := newHome(t), newSite(t)
	file := filepath.Join(t.TempDir(), "x.pcap")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	res, err := unitask.Run(t.Context(), unitask.Request{Kernel: image.Linux, AllowNet: []string{"good.example"},
		Code: `fetch("http://good.example/marker").then((r) => r.text()).then(console.log)`},
		unitask.Options{Home: home, Upstream: web.upstream, IO: unitask.IO{Capture: f}})
	f.Close()
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%v %+v", err, res)
	}
	out, err := exec.Command("tshark", "-r", file, "-Y", "dns or http", "-T", "fields", "-e", "dns.qry.name", "-e",
		"http.request.uri").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "good.example") || !strings.Contains(string(out), "/marker") {
		t.Errorf("%v: %s", err, out)
	}
}
