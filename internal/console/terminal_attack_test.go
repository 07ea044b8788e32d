package console

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/unitask/unitask/internal/attack"
	"github.com/unitask/unitask/internal/sessiond"
	"github.com/unitask/unitask/internal/testdir"
	"github.com/unitask/unitask/internal/testwait"
	"github.com/unitask/unitask/record"
	"github.com/unitask/unitask/run"
)

// typingConsole is a served console with a session, whose terminal's command is do.
func typingConsole(t *testing.T, do func(context.Context, sessiond.Streams) error) *Console {
	t.Helper()
	c := testConsole(t, record.Open(testdir.Private(t)))
	server := httptest.NewUnstartedServer(nil)
	host := server.Listener.Addr().String()
	served := New(Options{Host: host, Approvals: c.Approvals, History: c.History, Policy: c.Policy,
		Sessions: func(ctx context.Context, r sessiond.Request, s sessiond.Streams) (sessiond.Answer, error) {
			if r.Op == sessiond.OpExec {
				return sessiond.Answer{Result: &run.Result{ExitCode: 7}}, do(ctx, s)
			}
			return sessiond.Answer{Sessions: []sessiond.View{{ID: "mine", State: sessiond.Running},
				{ID: "lost", State: sessiond.Lost}}}, nil
		}})
	served.opened = time.Now()
	server.Config.Handler = served
	server.Start()
	t.Cleanup(server.Close)
	t.Cleanup(served.Close)
	return served
}

// dial opens a terminal, and returns the answer's code if it is none.
func dial(t *testing.T, c *Console, session, origin, cookie, host string) (*websocket.Conn, int) {
	t.Helper()
	header := http.Header{"Cookie": {cookieName + "=" + cookie}}
	if origin != "" {
		header.Set("Origin", origin)
	}
	conn, res, err := websocket.Dial(t.Context(), "ws://"+c.host+c.base+"/shell?session="+session,
		&websocket.DialOptions{HTTPHeader: header, Host: host})
	if err != nil {
		if res == nil {
			t.Fatal(err)
		}
		return nil, res.StatusCode
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn, res.StatusCode
}

// Only the console's own page opens a terminal, of the user's own session, and not too many.
func TestAttackConsoleTerminalDoor(t *testing.T) {
	c := typingConsole(t, func(ctx context.Context, _ sessiond.Streams) error {
		<-ctx.Done()
		return ctx.Err()
	})
	own := "http://" + c.host
	for _, row := range []struct{ name, session, origin, cookie, host, want string }{
		{"without a cookie", "mine", own, "", "", "401"},
		{"of another page", "mine", "http://evil.example", c.cookie, "", "403"},
		{"of a page at another port", "mine", "http://127.0.0.1:1", c.cookie, "", "403"},
		{"of no page", "mine", "", c.cookie, "", "403"},
		{"by the origin null", "mine", "null", c.cookie, "", "403"},
		{"by rebinding", "mine", "http://evil.example", c.cookie, "evil.example", "403"},
		{"of another's session", "other", own, c.cookie, "", "404"},
		{"of a lost session", "lost", own, c.cookie, "", "404"},
		{"of no session", "", own, c.cookie, "", "404"},
	} {
		_, code := dial(t, c, row.session, row.origin, row.cookie, row.host)
		attack.Check(t, "console: a terminal "+row.name, row.want, strconv.Itoa(code))
	}
	got := ""
	for range terminals + 1 {
		_, code := dial(t, c, "mine", own, c.cookie, "")
		got += strconv.Itoa(code) + " "
	}
	attack.Check(t, "console: terminals at once", strings.Repeat("101 ", terminals)+"503 ", got)
	c.Close()
	attack.Check(t, "console: terminals after its end", "0 503", fmt.Sprint(c.typing, " ", func() int {
		_, code := dial(t, c, "mine", own, c.cookie, "")
		return code
	}()))
}

// A terminal ends with the login of its browser, whatever is typed.
func TestAttackConsoleTerminalLogin(t *testing.T) {
	c := typingConsole(t, func(ctx context.Context, _ sessiond.Streams) error {
		<-ctx.Done()
		return ctx.Err()
	})
	c.mu.Lock()
	c.opened = time.Now().Add(2*time.Second - openTime)
	c.mu.Unlock()
	conn, code := dial(t, c, "mine", "http://"+c.host, c.cookie, "")
	if conn == nil {
		t.Fatal(code)
	}
	timed, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var err error
	for err == nil {
		_, _, err = conn.Read(timed)
	}
	attack.Check(t, "console: a terminal after 12 hours", "<nil> 401", fmt.Sprint(timed.Err(), " ", func() int {
		_, code := dial(t, c, "mine", "http://"+c.host, c.cookie, "")
		return code
	}()))
}

// A terminal holds little of endless output, and ends with wrong messages, or when nobody types.
func TestAttackConsoleTerminal(t *testing.T) {
	var written atomic.Int64
	over := make(chan error, 10)
	c := typingConsole(t, func(_ context.Context, s sessiond.Streams) error {
		for piece := make([]byte, 32<<10); ; {
			n, err := s.Stdout.Write(piece)
			if written.Add(int64(n)); err != nil {
				over <- err
				return err
			}
		}
	})
	open := func() *websocket.Conn {
		t.Helper()
		conn, code := dial(t, c, "mine", "http://"+c.host, c.cookie, "")
		if conn == nil {
			t.Fatal(code)
		}
		conn.SetReadLimit(-1)
		return conn
	}
	conn := open()
	read := int64(0)
	for timed, cancel := context.WithTimeout(t.Context(), time.Second); ; { // it reads, and never says so
		_, text, err := conn.Read(timed)
		if read += int64(len(text)); err != nil {
			cancel()
			break
		}
	}
	attack.Check(t, "console: endless output of a terminal whose page shows none of it", "true true",
		fmt.Sprint(read <= 3<<20, written.Load() <= 5<<20))
	testwait.Until(t, "the command to end with its page", func() bool { return len(over) == 1 })
	for name, text := range map[string]string{"a size below 1": `{"resize":[0,1]}`, "a large size": `{"resize":[1,99999]}`,
		"no JSON": "x", "half a size": `{"resize":[1]}`, "less than nothing taken": `{"taken":-1}`} {
		conn := open()
		if err := conn.Write(t.Context(), websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			_, _, err = conn.Read(t.Context())
		}
		attack.Check(t, "console: a terminal gets "+name, websocket.StatusPolicyViolation.String(),
			websocket.CloseStatus(err).String())
	}
	c.idle = 50 * time.Millisecond
	conn = open()
	var err error
	for err == nil {
		_, _, err = conn.Read(t.Context())
	}
	attack.Check(t, "console: a terminal in which nobody types", "nobody typed for 50ms", func() string {
		if i := strings.Index(err.Error(), "nobody"); i >= 0 {
			return err.Error()[i : i+len("nobody typed for 50ms")]
		}
		return err.Error()
	}())
}

// The vendored files are those of npm's @xterm/xterm 5.5.0.
func TestVendored(t *testing.T) {
	for name, want := range map[string]string{
		"xterm.js":      "1f991ac3b4b283ebf96e60ae23a00a52765dd3a2e46fa6fdda9f1aab032f7495",
		"xterm.css":     "ba8e6985669488981ccf40c0cefe3aba80722cb6c92de7ad628b0bd717faf2b6",
		"LICENSE.xterm": "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
	} {
		text, err := os.ReadFile("vendored/" + name)
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || got != want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}
