package mcp_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
)

// Strangers without a token do not keep callers from a server with few descriptors.
func TestAttackStrangers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	tokens := "quiet quiet-token-0123456789\n"
	for n := range 10 {
		tokens += fmt.Sprintf("hostile%d hostile-token-012345678%d\n", n, n)
	}
	if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := fmt.Sprintf(
		"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer TOKEN\r\nContent-Type: application/json\r\n"+
			"Accept: application/json, text/event-stream\r\n%s\r\n%s\r\nContent-Length: %d\r\n\r\n%s", revision, named,
		len(listTools), listTools)
	for _, c := range []struct{ name, send, answer string }{
		{"say nothing", "", ""},
		{"begin a request", "POST /mcp HTTP/1.1\r\nHost: x\r\n", ""},
		{"were refused and stay", "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 401"},
		{"have asked for the health and stay", "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "HTTP/1.1 200"},
		{"are callers, had their answers and stay", ask, "HTTP/1.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			addr, _ := startServer(t, testdir.Private(t), "--token-file", file, "--pool", "0", "-n", "256")
			for n := range 400 {
				conn, err := net.DialTimeout("tcp", addr, time.Second)
				if err != nil {
					continue // it is full
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Second))
				if _, err := fmt.Fprint(conn, strings.Replace(c.send, "TOKEN", fmt.Sprintf("hostile-token-012345678%d", n%10),
					1)); err == nil && c.answer != "" {
					_, _ = bufio.NewReader(conn).ReadString('\n')
				}
			}
			got := "refused"
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			fmt.Fprint(conn, strings.Replace(ask, "TOKEN", "quiet-token-0123456789", 1))
			if line, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
				got = line[:min(len(line), 12)]
			} else {
				got = err.Error()
			}
			attack.Check(t, "a caller's request beside 400 connections that "+c.name, "HTTP/1.1 200", got)
		})
	}
}

// If descriptors are scarce, a caller has an eighth of all connections, and seven others have as many at the same time.
func TestAttackCallerConnections(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	tokens := ""
	for n := range 8 {
		tokens += fmt.Sprintf("caller%d caller-token-0123456789%d\n", n, n)
	}
	if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, _ := startServer(t, testdir.Private(t), "--token-file", file, "--pool", "0", "-n", "256") // 128 connections
	// With all 128 open, the next one replaces an idle one.
	for n, attempts := range []int{40, 40, 40, 40, 40, 40, 40, 16} {
		taken, refused, text := 0, 0, "you have 16 connections"
		for range attempts {
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			fmt.Fprintf(conn,
				"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer caller-token-0123456789%d\r\n"+
					"Content-Type: application/json\r\n"+
					"Accept: application/json, text/event-stream\r\n%s\r\n%s\r\nContent-Length: %d\r\n\r\n%s", n, revision, named,
				len(listTools), listTools)
			from := bufio.NewReader(conn)
			answer, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			switch answer.StatusCode {
			case http.StatusOK:
				taken++
			case http.StatusTooManyRequests:
				body, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
				text = string(body)
				refused++
				if _, err := io.Copy(io.Discard, from); err != nil { // until the server has closed it
					t.Fatal(err)
				}
			default:
				t.Fatal(answer.Status)
			}
		}
		attack.Check(t, fmt.Sprintf("%d connections of caller %d of a server that has 128", attempts, n),
			fmt.Sprintf("16 taken, %d refused", attempts-16), fmt.Sprintf("%d taken, %d refused", taken, refused))
		if !strings.Contains(text, "you have 16 connections") {
			t.Errorf("%q", text)
		}
	}
}

// pipeFrom returns a connection from an address.
type pipeFrom struct {
	net.Conn
	addr string
}

func (p pipeFrom) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(p.addr))
}

// Strangers lose their connections to each other, and those of one address first.
func TestDoors(t *testing.T) {
	d := mcp.NewDoors(20, 10, 4, 3, 50*time.Millisecond)
	var open []net.Conn
	enter := func(addr, caller string) error {
		here, there := net.Pipe()
		t.Cleanup(func() { there.Close() })
		c := mcp.OpenDoor(d, pipeFrom{here, addr})
		if c == nil {
			return fmt.Errorf("full")
		}
		open = append(open, c)
		if caller == "" {
			return nil
		}
		return mcp.Introduce(d, c, caller)
	}
	is := func(what, want string) {
		t.Helper()
		if got := mcp.DoorsAre(d); got != want {
			t.Errorf("%s: %s, not %s", what, got, want)
		}
	}
	for n := range 3 {
		if err := enter("10.0.0.9:1", "alice"); err != nil {
			t.Error(n, err)
		}
	}
	attack.Check(t, "a fourth connection of a caller that may have three", "caller-connections",
		limitOf(enter("10.0.0.9:1", "alice")))
	is("alice's, and a stranger's", "4 open, 1 strange")
	for n := range 50 {
		_ = enter(fmt.Sprintf("10.0.0.1:%d", n+1), "")
	}
	is("50 of one address", "8 open, 5 strange")
	for n := range 50 {
		_ = enter(fmt.Sprintf("[2001:db8::%d]:1", n+1), "")
	}
	is("50 of one network", "12 open, 9 strange")
	for n := range 50 {
		_ = enter(fmt.Sprintf("10.0.1.%d:1", n+1), "")
	}
	is("50 of many addresses", "13 open, 10 strange")
	for n := range 7 {
		if err := enter("10.0.0.1:1", fmt.Sprint("caller", n)); err != nil {
			t.Error(n, err)
		}
	}
	is("callers beside them", "19 open, 9 strange")
	for n := range 10 {
		if err := enter("10.0.0.1:1", fmt.Sprint("more", n)); err != nil {
			t.Error(n, err)
		}
	}
	attack.Check(t, "callers in the place of strangers", "20 open, 0 strange", mcp.DoorsAre(d))
	if err := enter("10.0.0.1:1", "last"); err == nil {
		t.Error("it is not full")
	}
	mcp.SetIdle(d, open[2], true) // alice's
	for n := range 2 {
		if err := enter("10.0.0.1:1", fmt.Sprint("last", n)); (err == nil) != (n == 0) {
			t.Error(n, err)
		}
	}
	attack.Check(t, "a caller in the place of an idle connection", "20 open, 0 strange", mcp.DoorsAre(d))
	if err := mcp.Introduce(d, open[0], "alice"); err != nil {
		t.Error(err)
	}
	for _, c := range open {
		c.Close()
		c.Close()
	}
	is("everybody has gone", "0 open, 0 strange")
	_ = enter("10.0.0.1:1", "")
	c := open[len(open)-1]
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, err := c.Read(make([]byte, 1))
	attack.Check(t, "a stranger that stays one", "io: read/write on closed pipe", fmt.Sprint(err))
	is("its time is over", "0 open, 0 strange")
}
