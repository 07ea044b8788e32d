package mcp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unitask/unitask"
	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/mcp"
)

// narrow is a listener whose connections buffer little unread data.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if tcp, ok := c.(*net.TCPConn); ok && err == nil {
		_ = tcp.SetWriteBuffer(8 << 10)
	}
	return c, err
}

// printing is a server with one slot. Its runs print more than any client's buffers hold, one notification after the
// other.
func printing(t *testing.T) *mcp.Server {
	t.Helper()
	rt, err := unitask.Open(unitask.Options{Home: testdir.Private(t),
		Fleet: fleetFunc(func(ctx context.Context, run *unitask.FleetRun) (*unitask.Result, error) {
			tick := time.NewTicker(mcp.LivePeriod)
			defer tick.Stop()
			for range 12 {
				if _, err := run.Stdout.Write([]byte(strings.Repeat("\x01", 8<<10))); err != nil {
					return nil, err
				}
				<-tick.C
			}
			return &unitask.Result{Outcome: unitask.OutcomeExited}, nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rt.Close() })
	return newServer(t, rt, mcp.Options{Dir: t.TempDir(), MaxConcurrent: 1})
}

// freed reports whether the run's slot becomes free soon after its start.
func freed(t *testing.T, s *mcp.Server, call func()) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begun, over := make(chan error, 1), make(chan error, 1)
	go func() {
		begun <- mcp.QueueIs(ctx, s, 0, 1)
		over <- mcp.QueueIs(ctx, s, 0, 0)
	}()
	call()
	if err := <-begun; err != nil {
		t.Fatal(err)
	}
	if err := <-over; err != nil {
		return "held"
	}
	return "free"
}

// A client that reads none of a run's output holds no slot after the end of the run.
func TestAttackUnreadProgress(t *testing.T) {
	const progress = `"_meta":{"progressToken":"p"}`
	for _, c := range []struct{ name, revision, meta string }{
		{"progress", "2026-07-28",
			`"_meta":{"progressToken":"p","io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
				`"io.modelcontextprotocol/clientCapabilities":{}}`},
		{"progress of a session", "2025-11-25", progress},
		{"log messages of a session", "2025-11-25", `"_meta":{}`},
		{"progress of an old session", "2025-03-26", progress},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := printing(t)
			hs := httptest.NewUnstartedServer(nil)
			h, err := s.Handler(mcp.HTTPOptions{Addr: hs.Listener.Addr().String()})
			if err != nil {
				t.Fatal(err)
			}
			hs.Config.Handler, hs.Listener = h, narrow{hs.Listener}
			hs.Start()
			t.Cleanup(hs.Close)
			t.Cleanup(hs.CloseClientConnections)
			head := "Mcp-Method: tools/call\r\nMcp-Name: run_code\r\n"
			if c.revision < "2026-07-28" {
				_, answer, _ := send(t, "POST", hs.URL+"/mcp", strings.Replace(initialize, "2025-11-25", c.revision, 1))
				session := "Mcp-Session-Id: " + answer.Get("Mcp-Session-Id")
				send(t, "POST", hs.URL+"/mcp", `{"jsonrpc":"2.0","method":"notifications/initialized"}`, session)
				send(t, "POST", hs.URL+"/mcp", `{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"info"}}`,
					session)
				head = session + "\r\n"
			}
			conn, err := net.Dial("tcp", hs.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			body := `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_code",` +
				`"arguments":{"language":"js","code":"1"},` +
				c.meta + `}}`
			got := freed(t, s, func() {
				fmt.Fprintf(conn,
					"POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
						"Accept: application/json, text/event-stream\r\nMcp-Protocol-Version: %s\r\n%sContent-Length: %d\r\n\r\n%s",
					hs.Listener.Addr(), c.revision, head, len(body), body)
			})
			attack.Check(t, "a run's slot after it has ended, of a client that does not read its "+c.name, "free", got)
		})
	}
}

// gate is a client's end that is read until it is shut.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // nil while it is open
	seen func(text string)
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
		return 0, io.ErrClosedPipe
	}
	g.seen(string(p))
	return len(p), nil
}

// The same over stdin and stdout.
func TestAttackUnreadStdio(t *testing.T) {
	s := printing(t)
	in, to := io.Pipe()
	answered := make(chan struct{}, 10)
	out := &gate{seen: func(string) { answered <- struct{}{} }}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeStdio(t.Context(), in, out) }()
	fmt.Fprintln(to, initialize)
	<-answered
	fmt.Fprintln(to, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	shut := make(chan struct{})
	out.mu.Lock()
	out.shut = shut
	out.mu.Unlock()
	got := freed(t, s, func() {
		fmt.Fprintln(to,
			`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"run_code","_meta":{"progressToken":"p"},`+
				`"arguments":{"language":"js","code":"1"}}}`)
	})
	attack.Check(t, "a run's slot after it has ended, of a client that does not read stdout", "free", got)
	close(shut)
	to.Close()
	<-ended
}
