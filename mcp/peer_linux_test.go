package mcp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/mcp"
)

// stranger is the variable that makes the test's program a caller: HOW METHOD URL.
const stranger = "UNITASK_TEST_STRANGER"

const runCode = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_code",` +
	`"arguments":{"language":"js","code":"1"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
	`"io.modelcontextprotocol/clientCapabilities":{}}}}`

// callAsStranger sends one request over its own connection and prints the answer's status and body.
func callAsStranger(what string) int {
	how, rest, _ := strings.Cut(what, " ")
	if how == hostile {
		return attackTogether(rest)
	}
	method, url, _ := strings.Cut(rest, " ")
	addr, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	at := netip.MustParseAddrPort(addr)
	family, to := syscall.AF_INET, syscall.Sockaddr(&syscall.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
	if how == "mapped" {
		family, to = syscall.AF_INET6, &syscall.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM, 0)
	if err == nil {
		err = syscall.Connect(fd, to)
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	f := os.NewFile(uintptr(fd), "connection")
	headers := ""
	if how == "token" {
		headers = "Authorization: Bearer peer\r\n"
	}
	body := runCode
	if method == "GET" {
		body = ""
	}
	fmt.Fprintf(f,
		"%s /%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
			"%sMcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: run_code\r\nConnection: close\r\n"+
			"Content-Length: %d\r\n\r\n%s",
		method, path, addr, headers, len(body), body)
	if how == "gone" {
		f.Close()
		return 0
	}
	if how == "half" {
		_ = syscall.Shutdown(fd, syscall.SHUT_WR)
	}
	res, err := http.ReadResponse(bufio.NewReader(f), nil)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	text, _ := io.ReadAll(res.Body)
	fmt.Printf("%d %s", res.StatusCode, text)
	return 0
}

// asUser runs callAsStranger as another user of this machine.
func asUser(t *testing.T, uid uint32, what string) (status, text string) {
	t.Helper()
	self, err := os.Executable()
	if err == nil {
		err = os.Chmod(self, 0o755) // it was built under a umask
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{stranger + "=" + what, "HOME=/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	status, text, _ = strings.Cut(string(out), " ")
	return status, text
}

// listen serves on a loopback address with the server's own listener.
func listen(t *testing.T, s *mcp.Server, opts mcp.HTTPOptions) (url string) {
	t.Helper()
	opts.Addr = "127.0.0.1:0"
	return serveAt(t, s, opts)
}

// serveAt is listen on another address.
func serveAt(t *testing.T, s *mcp.Server, opts mcp.HTTPOptions) (url string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	at, ended := make(chan net.Addr, 1), make(chan error, 1)
	go func() { ended <- s.ServeHTTP(ctx, opts, func(a net.Addr) { at <- a }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case a := <-at:
		return "http://" + a.String()
	case err := <-ended:
		ended <- err
		t.Fatal(err)
		return ""
	}
}

// Other users of this machine, on a server without tokens.
func TestAttackPeers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	const nobody = 65534
	rt := bare(t)
	url := listen(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{})
	recorded := func() string {
		ids, err := rt.Runs().IDs()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d runs", len(ids))
	}
	for _, c := range []struct {
		name, how string
		uid       uint32
		want      string
	}{
		{"another user calls a tool", "plain POST /mcp", nobody, "403"},
		{"another user, by an IPv6 socket to a mapped address", "mapped POST /mcp", nobody, "403"},
		{"another user, with a token that is none", "token POST /mcp", nobody, "403"},
		{"another user, with its half of the connection closed", "half POST /mcp", nobody, "403"},
		{"another user reads the metrics", "plain GET /metrics", nobody, "403"},
		{"another user opens an event stream", "plain GET /mcp", nobody, "403"},
		{"another user sends a call and is gone", "gone POST /mcp", nobody, ""},
		{"a system user", "plain POST /mcp", 1, "403"},
	} {
		how := strings.Replace(c.how, " /", " "+url+"/", 1)
		status, text := asUser(t, c.uid, how)
		attack.Check(t, c.name, c.want, status)
		if c.want == "403" && !strings.Contains(text, fmt.Sprintf("this is uid %d", c.uid)) {
			t.Errorf("%s: %s", c.name, text)
		}
	}
	attack.Check(t, "runs of other users", "0 runs", recorded())
	for _, how := range []string{"plain", "mapped"} {
		if status, text := asUser(t, 0, how+" POST "+url+"/mcp"); status != "200" {
			t.Errorf("the server's own user, %s: %s %s", how, status, text)
		}
	}
	if got := recorded(); got != "2 runs" {
		t.Errorf("of the server's own user there are %s", got)
	}
	if status, _ := asUser(t, nobody, "plain GET "+url+"/healthz"); status != "200" {
		t.Errorf("/healthz is for everybody: %s", status)
	}

	// Everybody may call: each user has an identity and sees only its own runs.
	open := listen(t, newServer(t, rt, mcp.Options{Ceiling: noMachine()}), mcp.HTTPOptions{Anyone: true})
	status, _ := asUser(t, nobody, "plain POST "+open+"/mcp")
	ids, err := rt.Runs().IDs()
	if err != nil || status != "200" || len(ids) != 3 {
		t.Fatalf("%s %v %v", status, ids, err)
	}
	rec, err := rt.Runs().Get(ids[2])
	if err != nil || rec.Owner != unitask.LocalOwner(nobody) || rec.Via != unitask.ViaHTTP {
		t.Errorf("%+v %v", rec, err)
	}
	_, out, _ := call(t, connect(t, open, ""), "list_runs", object{})
	attack.Check(t, "with --loopback-anyone, another user's runs are listed", "2 runs",
		fmt.Sprintf("%d runs", len(out["runs"].([]any))))
	_, h, _ := send(t, "POST", open+"/mcp", initialize)
	_, text := asUser(t, nobody, "plain GET "+open+"/mcp")
	if session := h.Get("Mcp-Session-Id"); session == "" || strings.Contains(text, session) {
		t.Errorf("%q %s", session, text)
	}
}

// Reading a socket's owner from the kernel's table of sockets.
func TestAttackSocketTables(t *testing.T) {
	peer, own := netip.MustParseAddrPort("127.0.0.1:42096"), netip.MustParseAddrPort("127.0.0.1:44163")
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	row := func(local, remote, state, uid, inode string) string {
		return fmt.Sprintf(
			"   0: %s %s %s 00000000:00000000 00:00000000 00000000 %5s        0 %s 1 0000000000000000 20 4 30 10 -1\n", local,
			remote, state, uid, inode)
	}
	const a, b = "0100007F:A470", "0100007F:AC83"
	for _, c := range []struct{ name, table, want string }{
		{"the peer's socket", row(b, a, "01", "0", "77") + row(a, b, "01", "1000", "78"), "1000"},
		{"a mapped one", row("0000000000000000FFFF00000100007F:A470", "0000000000000000FFFF00000100007F:AC83", "01", "1000",
			"78"), "1000"},
		{"our own end only", row(b, a, "01", "0", "77"), "none"},
		{"one that waits for its time, which shows as root's", row(a, b, "06", "0", "0"), "none"},
		{"one that nobody holds any more, which shows as root's", row(a, b, "05", "0", "0"), "none"},
		{"another port of the peer", row("0100007F:A471", b, "01", "0", "78"), "none"},
		{"another address", row("0200007F:A470", b, "01", "0", "78"), "none"},
		{"a connection of the peer to another server", row(a, "0100007F:AC84", "01", "0", "78"), "none"},
		{"an orphan before the real one", row(a, b, "06", "0", "0") + row(a, b, "01", "1000", "78"), "1000"},
		{"a row that is cut", "   0: " + a + " " + b + " 01\n", "none"},
		{"a number that is none", row(a, b, "01", "-1", "78"), "none"},
		{"a number beyond 32 bits", row(a, b, "01", "4294967296", "78"), "none"},
		{"an address of no length", row(":A470", ":AC83", "01", "0", "78"), "none"},
		{"nothing", "", "none"},
	} {
		got := "none"
		if uid, err := mcp.FindSocket(strings.NewReader(head+c.table), peer, own); err == nil {
			got = fmt.Sprint(uid)
		}
		attack.Check(t, c.name, c.want, got)
	}
}

// If others can reach the server, every run needs all layers of the jail that this host offers. On loopback the user
// decides.
func TestAttackReachableServer(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1:0": false, "0.0.0.0:0": true} {
		rt := bare(t)
		s := newServer(t, rt, mcp.Options{Ceiling: noMachine()})
		opts := mcp.HTTPOptions{Addr: addr}
		opts.Auth, _ = mcp.NewToken()
		serveAt(t, s, opts)
		granted, _, err := mcp.Granted(s, "alice", `{"language": "js", "code": "1"}`)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		if want {
			jail, err := rt.Jail(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range slices.Concat(jail.Layers, jail.Limits) {
				if l.Holds {
					all = append(all, l.Name)
				}
			}
			if len(all) == 0 {
				t.Error("nothing holds")
			}
		}
		if want {
			row := "code of a server that others reach: layers that it must have"
			attack.Check(t, row, strings.Join(all, " "), strings.Join(granted.RequireJail, " "))
		} else if len(granted.RequireJail) > 0 {
			t.Errorf("on %s: requires %q", addr, granted.RequireJail)
		}
	}
}
